"""The list "To blocks" of docs/porting.md: one function for each rule, in its order."""

import ast
from collections.abc import Iterator, Sequence

from tf_onebit._check import horovod, strategy, suggestions
from tf_onebit._check.callbacks import added_callbacks, may_have_others
from tf_onebit._check.finding import Finding, Rule
from tf_onebit._check.program import Program, keyword
from tf_onebit._check.training import (
    OPTIMIZERS,
    compiles,
    fits,
    given_optimizers,
    loops,
    origins,
    unwrapped,
)
from tf_onebit._check.uses import own_strategies, tf_strategies, uses_horovod

_BLOCKS = "tf_onebit.callbacks.BlockMomentum"
# With these the state of optimizers stays with its worker, or the user has decided about it.
_KEEPING_MOMENTS = ("moment_correction", "outer_optimizer", "fragments", "overlap")


def begin_with_an_engine(program: Program) -> Iterator[Finding]:
    """Yields what the port to a strategy needs if the program uses one, or else to Horovod."""
    is_in_strategy = own_strategies(program) or tf_strategies(program)
    rules: Sequence[Rule] = strategy.RULES
    if not is_in_strategy or uses_horovod(program):
        rules = [rule for rule in horovod.RULES if rule not in horovod.OF_EVERY_STEP]
    for rule in rules:
        yield from rule(program)


def pass_local(program: Program) -> Iterator[Finding]:
    """Yields exchanges of gradients, which have no use in blocks."""
    wrappers = program.calls_of("hvd.DistributedOptimizer", "hvd.PartialDistributedOptimizer")
    places = [(call, 1) for call in wrappers] + [(call, 0) for call in own_strategies(program)]
    if program.calls_of("tf_onebit.Local"):
        return
    for call, place in places:
        given = keyword(call, "exchange", place)
        (made, *_) = [None] if given is None else origins(program, given)
        if made is None or program.called(made).startswith("tf_onebit."):
            yield Finding(
                made.lineno if made is not None else call.lineno,
                f"Pass exchange={suggestions.exchange(program)} in place of another exchange.",
                "Workers average models at the ends of blocks, and exchange no gradients.",
                "blocks 2",
                [f"exchange={suggestions.exchange(program)},"],
            )


def take_movable_optimizers(program: Program) -> Iterator[Finding]:
    """Yields wrapped optimizers whose moments cannot be moved with the model."""
    calls = program.calls_of(_BLOCKS)
    if any(keyword(call, name) is not None for call in calls for name in _KEEPING_MOMENTS):
        return
    for optimizer in _ready_optimizers(program):
        name = _name_of(program, optimizer)
        if name in suggestions.MOVABLE:
            yield Finding(
                optimizer.lineno,
                f"Take {name} from tf_onebit.optimizers.",
                "It is Keras' own, and its moments can be moved with the model. "
                "Blocks refuse that of Keras.",
                "blocks 3",
                [suggestions.optimizer_text(program, optimizer)],
            )


def _name_of(program: Program, optimizer: ast.expr) -> str:
    if isinstance(optimizer, ast.Constant):
        return OPTIMIZERS.get(str(optimizer.value).lower(), "")
    return program.called(optimizer).removeprefix("keras.optimizers.")


def _ready_optimizers(program: Program) -> list[ast.expr]:
    """Returns the optimizers that are wrapped with `Local`, or that a strategy exchanges."""
    if own_strategies(program) or tf_strategies(program):
        given = [one for call in compiles(program) for one in given_optimizers(program, call)]
        return [] if uses_horovod(program) else given
    return [
        one
        for call in program.calls_of("hvd.DistributedOptimizer")
        for one in unwrapped(program, call)
    ]


def train_with_fit(program: Program) -> Iterator[Finding]:
    """Yields own loops, which have no place for the callback of blocks."""
    for loop in loops(program)[:1] if not fits(program) else ():
        yield Finding(
            loop.gradient.lineno,
            "Train with fit in place of this loop, or without blocks.",
            "A callback of fit averages the models.",
            "blocks 4",
        )


def add_block_momentum(program: Program) -> Iterator[Finding]:
    """Yields the first `fit` of a program that does not average models."""
    if program.calls_of(_BLOCKS) or not fits(program):
        return
    if may_have_others(program, fits(program)[0]):
        return
    line, write = suggestions.with_callbacks(program, fits(program)[0], added_callbacks(program))
    yield Finding(
        line,
        "Add the callback that averages the models at the end of each block.",
        "It also copies the initial weights of worker 0 to all workers.",
        "blocks 4",
        write,
    )


RULES = (
    begin_with_an_engine,
    pass_local,
    take_movable_optimizers,
    train_with_fit,
    add_block_momentum,
)
