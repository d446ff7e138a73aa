"""Origins of a program's values, and the conditions under which its lines run."""

import ast
import re
from collections.abc import Iterator

from tf_onebit._check.program import Program, is_within

# Names that tell a worker which one it is.
_OF_A_WORKER = re.compile(
    r"rank|task_(id|type|index)|chief|should_checkpoint|worker|shard|master|is_main", re.IGNORECASE
)
# Packages that do nothing for one of several workers by themselves.
_KNOWN = (
    *("keras", "numpy", "pandas", "sklearn", "tensorflow", "tensorflow_datasets", "tf_onebit"),
    "horovod",
)
_ENDS = (ast.Return, ast.Continue, ast.Break, ast.Raise)


def reached(program: Program, *roots: ast.AST) -> Iterator[ast.AST]:
    """Yields all nodes that may contribute to some expressions: by names and by functions."""
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        for node in ast.walk(waiting.pop()):
            yield node
            if not isinstance(node, ast.Name | ast.Attribute):
                continue
            name = ast.unparse(node)
            if name not in seen:
                seen.add(name)
                waiting += program.values.get(name, [])
                waiting += program.definitions.get(name, [])


def depends_on_worker(program: Program, *roots: ast.AST) -> bool:
    """Tells whether expressions may differ between workers, as far as names tell."""
    for node in reached(program, *roots):
        if (program.full_name(node) or "").startswith("hvd."):
            return True
        name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        if isinstance(name, str) and _OF_A_WORKER.search(name):
            return True
    return False


def comes_from_elsewhere(program: Program, *roots: ast.expr) -> bool:
    """Tells whether code that is not read may contribute to some expressions."""
    names = {node.id for node in reached(program, *roots) if isinstance(node, ast.Name)}
    imported = [one for one in program.imports if one.local in names]
    is_given = any(isinstance(r, ast.Name) and r.id not in program.values for r in roots)
    return is_given or any(not any(is_within(i.module, p) for p in _KNOWN) for i in imported)


def is_for_some_workers(program: Program, node: ast.AST) -> bool:
    """Tells whether a line runs on some of the workers only, as far as conditions show."""
    return _is_for_some_workers(program, node, set())


def _is_for_some_workers(program: Program, node: ast.AST, seen: set[str]) -> bool:
    inside = node
    for around in program.parents(node):
        if isinstance(around, ast.If | ast.IfExp | ast.While):
            if inside is not around.test and depends_on_worker(program, around.test):
                return True
        if isinstance(around, ast.BoolOp) and depends_on_worker(program, *around.values[:-1]):
            return True
        if _comes_after_an_exit(program, around, inside):
            return True
        if isinstance(around, ast.FunctionDef) and around.name not in seen:
            seen.add(around.name)
            calls = calls_of_function(program, around)
            if calls and all(_is_for_some_workers(program, call, seen) for call in calls):
                return True
        inside = around
    return False


def _comes_after_an_exit(program: Program, around: ast.AST, inside: ast.AST) -> bool:
    """Tells whether some workers have left the block before the statement `inside`."""
    body = getattr(around, "body", None)
    if not isinstance(body, list) or inside not in body:
        return False
    return any(
        isinstance(one, ast.If) and _leaves(one.body[-1]) and depends_on_worker(program, one.test)
        for one in body[: body.index(inside)]
    )


def _leaves(statement: ast.stmt) -> bool:
    is_exit = isinstance(statement, ast.Expr) and "exit" in ast.unparse(statement)
    return isinstance(statement, _ENDS) or is_exit


def calls_of_function(
    program: Program, function: ast.FunctionDef | ast.AsyncFunctionDef
) -> list[ast.Call]:
    """Returns the calls that may be of a function of the program, by its name."""
    names = ((call, call.func) for call in program.calls)
    return [
        call
        for call, func in names
        if (isinstance(func, ast.Name) and func.id == function.name)
        or (isinstance(func, ast.Attribute) and func.attr == function.name)
    ]
