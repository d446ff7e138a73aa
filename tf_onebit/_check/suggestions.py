"""Lines to write, with the program's own names."""

import ast
from collections.abc import Mapping, Sequence

from tf_onebit._check.program import Program, keyword
from tf_onebit._check.training import OPTIMIZERS, origins

_MOST_LINES = 8
# Optimizers of Keras that training in blocks takes from this package.
MOVABLE = ("Adam", "AdamW", "Nadam")


def onebit(program: Program) -> str:
    """Returns the name of this package in the program, or the one that it should get."""
    return program.local_name("tf_onebit") or "tf_onebit"


def hvd(program: Program) -> str:
    """Returns the name of Horovod in the program, or the one that it should get."""
    name = program.local_name("hvd") or "hvd"
    return "hvd" if name.startswith("horovod.") else name


def keras(program: Program) -> str:
    return program.local_name("keras") or "keras"


def exchange(program: Program) -> str:
    """Returns the text of an exchange: with a warm start, or of workers that train in blocks."""
    package = onebit(program)
    if program.in_blocks:
        return f"{package}.Local()"
    return f"{package}.WarmStart({package}.OneBit(), steps=1000)"


def new_exchange(program: Program) -> str:
    """Returns the line that makes an exchange."""
    comment = "" if program.in_blocks else "  # a tenth of the job's steps"
    return f"exchange = {exchange(program)}{comment}"


def new_imports(program: Program, *modules: str) -> list[str]:
    """Returns the import statements that the program lacks."""
    statements = {
        "keras": "import keras",
        "tf_onebit": "import tf_onebit",
        "hvd": "import tf_onebit.horovod as hvd",
    }
    return [statements[module] for module in modules if program.local_name(module) is None]


def new_seed(program: Program) -> list[str]:
    """Returns the lines that set a seed."""
    return [*new_imports(program, "keras"), f"{keras(program)}.utils.set_random_seed(1)"]


def last_import(program: Program) -> int:
    """Returns the line of the last import before the program does something with Keras."""
    line = 1
    for statement in program.tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            line = statement.end_lineno or line
        elif any(program.called(n) for n in _run_at_once(statement) if isinstance(n, ast.Call)):
            break
    return line


def _run_at_once(statement: ast.stmt) -> Sequence[ast.AST]:
    is_definition = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return [] if is_definition else list(ast.walk(statement))


def short(lines: Sequence[str]) -> list[str]:
    """Returns lines if they are few enough to show, or nothing."""
    return list(lines) if len(lines) <= _MOST_LINES else []


def changed(program: Program, changes: Mapping[ast.expr, str]) -> list[str]:
    """Returns a statement with other text for parts of it, or these parts if it is long."""
    statement = program.statement(next(iter(changes)))
    is_simple = not hasattr(statement, "body")
    lines = short(program.rewritten(statement, changes)) if is_simple else []
    return lines or list(changes.values())


def optimizer_text(program: Program, node: ast.expr) -> str:
    """Returns the text that makes an optimizer, also for one that Keras makes of its name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = OPTIMIZERS.get(node.value.lower(), node.value)
        if program.in_blocks and name in MOVABLE:
            return f"{onebit(program)}.optimizers.{name}(beta_1=0.5)"
        return f"{keras(program)}.optimizers.{name}()"
    return movable(program, node) if program.in_blocks else program.text(node)


def movable(program: Program, node: ast.expr) -> str:
    """Returns the text of an optimizer whose moments can be moved with the model."""
    name = program.called(node).removeprefix("keras.optimizers.")
    if not isinstance(node, ast.Call) or name not in MOVABLE:
        return program.text(node)
    given = [*map(program.text, node.args)]
    given += [f"{one.arg}={program.text(one.value)}" for one in node.keywords if one.arg]
    has_beta_1 = keyword(node, "beta_1", 2 if name == "AdamW" else 1) is not None
    given += [] if has_beta_1 else ["beta_1=0.5"]
    return f"{onebit(program)}.optimizers.{name}({', '.join(given)})"


def with_callbacks(program: Program, fit: ast.Call, added: Sequence[str]) -> tuple[int, list[str]]:
    """Returns the line that names the callbacks of a `fit`, and how to write it with others."""
    given = keyword(fit, "callbacks")
    if given is None or (isinstance(given, ast.Constant) and given.value is None):
        return fit.lineno, [f"callbacks=[{', '.join(added)}],"]
    (made, *others) = origins(program, given)
    if isinstance(made, ast.List) and not others:
        inside = ", ".join([*added, *map(program.text, made.elts)])
        name = "callbacks=" if made is given else f"{ast.unparse(given)} = "
        return made.lineno, [f"{name}[{inside}]{',' if made is given else ''}"]
    return given.lineno, [f"callbacks=[{', '.join(added)}, *{program.text(given)}],"]
