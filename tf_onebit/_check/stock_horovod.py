"""Changes in a program that was written for Horovod, by docs/horovodrun.md."""

import ast
from collections.abc import Iterator

from tf_onebit._check import suggestions
from tf_onebit._check.finding import Finding
from tf_onebit._check.optimizers import give_the_exchange
from tf_onebit._check.program import Import, Program
from tf_onebit._check.uses import stock_imports

_PAGE = "docs/horovodrun.md"
_MODULES = ("horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras")
_ELASTIC = {
    *("CommitStateCallback", "HorovodInternalError", "KerasState", "ObjectState", "elastic", "run"),
    *("TensorFlowKerasState", "TensorFlowState", "UpdateBatchStateCallback", "run_fn"),
    "UpdateEpochStateCallback",
}
_OTHERS = {
    *(
        "check_extension",
        "check_num_rank_power_of_2",
        "gpu_available",
        "is_version_greater_equal_than",
    ),
    *("handle_average_backwards_compatibility", "refs_to_vars", "split_list", "vars_to_refs"),
    *("LocalGradientAggregationHelper", "broadcast_object_fn"),
}
# Horovod's names that `tf_onebit.horovod` lacks.
MISSING = _ELASTIC | _OTHERS


def change_the_import(program: Program) -> Iterator[Finding]:
    """Yields imports of Horovod itself, of the names that this package has, too."""
    for one in stock_imports(program):
        statement = _import_of_ours(one)
        if statement:
            yield Finding(
                one.node.lineno,
                "Import tf_onebit's names for Horovod.",
                "They are Horovod's own, and versions of its classes that work with Keras 3.",
                "Horovod 1",
                [*suggestions.new_imports(program, "tf_onebit"), statement],
            )


def _import_of_ours(one: Import) -> str | None:
    """Returns the statement that replaces an import, or None if this package has no such name."""
    if one.module in _MODULES:
        return f"import tf_onebit.horovod as {'hvd' if '.' in one.local else one.local}"
    module, _, name = one.module.removesuffix(".callbacks").rpartition(".")
    if one.module.endswith(".callbacks"):
        return f"from tf_onebit.horovod import callbacks as {one.local}"
    if module.removesuffix(".callbacks") in _MODULES and name not in MISSING:
        return f"from tf_onebit.horovod import {name}"
    return None


def shorten_callbacks(program: Program) -> Iterator[Finding]:
    """Yields Horovod's callbacks by their long names."""
    changes = {c.func: _shortened(c.func) for c in program.calls_of("hvd") if _is_long(c.func)}
    if not stock_imports(program) or not changes:
        return
    first = next(iter(changes))
    statement = program.statement(first)
    of_statement = {n: text for n, text in changes.items() if program.statement(n) is statement}
    yield Finding(
        first.lineno,
        f"Write {', '.join(sorted(set(changes.values())))}.",
        "The names with callbacks work, too. These are those of the documentation.",
        _PAGE,
        suggestions.changed(program, of_statement),
        [node.lineno for node in changes],
    )


def _is_long(func: ast.expr) -> bool:
    return isinstance(func, ast.Attribute) and ast.unparse(func.value).endswith(".callbacks")


def _shortened(func: ast.expr) -> str:
    *base, _, name = ast.unparse(func).split(".")
    return ".".join([*base, name])


def replace_elastic_jobs(program: Program) -> Iterator[Finding]:
    """Yields what belongs to jobs whose number of workers changes."""
    lines = [node.lineno for name in _ELASTIC for node in program.uses(f"hvd.{name}")]
    if lines:
        yield Finding(
            min(lines),
            "Replace all of hvd.elastic by the callback tf_onebit.callbacks.BackupAndRestore.",
            "The number of workers of a job is constant. A saved job starts again with another.",
            _PAGE,
            also=lines,
        )


def missing_names(program: Program) -> Iterator[Finding]:
    """Yields other names of Horovod's that this package lacks."""
    for name in sorted(_OTHERS):
        for node in program.uses(f"hvd.{name}"):
            yield Finding(
                node.lineno,
                f"Do without {name}, or import it from Horovod.",
                "tf_onebit.horovod does not have it.",
                _PAGE,
            )


def do_not_join(program: Program) -> Iterator[Finding]:
    """Yields calls of `join`."""
    for call in program.calls_of("hvd.join"):
        yield Finding(
            call.lineno,
            "Give every worker the same number of batches in place of join.",
            "join is an error on workers that have exchanged gradients.",
            "Horovod 5",
        )


RULES = (
    change_the_import,
    give_the_exchange,
    shorten_callbacks,
    replace_elastic_jobs,
    missing_names,
    do_not_join,
)
