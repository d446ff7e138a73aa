"""Models that come back distributed."""

import keras

from tf_onebit.horovod.optimizer import DistributedOptimizer


def load_model(
    filepath,
    custom_optimizers=None,
    custom_objects=None,
    compression=None,
    legacy_opts=False,
    exchange=None,
):
    """Loads a Keras model, with its optimizer wrapped in `DistributedOptimizer`.

    The optimizer keeps its saved state, and training goes on from it. Residuals are not saved with
    a model: see `tf_onebit.callbacks.BackupAndRestore`.

    Args:
        filepath: of the saved model.
        custom_optimizers: list of optimizer classes that Keras does not know.
        custom_objects: dictionary of names and of other classes and functions that it does not
            know.
        compression, exchange: those of `DistributedOptimizer`.
        legacy_opts: False: Keras 3 has no legacy optimizers.

    Returns:
        The model.

    Raises:
        ValueError: with `legacy_opts`, and as `keras.models.load_model` and `DistributedOptimizer`.

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
            "Keras 3 has no legacy optimizers. Received: legacy_opts=True. Leave it out; a model "
            "that was saved with one is to be compiled anew, with one of keras.optimizers."
        )
    known = {cls.__name__: cls for cls in custom_optimizers or []} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, exchange, compression)
    return model
