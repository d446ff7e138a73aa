"""The rules of docs/architecture.md: which room may import which."""

import ast
import functools
import graphlib
import pathlib
import sys

import pytest

import tf_onebit
from tests.support.programs import ROOT, run_python

PACKAGE = ROOT / "tf_onebit"
MODULES = sorted(PACKAGE.rglob("*.py"))

# The collectives except the drivers.
COLLECTIVES = [
    *("echo", "engine", "horovod_size", "ordered_sum"),
    *("requests", "whereabouts", "wire_types"),
]
ENGINE = ["requests", "whereabouts"]
# The parts of the package that each part may import. The longest prefix counts.
MAY_IMPORT = {
    "tf_onebit": ["_libraries", "_version"],
    "tf_onebit._cli": [
        "_version",
        "_check",
        "_doctor",
        "_launch",
        "_preflight.bench",
        "_preflight.plan",
    ],
    "tf_onebit._check": ["_check"],
    "tf_onebit._doctor": [
        "_cluster_spec",
        "_doctor",
        "_libraries",
        "ops",
        "_start_up_notes",
        "_version",
    ],
    "tf_onebit._launch": ["_launch", "_start_up_notes"],
    "tf_onebit._libraries": [],
    "tf_onebit._start_up_notes": [],
    "tf_onebit._version": [],
    "tf_onebit._cluster_spec": [],
    "tf_onebit._configurable": [],
    "tf_onebit._tuning_rules": [],
    "tf_onebit._formatting": [],
    "tf_onebit.training": ["_training"],
    "tf_onebit.planner": ["_formatting", "planner"],
    "tf_onebit._measurement": [
        "collectives.echo",
        "collectives.requests",
        "exchanges",
        "_layout",
        "_measurement",
        "ops",
        "planner",
    ],
    "tf_onebit._preflight": [
        "_configurable",
        "_bmuf.arguments",
        "_bmuf.fragments",
        "_bmuf.variables",
        "collectives.echo",
        "collectives.engine",
        "collectives.horovod",
        "collectives.requests",
        "distribute",
        "exchanges",
        "_formatting",
        "_framework_internals",
        "horovod",
        "_measurement",
        "model_parallel",
        "optimizers",
        "planner",
        "_preflight",
        "_shares",
        "_start_up_notes",
        "_training",
    ],
    "tf_onebit._layout": [],
    "tf_onebit._validation": [],
    "tf_onebit._shares": [],
    "tf_onebit.model_parallel": [
        "collectives",
        "exchanges.handshake",
        "_framework_internals",
        "model_parallel",
        "_shares",
        "_training",
        "_validation",
    ],
    "tf_onebit.optimizers": ["optimizers", "_validation"],
    "tf_onebit.ops": ["_layout", "_libraries", "ops", "_version"],
    "tf_onebit.transforms": [
        "collectives.requests",
        "_configurable",
        "_layout",
        "ops",
        "_validation",
        "transforms",
    ],
    "tf_onebit._framework_internals": ["_framework_internals"],
    "tf_onebit.collectives": [
        *(f"collectives.{part}" for part in COLLECTIVES),
        "_framework_internals.tf_variables",
    ],
    **{f"tf_onebit.collectives.{part}": [] for part in COLLECTIVES},
    "tf_onebit.collectives.engine": [
        *(f"collectives.{part}" for part in ENGINE),
        "_framework_internals.tf_variables",
    ],
    "tf_onebit.collectives.horovod": ["collectives", "_framework_internals.tf_variables"],
    "tf_onebit.collectives.echo": ["collectives.requests"],
    "tf_onebit.collectives.ordered_sum": ["collectives.requests"],
    "tf_onebit.exchanges": [
        "collectives.echo",
        "collectives.ordered_sum",
        "collectives.requests",
        "_configurable",
        "exchanges",
        "_layout",
        "ops",
        "_shares",
        "_validation",
        "transforms",
        "_version",
    ],
    "tf_onebit._bmuf": [
        "_framework_internals",
        "_bmuf",
        "collectives.requests",
        "_configurable",
        "exchanges",
        "ops",
        "optimizers",
        "_shares",
        "_training",
        "_validation",
    ],
    "tf_onebit._bmuf.equations": [],
    "tf_onebit._bmuf.connections": [],
    "tf_onebit._monitor": [
        "_bmuf.connections",
        "_framework_internals",
        "planner",
        "exchanges",
        "_formatting",
        "_monitor",
        "_training",
    ],
    "tf_onebit.callbacks": [
        "_bmuf",
        "callbacks",
        "collectives.horovod_size",
        "collectives.requests",
        "_configurable",
        "data",
        "exchanges",
        "_framework_internals",
        "_monitor",
        "optimizers",
        "_shares",
        "_training",
        "_tuning_rules",
        "_validation",
        "_version",
    ],
    "tf_onebit._training": [
        "planner",
        "collectives.requests",
        "_configurable",
        "exchanges",
        "_formatting",
        "_framework_internals",
        "_measurement",
        "ops",
        "_shares",
        "_validation",
        "_training",
    ],
    "tf_onebit.data": [
        "collectives.horovod_size",
        "collectives.requests",
        "data",
        "_framework_internals",
    ],
    "tf_onebit.distribute": [
        "_cluster_spec",
        "collectives",
        "distribute",
        "exchanges",
        "_framework_internals",
        "_shares",
        "_training",
        "_validation",
    ],
    "tf_onebit.horovod": [
        "collectives",
        "_configurable",
        "exchanges",
        "_framework_internals",
        "horovod",
        "ops",
        "_shares",
        "_training",
    ],
}
# The modules of `framework_internals` about Keras. Rooms without Keras may import the others.
OF_KERAS = [
    *("hooks", "keras_calls", "keras_data", "keras_models", "keras_optimizers"),
    *("keras_random", "keras_variables"),
]
# The places that may import other packages. TensorFlow and NumPy are allowed everywhere.
USERS = {
    "keras": [
        "tf_onebit._bmuf.arguments",
        "tf_onebit._bmuf.callback",
        "tf_onebit._bmuf.outer_optimizer",
        "tf_onebit._bmuf.training_optimizers",
        "tf_onebit._bmuf.variables",
        "tf_onebit.callbacks",
        "tf_onebit.data",
        "tf_onebit.distribute",
        *(f"tf_onebit._framework_internals.{part}" for part in OF_KERAS),
        "tf_onebit.horovod",
        "tf_onebit.model_parallel",
        "tf_onebit._monitor",
        "tf_onebit.optimizers",
        "tf_onebit._preflight",
        "tf_onebit._training.adds_exchanged",
        "tf_onebit._training.compiled_rules",
        "tf_onebit._training.group_optimizer",
        "tf_onebit._training.local_updates",
        "tf_onebit._training.model_optimizers",
        "tf_onebit._training.optimizer",
    ],
    "horovod": ["tf_onebit.collectives.horovod", "tf_onebit._doctor.horovod", "tf_onebit.horovod"],
}


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_within(name, packages):
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def imports_of(path):
    """Returns all modules that a file imports. Names from packages count as modules."""
    names = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            is_package = (ROOT / pathlib.Path(*node.module.split("."))).is_dir()
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                path_of_submodule = ROOT / pathlib.Path(*submodule.split("."))
                exists = path_of_submodule.is_dir() or path_of_submodule.with_suffix(".py").exists()
                names.add(submodule if is_package and exists else node.module)
    return names


