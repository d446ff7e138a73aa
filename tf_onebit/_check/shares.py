"""The data that each worker of a job over Horovod trains on."""

import ast
from collections.abc import Iterator

from tf_onebit._check import suggestions
from tf_onebit._check.finding import Finding
from tf_onebit._check.flow import comes_from_elsewhere, depends_on_worker, reached
from tf_onebit._check.program import Program, is_within, keyword
from tf_onebit._check.training import fits
from tf_onebit._check.uses import has_seed, uses_horovod

_ALIKE = "Workers make every step together, so all need the same number of batches. "
_WHY = "batch_size is that of one worker. docs/horovodrun.md has code for each kind of data."
# Functions that return batches, in the program's order.
_BATCHED = ("_from_array", "_from_directory")
_NAMED = (ast.Attribute, ast.Name, ast.Subscript)
_BEFORE = ("batch", "cache", "map", "padded_batch", "prefetch", "repeat", "shuffle")


def share_the_data(program: Program) -> Iterator[Finding]:
    """Yields data of `fit` that all workers would train on."""
    for fit in fits(program):
        given = (keyword(fit, "x", 0), keyword(fit, "y", 1))
        data = [arg for arg in given if arg is not None and not isinstance(arg, ast.Constant)]
        if not data or isinstance(fit.args[:1] and fit.args[0], ast.Starred):
            continue
        numbers = (keyword(fit, "epochs"), keyword(fit, "steps_per_epoch"))
        sources = [*data, *(one for one in numbers if one is not None)]
        if uses_horovod(program) and (
            depends_on_worker(program, *sources) or comes_from_elsewhere(program, *data)
        ):
            continue
        names = " and ".join(ast.unparse(arg) for arg in data if len(ast.unparse(arg)) < 40)
        line, write = _share(program, fit, data)
        yield Finding(
            line,
            f"Give each worker an equal share of {names or 'the data'}.",
            _WHY if program.in_blocks else _ALIKE + _WHY,
            "Horovod 5, 6",
            write,
        )


def _share(program: Program, fit: ast.Call, data: list[ast.expr]) -> tuple[int, list[str]]:
    """Returns the line that gets a share of data, and how to write it."""
    hvd = suggestions.hvd(program)
    if len(data) == 2 and all(isinstance(one, _NAMED) for one in data):
        first = ast.unparse(data[0])
        size = f"{hvd}.size()"
        share = f"share = slice({hvd}.rank(), len({first}) // {size} * {size}, {size})"
        parts = ", ".join(f"{ast.unparse(one)}[share]" for one in data)
        return fit.lineno, [share, f"{ast.unparse(fit.func)}({parts}, ...)"]
    chain = _last_chain(program, data[0])
    if chain is not None:
        return chain.lineno, suggestions.changed(program, _divided(program, chain, hvd))
    if isinstance(data[0], ast.Name) and _batched(program, data[0]):
        name = data[0].id
        part = f"{name}.shard({hvd}.size(), {hvd}.rank()).take(len({name}) // {hvd}.size())"
        return fit.lineno, [f"{name} = {part}"]
    return fit.lineno, []


def _last_chain(program: Program, data: ast.expr) -> ast.Call | None:
    """Returns the calls that shuffle or batch a `tf.data.Dataset`, or None."""
    if not any(program.full_name(n) == "tensorflow.data.Dataset" for n in reached(program, data)):
        return None
    values = program.values.get(ast.unparse(data), [])
    chains = [v for v in values if isinstance(v, ast.Call) and _first_of_chain(v) is not None]
    return chains[0] if chains else None


def _first_of_chain(chain: ast.Call) -> ast.expr | None:
    """Returns the dataset before it is shuffled or batched, or None."""
    found, node = None, chain.func
    while isinstance(node, ast.Attribute):
        if node.attr in _BEFORE:
            found = node.value
        node = node.value.func if isinstance(node.value, ast.Call) else node.value
    return found


def _divided(program: Program, chain: ast.Call, hvd: str) -> dict[ast.expr, str]:
    first = _first_of_chain(chain)
    if first is None:
        return {}
    text = f"{program.text(first)}.shard({hvd}.size(), {hvd}.rank())"
    made = {program.called(value) for value in program.values.get(program.text(first), [])}
    if "tensorflow.data.Dataset.from_tensor_slices" in made:  # Its length is known.
        text += f".take(len({program.text(first)}) // {hvd}.size())"
    return {first: text}


def _batched(program: Program, *data: ast.expr) -> bool:
    """Tells whether a function of Keras makes the data in batches."""
    return any(
        is_within(name, "keras.utils") and name.endswith(_BATCHED)
        for node in reached(program, *data)
        if (name := program.called(node))
    )


def seed_for_batches(program: Program) -> Iterator[Finding]:
    """Yields a finding if data are divided after they are shuffled, and no line sets a seed."""
    data = [arg for fit in fits(program) if (arg := keyword(fit, "x", 0)) is not None]
    if data and _batched(program, *data) and not has_seed(program):
        yield Finding(
            suggestions.last_import(program),
            "Set the same seed on all workers.",
            "They divide data after they have shuffled them, so they must shuffle alike.",
            "Horovod 3",
            suggestions.new_seed(program),
        )
