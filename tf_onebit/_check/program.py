"""The syntax tree of a program, with the full names of what it imports, and its calls."""

import ast
import collections
import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# One name for what several modules offer. The first that fits is replaced, and then the next.
_SAME = {
    "tensorflow.compat.v2": "tensorflow",
    "tensorflow.keras": "keras",
    "keras.models.Sequential": "keras.Sequential",
    "keras.models.Model": "keras.Model",
    "keras.models.load_model": "keras.saving.load_model",
    "keras.models.save_model": "keras.saving.save_model",
    "horovod.tensorflow.keras": "hvd",
    "horovod.tensorflow": "hvd",
    "horovod.keras": "hvd",
    "tf_onebit.horovod": "hvd",
    "hvd.keras": "hvd",
    "hvd.callbacks": "hvd",
    "tf_onebit.exchanges": "tf_onebit",
}
# Nodes with a place in the source.
Placed = ast.stmt | ast.expr
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Import(NamedTuple):
    """A name that an import statement binds.

    Attributes:
        node: the statement.
        local: the name in the program.
        module: full name of the module, or of the object in it.
    """

    node: ast.Import | ast.ImportFrom
    local: str
    module: str


def is_within(name: str | None, package: str) -> bool:
    return name is not None and f"{name}.".startswith(f"{package}.")


def _normalized(name: str) -> str:
    for other, usual in _SAME.items():
        if is_within(name, other):
            name = usual + name[len(other) :]
    return name