def modules_that_import(is_forbidden):
    """Returns the imports of modules that are against a rule, by module.

    Args:
        is_forbidden: function of the name of a module and of one that it imports.
    """
    found = {}
    for path in MODULES:
        name = module_name(path)
        against_it = sorted(other for other in imports_of(path) if is_forbidden(name, other))
        if against_it:
            found[name] = against_it
    return found


def part_of(name):
    return max((prefix for prefix in MAY_IMPORT if is_within(name, [prefix])), key=len)


def test_type_checkers_see_the_public_names():
    """The package imports them on first use, so a stub lists them a second time."""
    stub = {
        alias.asname: node.module
        for node in ast.walk(tree_of(PACKAGE / "__init__.pyi"))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    submodules = dict.fromkeys(tf_onebit._SUBMODULES, "tf_onebit")
    version = {"__version__": "tf_onebit._version"}
    assert stub == tf_onebit._MODULE_OF | submodules | version


def test_every_module_belongs_to_a_part():
    names = map(module_name, MODULES)
    assert [name for name in names if part_of(name) == "tf_onebit"] == ["tf_onebit"]


def test_imports_within_the_package_run_one_way():
    def is_forbidden(name, imported):
        allowed = [f"tf_onebit.{module}" for module in MAY_IMPORT[part_of(name)]]
        return is_within(imported, ["tf_onebit"]) and not is_within(imported, allowed)

    assert modules_that_import(is_forbidden) == {}


def test_no_module_imports_itself_by_way_of_others():
    # An import from outside of a package also runs the imports of its __init__.
    names = set(map(module_name, MODULES)) - {"tf_onebit"}
    imports = {}
    for path in MODULES:
        module = module_name(path)
        for name in imports_of(path) & names if module in names else ():
            package = name.rpartition(".")[0]
            of_package = {package} if package in names and not is_within(module, [package]) else ()
            imports.setdefault(module, set()).update({name, *of_package})
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"modules import each other: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("package", USERS)
def test_only_adapters_import_frameworks(package):
    found = modules_that_import(lambda _, imported: is_within(imported, [package]))
    assert [name for name in found if not is_within(name, USERS[package])] == []


INTERNALS = ["tf_onebit._framework_internals"]
PRIVATE_MODULES = ["keras.src", *(f"tensorflow.{part}" for part in ("python", "core", "compiler"))]
OF_FRAMES = {"currentframe", "f_back", "f_code", "f_globals", "f_locals", "gi_frame"}
# Python documents these despite the leading underscore. The frame is for a signal handler.
OF_PYTHON = {"_exit", "_getframe", "_replace"}


def nodes_outside_internals():
    """Yields (module, node) for the code of all rooms except framework internals."""
    for path in MODULES:
        if not is_within(module_name(path), INTERNALS):
            yield from ((module_name(path), node) for node in ast.walk(tree_of(path)))


def at(module, node):
    return f"{module}:{node.lineno}: {ast.unparse(node)}"


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def own_names(tree):
    """Returns the private names that code defines: functions, classes, variables and attributes."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node):
            names.add(node.attr)
    return set(filter(is_private, names))


def is_self(attribute):
    return isinstance(attribute.value, ast.Name) and attribute.value.id in ("self", "cls")


def is_super(attribute):
    call = attribute.value
    return isinstance(call, ast.Call) and getattr(call.func, "id", None) == "super"


def listed_names():
    """Returns the private names of Keras and TensorFlow that classes may override or call.

    They are read from the source and not imported.
    """
    tree = tree_of(PACKAGE / "_framework_internals" / "hooks.py")
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {value for value in strings if isinstance(value, str) and is_private(value)}


def test_only_one_room_imports_private_modules_of_frameworks():
    offenders = {
        f"{module_name(path)}: {module}"
        for path in MODULES
        for module in imports_of(path)
        if is_within(module, PRIVATE_MODULES) and not is_within(module_name(path), INTERNALS)
    }
    assert offenders == set()


def test_only_one_room_walks_frames():
    assert [
        at(module, node)
        for module, node in nodes_outside_internals()
        if isinstance(node, ast.Attribute) and node.attr in OF_FRAMES
    ] == []


def test_only_one_room_changes_classes_of_objects():
    names = ("__class__", "__bases__")
    assert [
        at(module, node)
        for module, node in nodes_outside_internals()
        if isinstance(node, ast.Attribute)
        and node.attr in names
        and not isinstance(node.ctx, ast.Load)
    ] == []


def test_only_one_room_touches_private_attributes_of_others():
    own = {module_name(path): own_names(tree_of(path)) for path in MODULES}
    assert [
        at(module, node)
        for module, node in nodes_outside_internals()
        if isinstance(node, ast.Attribute)
        and is_private(node.attr)
        and not (is_self(node) or is_super(node))
        and node.attr not in own[module] | OF_PYTHON
    ] == []


def test_only_one_room_names_private_attributes_of_others():
    """Checks names in `getattr` and its like."""
    functions = ("getattr", "hasattr", "setattr", "delattr")
    own = {module_name(path): own_names(tree_of(path)) for path in MODULES}
    named = [
        (module, node, node.args[1].value)
        for module, node in nodes_outside_internals()
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", None) in functions
        and isinstance(node.args[1], ast.Constant)
    ]
    known = listed_names()
    assert [
        at(module, node)
        for module, node, name in named
        if is_private(name)
        and name not in own[module]
        and not (getattr(node.args[0], "id", None) == "self" and name in known)
    ] == []


def test_private_names_that_classes_inherit_from_frameworks_are_listed():
    of_package = set().union(*(own_names(tree_of(path)) for path in MODULES))
    known = listed_names()
    assert [
        at(module, node)
        for module, node in nodes_outside_internals()
        if isinstance(node, ast.Attribute)
        and is_private(node.attr)
        and (is_self(node) or is_super(node))
        and node.attr not in of_package | known
    ] == []


@pytest.mark.parametrize("part", ["_bmuf.equations", "_check", "planner", "_tuning_rules"])
def test_arithmetic_is_free_of_frameworks(part):
    paths = [path for path in MODULES if is_within(module_name(path), [f"tf_onebit.{part}"])]
    imported = {name for path in paths for name in imports_of(path)}
    outside = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert outside <= {"numpy", "tf_onebit"}


def test_reference_imports_nothing_of_the_package():
    for path in (ROOT / "tests" / "reference").glob("*.py"):
        assert imports_of(path) <= {"numpy"}


WITHOUT_HOROVOD = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "horovod":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import numpy as np
import tensorflow as tf
import tf_onebit
from tf_onebit.collectives import lockstep
from tf_onebit.exchanges import GradientSpec, run_stages

exchange = tf_onebit.OneBit()
exchange.build([GradientSpec("kernel", (64, 64), "float32")], 0, 1, "alone")
[([gradient], _)] = lockstep.run([run_stages(exchange, [tf.ones([64, 64])])])
assert np.array_equal(gradient, np.ones([64, 64]))
try:
    import tf_onebit.horovod
except ImportError as error:
    print(error)
"""


def test_package_runs_without_horovod_and_says_how_to_get_it():
    status, output, errors = run_python(WITHOUT_HOROVOD, in_fork=True)
    assert status == 0, errors
    assert "tf_onebit.horovod needs Horovod with TensorFlow" in output
    assert "python tools/build_horovod.py" in output
