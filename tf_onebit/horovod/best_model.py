"""BestModelCheckpoint for Keras 3."""

from typing import Literal

import keras


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Callback that saves the whole model whenever it is the best so far.

    Set the path later, as an attribute. Every worker that has the callback saves, so give it to one
    worker only. Both are as in Horovod.

    Args:
        monitor, verbose, mode, save_freq: see `keras.callbacks.ModelCheckpoint`.

    Attributes:
        filepath: path to save the model at, which ends in ".keras".

    Raises:
        ValueError: at the begin of `fit`, if `filepath` is not set.

    Example:
        >>> callback = BestModelCheckpoint(monitor="val_accuracy")
        >>> callback.filepath = "best.keras"
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: Literal["auto", "min", "max"] = "auto",
        save_freq: int | Literal["epoch"] = "epoch",
    ) -> None:
        # Keras checks the ending of the path.
        super().__init__(
            ".keras", monitor, verbose, save_best_only=True, mode=mode, save_freq=save_freq
        )

        self.filepath: str | None = None

    def on_train_begin(self, logs=None):
        if self.filepath is None:
            raise ValueError(
                "BestModelCheckpoint needs the path of a file. Received: filepath=None. Set "
                'callback.filepath = "best.keras" before fit, or use '
                'keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True).'
            )
        super().on_train_begin(logs)
