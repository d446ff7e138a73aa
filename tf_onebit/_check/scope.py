"""Lines that belong into a strategy's scope, and stand outside of it."""

import ast
import itertools
from collections.abc import Iterator

from tf_onebit._check.finding import Finding
from tf_onebit._check.flow import calls_of_function
from tf_onebit._check.program import Program, is_within
from tf_onebit._check.suggestions import short
from tf_onebit._check.training import (
    compiles,
    fits,
    given_optimizers,
    is_method,
    is_optimizer,
    loops,
    models,
    receiver,
)

_MAKES_VARIABLES = ("keras.Model", "keras.Sequential", "keras.saving.load_model")
_MOST_LISTED = 6
_LAYERS = ("keras.layers", "keras.applications", "keras.Input")


def outside_of_scope(program: Program, strategy: str) -> Iterator[Finding]:
    """Yields one finding for each block of lines that make models or optimizers.

    Args:
        program: the program.
        strategy: its name in the program.
    """
    found = [one for s in _statements(program) for one in _where_to_open(program, s)]
    outside = {s: None for s in found if _is_outside(program, s)}
    by_block = sorted(outside, key=lambda s: (_block(program, s), s.lineno))
    for _, group in itertools.groupby(by_block, lambda s: _block(program, s)):
        yield _finding(program, list(group), strategy)


def is_entered_elsewhere(program: Program) -> bool:
    """Tells whether a scope is opened in another way than by `with`."""
    opened = program.calls_of_method("scope")
    return any(not isinstance(program.statement(call), ast.With) for call in opened)


def _block(program: Program, statement: ast.stmt) -> int:
    return getattr(next(program.parents(statement)), "lineno", 0)


def _where_to_open(program: Program, statement: ast.stmt) -> list[ast.stmt]:
    """Returns the statements to put into a scope so that one runs there.

    A function that makes a model and does not train it is called in the scope as a whole.
    """
    function = program.function(statement)
    calls = calls_of_function(program, function) if function is not None else []
    trained = [*fits(program), *(loop.gradient for loop in loops(program))]
    trains = any(program.function(one) is function for one in trained)
    if function is None or not calls or trains or is_method(program, function):
        return [statement]
    return [program.statement(call) for call in calls if program.function(call) is not function]


def _finding(program: Program, group: list[ast.stmt], strategy: str) -> Finding:
    lines = [number for s in group for number in range(s.lineno, (s.end_lineno or s.lineno) + 1)]
    source = [line for s in group for line in program.rewritten(s, {})]
    return Finding(
        lines[0],
        f"Put {_listed([s.lineno for s in group])} into the scope of the strategy.",
        "A model or an optimizer that is made outside of it is an error.",
        "strategy 3",
        short([f"with {strategy}.scope():", *(f"    {line}" for line in source)]),
        lines[1:],
    )


def _listed(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return "this line"
    if len(numbers) > _MOST_LISTED:
        return f"what makes the model in lines {numbers[0]} to {numbers[-1]}"
    *others, last = map(str, numbers)
    return f"lines {', '.join(others)} and {last}"


def _statements(program: Program) -> Iterator[ast.stmt]:
    """Yields the statements that make or compile what is trained."""
    for call in compiles(program):
        yield program.statement(call)
        for optimizer in given_optimizers(program, call):
            if is_optimizer(program, optimizer):
                yield program.statement(optimizer)
    trained = (*compiles(program), *fits(program))
    waiting: list[tuple[str, ast.expr]] = [(receiver(call), call) for call in trained]
    for loop in loops(program):
        waiting += [(name, loop.gradient) for name in (*models(program), receiver(loop.apply))]
    seen: set[ast.expr] = set()
    while waiting:
        name, place = waiting.pop()
        for value in program.values_near(name, place):
            if value not in seen and _makes_variables(program, value):
                seen.add(value)
                yield program.statement(value)
                waiting += [(one, value) for one in _made_of(program, value)]


def _makes_variables(program: Program, value: ast.expr) -> bool:
    """Tells whether an expression makes a model, layers or an optimizer, or calls a layer."""
    if not isinstance(value, ast.Call):
        return False
    called = program.called(value)
    is_known = any(is_within(called, name) for name in (*_MAKES_VARIABLES, *_LAYERS))
    of_program = isinstance(value.func, ast.Name) and value.func.id in program.definitions
    applied = isinstance(value.func, ast.Call) or (
        isinstance(value.func, ast.Name) and value.func.id in program.values
    )
    return is_known or of_program or applied or is_optimizer(program, value)


def _made_of(program: Program, value: ast.expr) -> set[str]:
    """Returns the names in an expression of what makes variables, too."""
    names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
    return {
        name
        for name in names
        if any(_is_of_keras(program, one) for one in program.values_near(name, value))
    }


def _is_of_keras(program: Program, value: ast.expr) -> bool:
    called = {program.called(node) for node in ast.walk(value)}
    is_layer = any(is_within(one, name) for one in called for name in (*_MAKES_VARIABLES, *_LAYERS))
    return (
        is_layer or is_optimizer(program, value) or isinstance(getattr(value, "func", 0), ast.Call)
    )


def _is_outside(program: Program, node: ast.AST) -> bool:
    return _certainly_outside(program, node, set())


def _certainly_outside(program: Program, node: ast.AST, seen: set[str]) -> bool:
    """Tells whether no scope is open where a line runs, as far as the program shows."""
    if any(_opens_scope(around) for around in program.parents(node)):
        return False
    function = program.function(node)
    if function is None:
        return True
    if function.name in seen:
        return True
    calls = calls_of_function(program, function)
    has_scope = any(_opens_scope(n) for n in ast.walk(program.tree))
    if has_scope and (not calls or is_method(program, function)):
        return False  # Another module may call it.
    return all(_certainly_outside(program, c, seen | {function.name}) for c in calls)


def _opens_scope(node: ast.AST) -> bool:
    """Tells whether a `with` opens some scope. Its name is all that shows it."""
    return isinstance(node, ast.With) and any(
        "scope" in ast.unparse(item.context_expr) for item in node.items
    )
