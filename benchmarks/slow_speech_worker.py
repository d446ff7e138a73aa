"""`examples/speech/train.py` with a last worker that is several times as slow as the others."""

import pathlib
import sys
import time

import keras

import tf_onebit.horovod as hvd

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples" / "speech"))
from train import main  # noqa: E402

SLOWDOWN = 4


class SlowDown(keras.callbacks.Callback):
    """Sleeps after each step of the last worker."""

    def on_train_batch_begin(self, batch, logs=None):
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if hvd.rank() == hvd.size() - 1:
            time.sleep((SLOWDOWN - 1) * (time.perf_counter() - self._begin))


if __name__ == "__main__":
    main([SlowDown()])
