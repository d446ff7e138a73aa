"""The gradient tapes of own loops over Horovod."""

import ast
from collections.abc import Iterator

from tf_onebit._check import suggestions
from tf_onebit._check.finding import Finding
from tf_onebit._check.program import Program, has_hidden_arguments, keyword
from tf_onebit._check.training import WRAPPERS, Loop, loops, origins
from tf_onebit._check.uses import stock_imports

_TAPES = ("hvd.DistributedGradientTape", "hvd.PartialDistributedGradientTape")
_EXCHANGES = (
    *("tf_onebit.OneBit", "tf_onebit.Threshold", "tf_onebit.WarmStart", "tf_onebit.Delayed"),
    *("tf_onebit.FullPrecision", "tf_onebit.Auto"),
)


def wrap_the_tape(program: Program) -> Iterator[Finding]:
    """Yields loops whose tape and optimizer do not exchange gradients, or in full precision."""
    for loop in loops(program):
        wrapped = [c for c in program.calls_of(*_TAPES) if _is_in_step(program, c, loop)]
        if not wrapped and not program.calls_of(
            *_TAPES, *WRAPPERS, "hvd.allreduce", "hvd.grouped_allreduce"
        ):
            yield _finding(
                program, loop, loop.gradient.lineno, "Wrap the tape, before it is asked."
            )
        for call in wrapped:
            compression = keyword(call, "compression")
            if stock_imports(program) and compression is None and not _has_exchange(call):
                yield _finding(program, loop, call.lineno, "Pass an exchange to the tape.")


def _is_in_step(program: Program, call: ast.Call, loop: Loop) -> bool:
    return program.function(call) is program.function(loop.gradient)


def _has_exchange(call: ast.Call) -> bool:
    return keyword(call, "exchange", 1) is not None or has_hidden_arguments(call)


def _finding(program: Program, loop: Loop, line: int, what: str) -> Finding:
    hvd = suggestions.hvd(program)
    return Finding(
        line,
        what,
        "Then workers exchange the gradients, compressed. Make the exchange once, outside of the "
        "step, because it holds the unsent parts of the gradients.",
        "Horovod 11",
        [
            suggestions.new_exchange(program),
            f"{loop.tape} = {hvd}.DistributedGradientTape({loop.tape}, exchange=exchange)",
        ],
    )


def exchange_outside(program: Program) -> Iterator[Finding]:
    """Yields exchanges that are made anew in every step."""
    for call in program.calls_of(*_TAPES):
        given = keyword(call, "exchange", 1)
        step = program.function(call)
        if given is None or step is None:
            continue
        (made, *others) = origins(program, given)
        is_new = program.called(made) in _EXCHANGES and program.function(made) is step
        if is_new and not others:
            yield Finding(
                made.lineno,
                "Make the exchange once, outside of the step.",
                "It holds the unsent parts of the gradients. A new one in each step loses them.",
                "Horovod 11",
                [f"exchange = {program.text(made)}  # outside of the step"],
            )


def keras_variables(program: Program) -> Iterator[Finding]:
    """Yields tapes that are asked for the TensorFlow variables within Keras variables."""
    for loop in loops(program) if stock_imports(program) else ():
        sources = keyword(loop.gradient, "sources", 1)
        for made in origins(program, sources) if sources is not None else ():
            if isinstance(made, ast.ListComp) and ast.unparse(made.elt).endswith(".value"):
                variables = program.text(made.generators[0].iter)
                yield Finding(
                    loop.gradient.lineno,
                    f"Ask the tape for {variables}.",
                    "Horovod's tape took only the TensorFlow variables within them. This one takes "
                    "Keras variables.",
                    "Horovod 11",
                    suggestions.changed(program, {sources: variables}) if sources else (),
                )
