"""Communication-efficient data-parallel training for Keras 3 and TensorFlow."""

import importlib

from tf_onebit._libraries import install_command
from tf_onebit._version import __version__

_MODULE_OF = {
    "Auto": "tf_onebit.exchanges",
    "Delayed": "tf_onebit.exchanges",
    "Exchange": "tf_onebit.exchanges",
    "FullPrecision": "tf_onebit.exchanges",
    "Local": "tf_onebit.exchanges",
    "OneBit": "tf_onebit.exchanges",
    "ResizableBatches": "tf_onebit.data",
    "Threshold": "tf_onebit.exchanges",
    "WarmStart": "tf_onebit.exchanges",
    "flush": "tf_onebit._training.model_optimizers",
    "without_delay": "tf_onebit._training.model_optimizers",
}
_SUBMODULES = (
    "callbacks",
    "collectives",
    "data",
    "distribute",
    "exchanges",
    "horovod",
    "model_parallel",
    "optimizers",
    "planner",
    "transforms",
)

__all__ = [*_MODULE_OF, *_SUBMODULES, "__version__"]


def __getattr__(name):
    # Imported on first use: the command line needs no TensorFlow, and few programs need Horovod.
    try:
        if name in _SUBMODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name in _MODULE_OF:
            return getattr(importlib.import_module(_MODULE_OF[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise ImportError(
            f"tf_onebit needs TensorFlow, which is not installed. Install it: {install_command()}."
        ) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
