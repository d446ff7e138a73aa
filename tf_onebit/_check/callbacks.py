"""Callbacks of jobs over Horovod."""

import ast
from collections.abc import Iterator, Sequence

from tf_onebit._check import suggestions
from tf_onebit._check.finding import Finding
from tf_onebit._check.flow import comes_from_elsewhere, depends_on_worker, is_for_some_workers
from tf_onebit._check.program import Program, has_hidden_arguments, keyword
from tf_onebit._check.training import fits, loops, models, receiver
from tf_onebit._check.uses import holds_models_together, own_modules, own_strategies, uses_horovod

_DECIDES = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")
_WRITES = {"CSVLogger": "filename", "ModelCheckpoint": "filepath", "TensorBoard": "log_dir"}
_BEGIN_APART = "Otherwise each worker begins with weights of its own."
_BROADCASTS = (
    *("hvd.BroadcastGlobalVariablesCallback", "hvd.broadcast_variables"),
    *("tf_onebit.callbacks.BlockMomentum", "hvd.load_model", "hvd.elastic"),
)


def added_callbacks(program: Program) -> list[str]:
    """Returns the texts of the callbacks that a program lacks for Horovod."""
    hvd = suggestions.hvd(program)
    first = f"{hvd}.BroadcastGlobalVariablesCallback(0)"
    if program.in_blocks:
        first = f"{suggestions.onebit(program)}.callbacks.BlockMomentum(sync_period=16)"
    begins = [] if program.calls_of(*_BROADCASTS) else [first]
    averages = [f"{hvd}.MetricAverageCallback()"] if _deciding(program) else []
    return begins + averages


def begin_alike(program: Program) -> Iterator[Finding]:
    """Yields the first training of each model in a program that broadcasts no weights."""
    if program.calls_of(*_BROADCASTS) or holds_models_together(program):
        return
    first = {receiver(fit): fit for fit in reversed(fits(program))}
    for fit in first.values():
        if may_have_others(program, fit):
            continue
        line, write = suggestions.with_callbacks(program, fit, added_callbacks(program))
        yield Finding(
            line,
            "Add the callback that copies the initial weights of worker 0 to all workers.",
            _BEGIN_APART,
            "Horovod 7",
            write,
        )
    is_elsewhere = uses_horovod(program) and own_modules(program)
    for loop in loops(program)[:1] if not first and not is_elsewhere else ():
        hvd = suggestions.hvd(program)
        yield Finding(
            loop.gradient.lineno,
            "Copy the initial weights of worker 0 to all workers, before the first step.",
            _BEGIN_APART,
            "Horovod 7",
            [
                f"{hvd}.broadcast_variables({m}.weights, root_rank=0)"
                for m in sorted(models(program))
            ],
        )


def may_have_others(program: Program, fit: ast.Call) -> bool:
    """Tells whether a `fit` of a program for workers may have callbacks that cannot be seen."""
    if not uses_horovod(program) and not own_strategies(program):
        return False
    given = keyword(fit, "callbacks")
    return has_hidden_arguments(fit) if given is None else comes_from_elsewhere(program, given)


def average_metrics(program: Program) -> Iterator[Finding]:
    """Yields callbacks that would decide by other metrics on each worker."""
    deciding = _deciding(program)
    trained = fits(program)
    if deciding and trained and not may_have_others(program, trained[0]):
        name = program.called(deciding[0]).rpartition(".")[2]
        line, write = suggestions.with_callbacks(program, trained[0], added_callbacks(program))
        yield Finding(
            line,
            f"Add MetricAverageCallback before {name}.",
            "Workers have different metrics, and would decide differently.",
            "Horovod 8",
            write,
        )


def _deciding(program: Program) -> Sequence[ast.Call]:
    """Returns the callbacks that decide by metrics that differ between workers."""
    if program.in_blocks or program.calls_of("hvd.MetricAverageCallback"):
        return []
    return [
        call
        for name in _DECIDES
        for call in program.calls_of(f"keras.callbacks.{name}")
        if _decides(name, call) and not is_for_some_workers(program, call)
        if _is_of_training(call, name) or _has_own_statistics(program)
    ]


def _decides(name: str, call: ast.Call) -> bool:
    if name != "ModelCheckpoint":
        return True
    best = keyword(call, "save_best_only")
    return isinstance(best, ast.Constant) and best.value is True


def _is_of_training(call: ast.Call, name: str) -> bool:
    monitor = keyword(call, "monitor", 1 if name == "ModelCheckpoint" else 0)
    known = isinstance(monitor, ast.Constant) and isinstance(monitor.value, str)
    return known and not ast.literal_eval(monitor).startswith("val_") if monitor else False


def _has_own_statistics(program: Program) -> bool:
    """Tells whether a layer keeps statistics of each worker's batches."""
    layers = program.calls_of("keras.layers.BatchNormalization")
    return any(keyword(call, "synchronized") is None for call in layers)


def write_callbacks_on_one_worker(program: Program) -> Iterator[Finding]:
    """Yields callbacks that write the same file on all workers."""
    if holds_models_together(program):
        return
    for name, argument in _WRITES.items():
        for call in program.calls_of(f"keras.callbacks.{name}"):
            path = keyword(call, argument, 0)
            if path is None or _is_of_one_worker(program, call, path):
                continue
            line, write = _own_path(program, path)
            yield Finding(
                line,
                f"Give each worker a path of its own for {name}, or pass it on one worker only.",
                "All workers would write the same file at the same time.",
                "Horovod 9",
                write,
            )


def _is_of_one_worker(program: Program, call: ast.Call, path: ast.expr) -> bool:
    if depends_on_worker(program, path) or is_for_some_workers(program, call):
        return True
    name = program.target(call)
    named = [n for n in ast.walk(program.tree) if isinstance(n, ast.Name) and n.id == name]
    return any(is_for_some_workers(program, node) for node in named)


def _own_path(program: Program, path: ast.expr) -> tuple[int, list[str]]:
    """Returns the line that has a path, and how to write it with the worker's number."""
    values = program.values.get(ast.unparse(path), [])
    made = values[0] if len(values) == 1 else path
    if not isinstance(made, ast.Constant) or not isinstance(made.value, str):
        return path.lineno, []
    folder, slash, file = made.value.rpartition("/")
    stem, dot, suffix = file.partition(".")
    rank = f"{{{suggestions.hvd(program)}.rank()}}"
    is_template = "{" in made.value
    text = f'f"{folder}{slash}{stem}_{rank}{dot}{suffix}"'
    line = f"{ast.unparse(path)} = {text}" if made is not path else text
    return made.lineno, [] if is_template else [line]
