"""Loading of models with a distributed optimizer."""

import os
from collections.abc import Sequence
from typing import Any, Literal

import keras

from tf_onebit._training.building import RequestedExchange
from tf_onebit.horovod.compression import Compressor
from tf_onebit.horovod.optimizer import DistributedOptimizer


def load_model(
    filepath: str | os.PathLike[str],
    custom_optimizers: Sequence[type[keras.optimizers.Optimizer]] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Compressor | None = None,
    legacy_opts: bool = False,
    exchange: RequestedExchange = None,
    groups: Literal["node"] | None = None,
) -> keras.Model:
    """Loads a Keras model, and wraps its optimizer in `DistributedOptimizer`.

    Training goes on from the optimizer's saved state. A saved model has no residuals: see
    `tf_onebit.callbacks.BackupAndRestore`.

    Args:
        filepath: path of the saved model.
        custom_optimizers: list of optimizer classes that Keras does not know.
        custom_objects: dictionary from names to other classes and functions that Keras does not
            know.
        compression, exchange, groups: see `DistributedOptimizer`.
        legacy_opts: must be False, because Keras 3 has no legacy optimizers.

    Returns:
        The model.

    Raises:
        ValueError: with `legacy_opts`; see also `keras.models.load_model` and
            `DistributedOptimizer`.

    Example:
        >>> import os, tempfile
        >>> import horovod.tensorflow
        >>> horovod.tensorflow.init()
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        >>> model.compile("sgd", "mse")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(os.path.join(folder, "model.keras"))
        ...     model = load_model(os.path.join(folder, "model.keras"))
        >>> type(model.optimizer).__name__
        'SGD'
    """
    if legacy_opts:
        raise ValueError(
            "Keras 3 has no legacy optimizers. Received: legacy_opts=True. Leave it out. If the "
            "model was saved with one, compile it again with one of keras.optimizers."
        )
    known = {cls.__name__: cls for cls in custom_optimizers or []} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, exchange, compression, groups=groups)
    return model
