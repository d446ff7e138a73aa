"""Places where a program trains: its compiled models, calls of fit, loops and optimizers."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tf_onebit._check.program import Program, is_within, keyword

_OF_FIT = {
    *("batch_size", "callbacks", "epochs", "initial_epoch", "steps_per_epoch"),
    *("validation_data", "validation_freq", "validation_split", "verbose"),
}
_OF_COMPILE = {"jit_compile", "loss", "loss_weights", "metrics", "optimizer", "run_eagerly"}
APPLIES = ("apply", "apply_gradients")
# Keras' names for optimizers.
OPTIMIZERS = {
    name.lower(): name
    for name in (
        *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion"),
        *("LossScaleOptimizer", "Muon", "Nadam", "RMSprop", "SGD", "ScheduleFreeAdamW"),
    )
}
WRAPPERS = (
    *("hvd.DistributedOptimizer", "hvd.PartialDistributedOptimizer", "hvd.AsynchronousOptimizer"),
)


class Loop(NamedTuple):
    """A training step that the program writes itself, outside of Keras' `train_step`.

    Attributes:
        tape: name of the gradient tape.
        gradient: the call that asks the tape.
        apply: the call that hands the gradients to an optimizer.
    """

    tape: str
    gradient: ast.Call
    apply: ast.Call


def receiver(call: ast.Call) -> str:
    """Returns the text of the object whose method is called."""
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _methods(program: Program, *names: str) -> list[ast.Call]:
    """Returns the calls of methods, of all objects that are no modules."""
    return [
        call
        for call in program.calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in names
        and program.full_name(call.func) is None
        and not receiver(call).startswith("super(")
    ]


def _names_any(call: ast.Call, names: set[str]) -> bool:
    return any(one.arg in names for one in call.keywords)


def is_model(program: Program, name: str) -> bool:
    """Tells whether a name gets a Keras model, made on the spot or of a class of the program."""
    return any(_makes_a_model(program, value) for value in program.values.get(name, []))


def _makes_a_model(program: Program, value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    if program.called(value) in ("keras.Sequential", "keras.Model", "keras.saving.load_model"):
        return True
    return isinstance(value.func, ast.Name) and value.func.id in model_classes(program)


def model_classes(program: Program) -> dict[str, ast.ClassDef]:
    """Returns the subclasses of `keras.Model`, by name."""
    classes = [d for ds in program.definitions.values() for d in ds if isinstance(d, ast.ClassDef)]
    return {
        one.name: one
        for one in classes
        if any(program.full_name(b) in ("keras.Model", "keras.Sequential") for b in one.bases)
    }


def compiles(program: Program) -> list[ast.Call]:
    """Returns the calls of a Keras model's `compile`."""
    fitted = {receiver(call) for call in _methods(program, "fit") if _names_any(call, _OF_FIT)}
    return [
        call
        for call in _methods(program, "compile")
        if _names_any(call, _OF_COMPILE)
        or _is_given_an_optimizer(program, call)
        or receiver(call) in fitted
        or is_model(program, receiver(call))
    ]


def _is_given_an_optimizer(program: Program, call: ast.Call) -> bool:
    """Tells whether the first argument of a call is an optimizer, or the name of one."""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Constant):
        return str(first.value).lower() in OPTIMIZERS
    return first is not None and any(
        is_optimizer(program, one) or program.called(one) in WRAPPERS
        for one in origins(program, first)
    )


def fits(program: Program) -> list[ast.Call]:
    """Returns the calls of a Keras model's `fit`. Other packages have methods of this name."""
    compiled = {receiver(call) for call in compiles(program)}
    return [
        call
        for call in _methods(program, "fit")
        if _names_any(call, _OF_FIT)
        or receiver(call) in compiled
        or is_model(program, receiver(call))
    ]


def loops(program: Program) -> list[Loop]:
    """Returns the training steps outside of Keras' own."""
    return list(_loops(program))


def _loops(program: Program) -> Iterator[Loop]:
    tapes = {
        name
        for name, values in program.values.items()
        if any(program.called(value) == "tensorflow.GradientTape" for value in values)
    }
    for gradient in _methods(program, "gradient"):
        step = program.function(gradient)
        around = step or program.tree
        if receiver(gradient) not in tapes or (
            step and step.name == "train_step" and is_method(program, step)
        ):
            continue
        applied = [
            call
            for call in _methods(program, *APPLIES)
            if (program.function(call) or program.tree) is around
        ]
        if applied:
            yield Loop(receiver(gradient), gradient, applied[0])


def is_method(program: Program, function: ast.AST) -> bool:
    """Tells whether a function is one of a class."""
    return isinstance(next(program.parents(function)), ast.ClassDef)


def models(program: Program) -> set[str]:
    """Returns the names of the models that are trained."""
    names = {receiver(call) for call in (*compiles(program), *fits(program))}
    weights = ("trainable_variables", "trainable_weights")
    for loop in loops(program):
        around = program.function(loop.gradient) or program.tree
        names |= {
            ast.unparse(node.value)
            for node in ast.walk(around)
            if isinstance(node, ast.Attribute) and node.attr in weights
        }
    return names


def own_batches(program: Program) -> list[ast.Call]:
    """Returns the calls that train on one batch."""
    return _methods(program, "train_on_batch")


def trains(program: Program) -> bool:
    """Tells whether the program trains a model, as far as it can be seen."""
    steps = (*own_batches(program), *_methods(program, "fit_generator"))
    return bool(fits(program) or loops(program) or steps)


def is_optimizer(program: Program, node: ast.AST) -> bool:
    """Tells whether an expression makes an optimizer of Keras, or of this package."""
    called = program.called(node)
    is_ours = is_within(called, "tf_onebit.optimizers")
    known = called.removeprefix("keras.optimizers.") in OPTIMIZERS.values()
    return is_ours or (is_within(called, "keras.optimizers") and known)


def given_optimizers(program: Program, call: ast.Call) -> list[ast.expr]:
    """Returns the expressions of the optimizers of a `compile`. An own `compile` may take several.

    Names are replaced by the values that they get.
    """
    usual = keyword(call, "optimizer", 0)
    others = [*call.args, *(one.value for one in call.keywords)]
    found = [
        value
        for arg in others
        if arg is not usual
        for value in origins(program, arg)
        if is_optimizer(program, value)
    ]
    return [*(origins(program, usual) if usual else []), *found]


def origins(program: Program, node: ast.expr) -> list[ast.expr]:
    """Returns the values of a name, or else the expression itself."""
    if not isinstance(node, ast.Name | ast.Attribute):
        return [node]
    name = ast.unparse(node)
    return program.values_near(name, node) or program.values.get(name) or [node]


def unwrapped(program: Program, node: ast.expr) -> list[ast.expr]:
    """Returns the expressions of the optimizers that a value wraps, through all wrappers."""
    name = program.called(node)
    if isinstance(node, ast.Call) and (
        name in WRAPPERS or name == "keras.optimizers.LossScaleOptimizer"
    ):
        inner = keyword(node, "optimizer", 0) or keyword(node, "inner_optimizer", 0)
        if inner is not None:
            own = [v for v in origins(program, inner) if v is not node]
            return [one for value in own for one in unwrapped(program, value)]
    return [node]
