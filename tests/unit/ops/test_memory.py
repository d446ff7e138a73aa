"""The next step uses the memory of a step again."""

import os

import pytest

from tests.support.programs import run_python

# A step's activations and gradients take 6 MB. By the second epoch all memory has been allocated.
PROGRAM = """
import resource

import keras
import numpy as np

import tf_onebit

STEPS = 50


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        return np.ones([128, 256], np.float32), np.zeros(128, np.int32)


class PageFaults(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def on_epoch_end(self, epoch, logs=None):
        self.per_step = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - self.before) / STEPS


tf_onebit.OneBit()  # as every way to use the package does, it loads the compiled ops
model = keras.Sequential(
    [
        keras.Input([256]),
        *(keras.layers.Dense(256, "relu") for _ in range(4)),
        keras.layers.Dense(1200),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("sgd", loss=loss)
faults = PageFaults()
model.fit(Batches(), epochs=2, shuffle=False, verbose=0, callbacks=[faults])
print(faults.per_step)
"""


@pytest.fixture(autouse=True)
def user_says_nothing_of_allocation(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("MALLOC_", "GLIBC_")):
            monkeypatch.delenv(name)


def page_faults_per_step(**environment):
    status, output, errors = run_python(PROGRAM, **environment)
    assert status == 0, errors
    return float(output.split()[-1])


def test_steps_take_page_faults_only_where_the_user_has_said_so():
    kept, given_back = page_faults_per_step(), page_faults_per_step(MALLOC_TOP_PAD_="0")
    assert kept < 100
    assert given_back > max(200, 5 * kept)
