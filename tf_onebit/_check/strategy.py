"""The list "To a strategy" of docs/porting.md: one function for each rule, in its order."""

import ast
from collections.abc import Iterator

from tf_onebit._check import files, own_steps, scope, stock_strategies, suggestions
from tf_onebit._check.finding import Finding
from tf_onebit._check.program import Program, is_within
from tf_onebit._check.training import is_optimizer, loops, receiver
from tf_onebit._check.uses import (
    has_seed,
    horovod_imports,
    own_modules,
    own_strategies,
    strategy_name,
    tf_strategies,
    uses_both,
)

# What begins to use TensorFlow. After it, a strategy of several workers cannot be made.
_BEGINS = (
    *("tensorflow.constant", "tensorflow.Variable", "tensorflow.zeros", "tensorflow.ones"),
    *("tensorflow.convert_to_tensor", "tensorflow.data.Dataset", "tensorflow.random.normal"),
    *("tensorflow.random.uniform", "tensorflow.config.list_logical_devices"),
    *("keras.metrics", "keras.ops", "keras.layers.Dropout"),
)


def make_the_strategy(program: Program) -> Iterator[Finding]:
    """Yields where a program without a strategy makes one."""
    if tf_strategies(program) or own_strategies(program) or _gets_a_strategy(program):
        return
    text = f"strategy = {stock_strategies.strategy_text(program)}"
    yield Finding(
        suggestions.last_import(program),
        "Make the strategy after this line.",
        "TensorFlow does not let it be made after any other use of TensorFlow.",
        "strategy 1, 6",
        [*suggestions.new_imports(program, "tf_onebit"), suggestions.new_exchange(program), text],
    )


def _gets_a_strategy(program: Program) -> bool:
    """Tells whether the program opens a scope of a strategy that it does not make itself."""
    return bool(program.calls_of_method("scope"))


def make_the_strategy_first(program: Program) -> Iterator[Finding]:
    """Yields strategies that are made after another use of TensorFlow."""
    for call in own_strategies(program):
        is_at_once = program.statement(call) in program.tree.body
        if is_at_once and _is_multi_worker(program, call):
            for use in _uses_before(program, call)[:1]:
                yield Finding(
                    call.lineno,
                    f"Make the strategy before line {use.lineno}.",
                    "That line uses TensorFlow, and then this strategy cannot be made any more.",
                    "strategy 1",
                )


def _uses_before(program: Program, strategy: ast.Call) -> list[ast.Call]:
    """Returns the calls of the module that begin to use TensorFlow before a line."""
    return [
        call
        for call in program.calls
        if call.lineno < strategy.lineno and program.function(call) is None
        if is_optimizer(program, call)
        or any(is_within(program.called(call), name) for name in _BEGINS)
    ]


def set_a_seed(program: Program) -> Iterator[Finding]:
    """Yields a finding if no line sets a seed, and no other module of the program may."""
    if not has_seed(program) and not own_modules(program) and _has_several_workers(program):
        yield Finding(
            suggestions.last_import(program),
            "Set the same seed on all workers, after the strategy is made.",
            "Then they shuffle alike, and a resumed run has the same bits.",
            "strategy 2",
            suggestions.new_seed(program),
        )


def use_the_scope(program: Program) -> Iterator[Finding]:
    """Yields models and optimizers that are made outside of a scope."""
    if not scope.is_entered_elsewhere(program) and not uses_both(program):
        yield from scope.outside_of_scope(program, strategy_name(program))


def write_files_on_one_worker(program: Program) -> Iterator[Finding]:
    """Yields lines that write a file on every worker."""
    condition = f"if not {strategy_name(program)}.cluster_resolver.task_id:"
    if _has_several_workers(program):
        yield from files.written_by_all(program, condition, "strategy 7")


def _has_several_workers(program: Program) -> bool:
    """Tells whether the strategy has several processes, or is still to be made."""
    made = [*own_strategies(program), *tf_strategies(program)]
    return not made or any(_is_multi_worker(program, call) for call in made)


def _is_multi_worker(program: Program, call: ast.Call) -> bool:
    return program.called(call).endswith("MultiWorkerMirroredStrategy")


def run_own_loops_by_the_strategy(program: Program) -> Iterator[Finding]:
    """Yields loops whose steps no strategy runs."""
    if _runs_steps(program) or uses_both(program):
        return
    for loop in loops(program):
        yield Finding(
            loop.gradient.lineno,
            "Run this step by strategy.run, on a dataset of "
            "strategy.experimental_distribute_dataset, or port it to Horovod (--to horovod).",
            "Over Horovod an own loop changes less: only the tape is wrapped.",
            "strategy 9",
        )


def _runs_steps(program: Program) -> bool:
    name = strategy_name(program)
    return any(
        receiver(call) == name or "strategy" in receiver(call).lower()
        for call in program.calls_of_method("run")
    )


def save_all_of_the_state(program: Program) -> Iterator[Finding]:
    """Yields Keras' own backups."""
    yield from files.backups_of_keras(program, "strategy 12")


def remove_horovod(program: Program) -> Iterator[Finding]:
    """Yields the import of Horovod in a program that shall use a strategy only."""
    imports = horovod_imports(program)
    if imports and not own_strategies(program):
        uses = [
            n.lineno
            for n in ast.walk(program.tree)
            if isinstance(n, ast.Name) and n.id == imports[0].local
        ]
        where = ", ".join(map(str, sorted(set(uses))))
        yield Finding(
            imports[0].node.lineno,
            f"Remove Horovod from the program (lines {where})." if where else "Remove this import.",
            "A strategy wraps optimizers, divides the data and begins alike by itself. "
            "Or stay with Horovod: --to horovod.",
            "strategy 1",
            also=uses,
        )


RULES = (
    remove_horovod,
    make_the_strategy,
    *stock_strategies.RULES,
    make_the_strategy_first,
    set_a_seed,
    use_the_scope,
    write_files_on_one_worker,
    own_steps.apply_gradients,
    run_own_loops_by_the_strategy,
    save_all_of_the_state,
)
