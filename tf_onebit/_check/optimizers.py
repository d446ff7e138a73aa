"""Optimizers that a job over Horovod wraps."""

import ast
from collections.abc import Iterable, Iterator

from tf_onebit._check import suggestions
from tf_onebit._check.finding import Finding
from tf_onebit._check.program import Program, has_hidden_arguments, keyword
from tf_onebit._check.training import (
    WRAPPERS,
    compiles,
    given_optimizers,
    is_optimizer,
    model_classes,
    origins,
)
from tf_onebit._check.uses import stock_imports, uses_both, uses_horovod

_REFUSED_ASYNCHRONOUSLY = ("momentum", "weight_decay", "clipnorm", "clipvalue", "global_clipnorm")


def bare_optimizers(program: Program) -> Iterator[ast.expr]:
    """Yields the optimizers of models that no wrapper has."""
    if uses_both(program):
        return
    seen = _handed_on(program)
    given = [one for call in compiles(program) for one in given_optimizers(program, call)]
    for optimizer in [*given, *_made_by_models(program)]:
        if optimizer not in seen and _is_bare(program, optimizer):
            seen.add(optimizer)
            yield optimizer


def _handed_on(program: Program) -> set[ast.expr]:
    """Returns the values that go into another optimizer, or into what may wrap them."""
    takes_any = uses_horovod(program)
    compiled = set(compiles(program))
    return {
        value
        for call in program.calls
        if call not in compiled
        if takes_any or is_optimizer(program, call)
        for arg in (*call.args, *(one.value for one in call.keywords))
        for value in origins(program, arg)
    }


def _made_by_models(program: Program) -> list[ast.expr]:
    """Returns the optimizers that classes of models make for themselves."""
    made = [n for model in model_classes(program).values() for n in ast.walk(model)]
    return [n for n in made if isinstance(n, ast.Call) and is_optimizer(program, n)]


def _is_bare(program: Program, optimizer: ast.expr) -> bool:
    is_name = isinstance(optimizer, ast.Constant) and isinstance(optimizer.value, str)
    if is_name or is_optimizer(program, optimizer):
        return True
    is_call = isinstance(optimizer, ast.Call) and program.called(optimizer) not in WRAPPERS
    return is_call and not uses_horovod(program)


def wrap_optimizers(program: Program) -> Iterator[Finding]:
    """Yields optimizers of models that are not wrapped."""
    item = "blocks 2, 3" if program.in_blocks else "Horovod 4"
    for group in _by_statement(program, bare_optimizers(program)):
        yield Finding(
            group[0].lineno,
            "Wrap the optimizer." if len(group) == 1 else "Wrap each optimizer.",
            "Otherwise each worker trains a model of its own.",
            item,
            _wrapped(program, group),
            [optimizer.lineno for optimizer in group],
        )
    for call in compiles(program):
        if keyword(call, "optimizer", 0) is None and _takes_the_default(call):
            hvd = suggestions.hvd(program)
            made = f"{suggestions.keras(program)}.optimizers.RMSprop()"
            yield Finding(
                call.lineno,
                "Pass a wrapped optimizer to compile.",
                "Without one, Keras makes an RMSprop that exchanges nothing.",
                item,
                [
                    suggestions.new_exchange(program),
                    f"optimizer={hvd}.DistributedOptimizer({made}, exchange),",
                ],
            )


def _by_statement(program: Program, optimizers: Iterable[ast.expr]) -> Iterable[list[ast.expr]]:
    groups: dict[ast.stmt, list[ast.expr]] = {}
    for optimizer in optimizers:
        groups.setdefault(program.statement(optimizer), []).append(optimizer)
    return groups.values()


def _wrapped(program: Program, group: list[ast.expr]) -> list[str]:
    """Returns a statement with wrapped optimizers, or these alone if it is long."""
    hvd = suggestions.hvd(program)
    is_one = len(group) == 1 and not program.in_blocks
    exchange = "exchange" if is_one else suggestions.exchange(program)  # each has its own
    changes = {
        one: f"{hvd}.DistributedOptimizer({suggestions.optimizer_text(program, one)}, {exchange})"
        for one in group
    }
    lines = suggestions.changed(program, changes)
    return [suggestions.new_exchange(program), *lines] if is_one else lines


def _takes_the_default(call: ast.Call) -> bool:
    return not has_hidden_arguments(call) and keyword(call, "loss") is not None


def give_the_exchange(program: Program) -> Iterator[Finding]:
    """Yields wrappers of Horovod's that send gradients in full precision."""
    if not stock_imports(program):
        return
    for call in program.calls_of("hvd.DistributedOptimizer", "hvd.PartialDistributedOptimizer"):
        if _has_exchange(program, call):
            continue
        inner = keyword(call, "optimizer", 0)
        changes = {} if inner is None else {inner: f"{program.text(inner)}, exchange"}
        yield Finding(
            call.lineno,
            "Pass an exchange to the optimizer.",
            "Without one, gradients travel in full precision.",
            "Horovod 4",
            [
                suggestions.new_exchange(program),
                *suggestions.changed(program, changes),
            ],
        )


def _has_exchange(program: Program, call: ast.Call) -> bool:
    compression = keyword(call, "compression")
    if compression is not None and program.full_name(compression) != "hvd.Compression.none":
        return True
    return keyword(call, "exchange", 1) is not None or has_hidden_arguments(call)


def plain_sgd_for_asynchronous_workers(program: Program) -> Iterator[Finding]:
    """Yields optimizers that `AsynchronousOptimizer` refuses."""
    for call in program.calls_of("hvd.AsynchronousOptimizer"):
        inner = keyword(call, "optimizer", 0)
        for made in origins(program, inner) if inner is not None else ():
            if not isinstance(made, ast.Call) or not is_optimizer(program, made):
                continue
            given = [one for one in made.keywords if _is_refused(one)]
            if program.called(made) != "keras.optimizers.SGD" or given:
                yield Finding(
                    made.lineno,
                    "Use keras.optimizers.SGD without momentum, weight decay and clipping, or "
                    "DistributedOptimizer.",
                    "AsynchronousOptimizer refuses others: workers exchange steps of SGD.",
                    "Horovod 4",
                )


def _is_refused(argument: ast.keyword) -> bool:
    is_off = isinstance(argument.value, ast.Constant) and not argument.value.value
    return argument.arg in _REFUSED_ASYNCHRONOUSLY and not is_off


def known_optimizers(program: Program) -> Iterator[Finding]:
    """Yields optimizers with which compression costs accuracy."""
    if program.calls_of("tf_onebit.FullPrecision"):
        return
    for name in ("Ftrl", "ScheduleFreeAdamW"):
        for call in program.calls_of(f"keras.optimizers.{name}"):
            yield Finding(
                call.lineno,
                f"Take another optimizer than {name}, or exchange=tf_onebit.FullPrecision().",
                "With it workers exchange gradients, not updates, and compression costs accuracy.",
                "docs/limits.md",
            )
