"""Programs that this package cannot train, in any way of use."""

import ast
from collections.abc import Iterator

from tf_onebit._check.finding import Finding
from tf_onebit._check.program import Program, is_within, keyword
from tf_onebit._check.training import compiles

_PAGE = "docs/limits.md"
_OLD_MODULES = {
    "tf_keras": ("Import keras in place of tf_keras.", "tf_onebit trains models of Keras 3."),
    "tensorflow.estimator": (
        "Train with Keras in place of an estimator.",
        "TensorFlow has no estimators any more.",
    ),
    "keras.optimizers.legacy": (
        "Take the optimizer from keras.optimizers.",
        "Keras 3 has no legacy optimizers.",
    ),
}
_SESSIONS = (
    *("Session", "InteractiveSession", "disable_eager_execution", "disable_v2_behavior"),
    *("global_variables_initializer", "keras", "placeholder", "train"),
)
_OTHER_HOROVOD = ("horovod.torch", "horovod.mxnet")


def keras_3(program: Program) -> Iterator[Finding]:
    """Yields what Keras 3 or its TensorFlow no longer has."""
    for module, (what, why) in _OLD_MODULES.items():
        lines = [one.node.lineno for one in program.imports if is_within(one.module, module)]
        lines += [] if lines else [node.lineno for node in program.uses(module)]
        if lines:
            yield Finding(min(lines), what, why, _PAGE, also=lines)
    yield from _removed_arguments(program)


def _removed_arguments(program: Program) -> Iterator[Finding]:
    for call in compiles(program):
        if keyword(call, "experimental_run_tf_function") is not None:
            yield Finding(
                call.lineno,
                "Leave out experimental_run_tf_function.",
                "Keras 3 does not have it.",
                "docs/horovodrun.md",
            )
    for call in program.calls_of_method("fit_generator"):
        yield Finding(
            call.lineno,
            "Call fit in place of fit_generator.",
            "Keras 3 does not have it. fit takes generators.",
            "docs/horovodrun.md",
        )


def tensorflow_1(program: Program) -> Iterator[Finding]:
    """Yields sessions and graphs of TensorFlow 1."""
    v1 = "tensorflow.compat.v1"
    nodes = [node for name in _SESSIONS for node in program.uses(f"{v1}.{name}")]
    if nodes:
        yield Finding(
            min(node.lineno for node in nodes),
            "Write this for TensorFlow 2.",
            "Keras 3 trains in no session or graph of TensorFlow 1.",
            _PAGE,
            also=[node.lineno for node in nodes],
        )


def tensorflow_backend(program: Program) -> Iterator[Finding]:
    """Yields lines that choose another Keras or another backend."""
    wrong = {"KERAS_BACKEND": {"jax", "torch", "numpy", "openvino"}, "TF_USE_LEGACY_KERAS": {"1"}}
    for name, values in program.values.items():
        variable = next(
            (v for v in wrong if name in (f"os.environ['{v}']", f"environ['{v}']")), None
        )
        for value in values if variable else ():
            if isinstance(value, ast.Constant) and value.value in wrong[str(variable)]:
                yield Finding(
                    value.lineno,
                    f"Do not set {variable} to {value.value!r}.",
                    "tf_onebit trains models of Keras 3 with TensorFlow as its backend.",
                    _PAGE,
                )


def other_horovod(program: Program) -> Iterator[Finding]:
    """Yields Horovod for other frameworks."""
    for one in program.imports:
        if any(is_within(one.module, other) for other in _OTHER_HOROVOD):
            yield Finding(
                one.node.lineno,
                "Import tf_onebit.horovod, and train with Keras.",
                f"tf_onebit does not serve {one.module}.",
                _PAGE,
            )


def no_xla(program: Program) -> Iterator[Finding]:
    """Yields models that XLA compiles."""
    for call in compiles(program):
        chosen = keyword(call, "jit_compile")
        if isinstance(chosen, ast.Constant) and chosen.value is True:
            yield Finding(
                chosen.lineno,
                "Pass jit_compile=False.",
                "XLA cannot compile an exchange, and jit_compile=True is refused.",
                _PAGE,
                ["jit_compile=False,"],
            )


RULES = (keras_3, tensorflow_1, tensorflow_backend, other_horovod)
