"""Runs `examples/speech/train.py` as if each worker had a processor, the last a slower one.

Workers that share a machine's cores wait longer for a core than for a message, so updates come many
steps late. If a step takes longer than a round of the pump, they do not. Here every step takes as
long as an accelerator's might, and the cores are idle most of the time.
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
    """A callback that makes steps last as long as on the imagined processor."""

    def on_train_batch_begin(self, batch, logs=None):
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        slowdown = SLOWDOWN if hvd.rank() == hvd.size() - 1 else 1
        end = self._begin + slowdown * STEP_SECONDS
        time.sleep(max(0.0, end - time.perf_counter()))


if __name__ == "__main__":
    main([Pace()])