class Program:
    """A program that has been read, and not run.

    Attributes:
        path: string, as the user gave it.
        tree: the module.
        imports: list of `Import`.
        calls: list of all calls, in the order of their lines.
        values: the values that each name gets somewhere. Attributes have names with dots.
        definitions: functions and classes, by name.
        in_blocks: whether workers shall train in blocks.
    """

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.in_blocks = False
        self.tree = ast.parse(source)
        self._source = source.encode()
        lines = self._source.splitlines(keepends=True)
        self._line_starts = list(itertools.accumulate(map(len, lines), initial=0))
        nodes = list(ast.walk(self.tree))
        self._parents = {c: node for node in nodes for c in ast.iter_child_nodes(node)}
        self.imports = [one for node in nodes for one in _imports(node)]
        self._full_names = {one.local: one.module for one in self.imports}
        self.calls = [node for node in nodes if isinstance(node, ast.Call)]
        self.calls.sort(key=lambda node: (node.lineno, node.col_offset))
        self.values: dict[str, list[ast.expr]] = collections.defaultdict(list)
        self.definitions: dict[str, list[Definition]] = collections.defaultdict(list)
        for node in nodes:
            for target, value in _assignments(node):
                self.values[ast.unparse(target)].append(value)
            if isinstance(node, Definition):
                self.definitions[node.name].append(node)
        self._uses: dict[str | None, list[ast.expr]] = collections.defaultdict(list)
        for node in nodes:
            if isinstance(node, ast.Name | ast.Attribute):
                self._uses[self.full_name(node)].append(node)

    def full_name(self, node: ast.AST) -> str | None:
        """Returns the name of an imported object, such as `keras.Model`, or None for others."""
        if isinstance(node, ast.Attribute):
            base = self.full_name(node.value)
            return None if base is None else _normalized(f"{base}.{node.attr}")
        if isinstance(node, ast.Name) and node.id in self._full_names:
            return _normalized(self._full_names[node.id])
        return None

    def called(self, call: ast.AST) -> str:
        """Returns the full name of what a call calls, or an empty string."""
        return (self.full_name(call.func) or "") if isinstance(call, ast.Call) else ""

    def calls_of(self, *names: str) -> list[ast.Call]:
        """Returns the calls of objects or of what is in packages, by full names."""
        return [c for c in self.calls if any(is_within(self.called(c), name) for name in names)]

    def calls_of_method(self, name: str) -> list[ast.Call]:
        """Returns the calls of an attribute of this name, of any object."""
        return [c for c in self.calls if isinstance(c.func, ast.Attribute) and c.func.attr == name]

    def uses(self, name: str) -> list[ast.expr]:
        """Returns the places where an object is named, by its full name."""
        return sorted(self._uses.get(name, []), key=lambda node: node.lineno)

    def local_name(self, module: str) -> str | None:
        """Returns the text by which the program reaches a module, or None."""
        for one in self.imports:
            if one.module == module or (_normalized(one.module) == module and one.local):
                return one.local
        tensorflow = next((i.local for i in self.imports if i.module == "tensorflow"), None)
        return f"{tensorflow}.keras" if module == "keras" and tensorflow else None

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields the nodes around a node, from the inside to the outside."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        """Returns the innermost statement that has a node."""
        around = (node, *self.parents(node))
        return next(n for n in around if isinstance(n, ast.stmt))

    def function(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Returns the innermost function around a node, or None."""
        around = self.parents(node)
        return next(
            (n for n in around if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)), None
        )

    def values_near(self, name: str, place: ast.AST) -> list[ast.expr]:
        """Returns the values that a name gets in the function of a place, or else in the module."""
        values = self.values.get(name, [])
        functions = dict.fromkeys((self.function(place), None))
        found = ([v for v in values if self.function(v) is function] for function in functions)
        return next(filter(None, found), [])

    def target(self, node: ast.AST) -> str | None:
        """Returns the name that a value gets, or None."""
        found = (name for name, values in self.values.items() if any(v is node for v in values))
        return next(found, None)

    def rewritten(self, node: Placed, changes: Mapping[ast.expr, str]) -> list[str]:
        """Returns the source of a node with other text for some of its parts: list of lines."""
        start, end = self._span(node)
        pieces = []
        for part in sorted(changes, key=self._span):
            first, last = self._span(part)
            pieces += [self._source[start:first], changes[part].encode()]
            start = last
        text = b"".join([*pieces, self._source[start:end]]).decode()
        first_line, *others = text.split("\n")
        margin = " " * node.col_offset
        return [first_line, *(line.removeprefix(margin) for line in others)]

    def text(self, node: ast.expr) -> str:
        """Returns an expression on one line, as the program writes it."""
        lines = self.rewritten(node, {})
        return lines[0] if len(lines) == 1 else ast.unparse(node)

    def _span(self, node: Placed) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return (
            self._line_starts[node.lineno - 1] + node.col_offset,
            self._line_starts[end_line - 1] + end_column,
        )


def keyword(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Returns an argument of a call, or None.

    Args:
        name: of the argument.
        position: its place among arguments without names, or None.
    """
    for one in call.keywords:
        if one.arg == name:
            return one.value
    if position is not None and position < len(call.args):
        if not any(isinstance(arg, ast.Starred) for arg in call.args[: position + 1]):
            return call.args[position]
    return None


def has_hidden_arguments(call: ast.Call) -> bool:
    """Tells whether a call has arguments such as `*values` or `**options`."""
    starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    return starred or any(one.arg is None for one in call.keywords)


def _imports(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            local = alias.asname or alias.name.partition(".")[0]
            yield Import(node, local, alias.name if alias.asname else local)
            if "." in alias.name and not alias.asname:
                yield Import(node, alias.name, alias.name)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            module = f"{'.' * node.level}{node.module or ''}"
            yield Import(node, alias.asname or alias.name, f"{module}.{alias.name}")


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields pairs of a target and its value. Values of tuples are taken apart if they can be."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _pairs(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.comprehension):
        yield from _pairs(node.target, node.iter)
    elif isinstance(node, ast.withitem) and node.optional_vars:
        yield node.optional_vars, node.context_expr


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value
        return
    same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
    values = value.elts if same and isinstance(value, ast.Tuple | ast.List) else None
    for place, one in enumerate(target.elts):
        yield from _pairs(one, values[place] if values else value)
