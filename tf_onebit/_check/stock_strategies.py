"""TensorFlow's strategies, which those of this package replace."""

import ast
from collections.abc import Iterator

from tf_onebit._check import suggestions
from tf_onebit._check.finding import Finding
from tf_onebit._check.program import Program
from tf_onebit._check.uses import tf_strategies

_REPLACED = ("MirroredStrategy", "MultiWorkerMirroredStrategy")
_NOT_TAKEN = ("communication", "cross_device_ops")


def strategy_text(program: Program, name: str = "MultiWorkerMirroredStrategy") -> str:
    """Returns the text that makes a strategy of this package."""
    return f"{suggestions.onebit(program)}.distribute.{name}(exchange)"


def replace_the_import(program: Program) -> Iterator[Finding]:
    """Yields the import of TensorFlow, where its strategy is replaced."""
    strategies = tf_strategies(program)
    if not strategies or program.local_name("tf_onebit"):
        return
    imported = next((one for one in program.imports if one.module == "tensorflow"), None)
    if imported is None:
        line, what = suggestions.last_import(program), "Import tf_onebit."
    else:
        line = imported.node.lineno
        names = [n for n in ast.walk(program.tree) if isinstance(n, ast.Name)]
        uses = sum(node.id == imported.local for node in names)
        needed = uses > len(strategies)
        what = (
            "Import tf_onebit, too."
            if needed
            else f"Import tf_onebit in place of {imported.module}."
        )
    yield Finding(line, what, "It has the strategy.", "strategy 1", ["import tf_onebit"])


def replace_the_strategy(program: Program) -> Iterator[Finding]:
    """Yields TensorFlow's strategies."""
    for call in tf_strategies(program):
        name = program.called(call).rpartition(".")[2]
        if name not in _REPLACED:
            yield Finding(
                call.lineno,
                f"Replace {name} by a MultiWorkerMirroredStrategy.",
                f"tf_onebit has no {name}: its workers are alike, and exchange gradients.",
                "strategy 1",
                [
                    suggestions.new_exchange(program),
                    strategy_text(program),
                ],
            )
            continue
        yield Finding(
            call.lineno,
            f"Replace TensorFlow's strategy by tf_onebit's. {_left_out(call)}".strip(),
            "TensorFlow's sends gradients in full precision.",
            "strategy 1, 6",
            [suggestions.new_exchange(program), *_with_other_strategy(program, call, name)],
        )


def _left_out(call: ast.Call) -> str:
    given = [one.arg for one in call.keywords if one.arg in _NOT_TAKEN]
    return f"Leave out {given[0]}, which it does not take." if given else ""


def _with_other_strategy(program: Program, call: ast.Call, name: str) -> list[str]:
    given = [program.text(arg) for arg in call.args] + [
        f"{one.arg}={program.text(one.value)}" for one in call.keywords if one.arg not in _NOT_TAKEN
    ]
    new = f"{suggestions.onebit(program)}.distribute.{name}"
    text = f"{new}({', '.join(['exchange', *given])})"
    return suggestions.changed(program, {call: text})


RULES = (replace_the_import, replace_the_strategy)
