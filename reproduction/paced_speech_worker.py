"""`examples/speech/train.py` as if each worker had processors of its own, the last slower ones.

Workers that share a machine's cores wait for them longer than for a message: its updates come many
steps late, which they do not where a step takes longer than a round of the pump. Here every step
takes as long as an accelerator's might, and the cores are idle most of the time.
"""

import pathlib
import sys
import time

import keras
from speech_jobs import SLOWDOWN

import tf_onebit.horovod as hvd

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples" / "speech"))
from train import main  # noqa: E402

STEP_SECONDS = 0.1


class Pace(keras.callbacks.Callback):
    """Makes steps last as long as they should."""

    def on_train_batch_begin(self, batch, logs=None):
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        slowdown = SLOWDOWN if hvd.rank() == hvd.size() - 1 else 1
        end = self._begin + slowdown * STEP_SECONDS
        time.sleep(max(0.0, end - time.perf_counter()))


if __name__ == "__main__":
    main([Pace()])
