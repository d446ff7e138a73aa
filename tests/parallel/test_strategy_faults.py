"""Clusters in which a worker dies, never comes, or cannot listen."""

import contextlib
import os
import signal
import socket
import subprocess
import time

import pytest

from tests.support.launch import ROOT, free_addresses, python
from tests.support.nightly import nightly
from tf_onebit._launch import tf_config

TIMEOUT_SECONDS = 15

TRAINING = f"""
import json, os, sys
import keras, numpy as np, tensorflow as tf, tf_onebit

in_blocks = len(sys.argv) > 2
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
options = tf.distribute.experimental.CommunicationOptions(timeout_seconds={TIMEOUT_SECONDS})
strategy = tf_onebit.distribute.MultiWorkerMirroredStrategy(
    tf_onebit.Local() if in_blocks else tf_onebit.OneBit(), communication_options=options
)
with strategy.scope():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    model.compile(keras.optimizers.SGD(1e-4), loss="mse")

class Fault(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if rank == 1 and batch == 5:
            if sys.argv[1] == "raise":
                raise RuntimeError("a mistake")
            if sys.argv[1] == "stop":
                self.model.stop_training = True
                return
            os.kill(os.getpid(), int(sys.argv[1]))

data = np.zeros([300000, 64], np.float32)
overlap = 3 if sys.argv[2:] == ["late"] else 0
blocks = [tf_onebit.callbacks.BlockMomentum(4, overlap=overlap)] if in_blocks else []
model.fit(data, data, 3, verbose=0, callbacks=[*blocks, Fault()])
"""

# All workers survive two kinds of errors.
RETRYING = """
import json, os
import keras, numpy as np, tensorflow as tf, tf_onebit

rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
data = np.ones([16, 8], np.float32)

def make():
    strategy = tf_onebit.distribute.MultiWorkerMirroredStrategy(tf_onebit.OneBit(min_size=0))
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
        model.compile("sgd", loss="mse")
    return strategy, model

def error_of(function, *arguments):
    try:
        function(*arguments)
    except tf.errors.InvalidArgumentError as error:
        return error.message

def fit(model, labels):
    return model.fit(data, labels, 4, verbose=0).history["loss"][0]

strategy, model = make()
finite = error_of(fit, model, np.nan * data)
assert "Gradients must be finite" in finite, finite
assert np.isfinite(fit(model, data))
kept = model.get_weights()
shapes = error_of(strategy.gather, tf.ones([1, 1 + rank]), 0)
assert "Shape mismatch" in shapes, shapes
assert error_of(strategy.gather, tf.ones([1, 1]), 0)
for _ in range(2):
    strategy, again = make()
    assert np.isfinite(fit(again, data))
    assert strategy.reduce("SUM", 1.0, axis=None).numpy() == 2.0
assert all(map(np.array_equal, model.get_weights(), kept))
if rank == 0:
    tf_onebit.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(timeout_seconds=2)
    )
"""


@contextlib.contextmanager
def cluster(ranks, world_size, *arguments, program=TRAINING):
    """Starts some workers of a cluster, without a launcher that would end them together."""
    addresses = free_addresses(world_size)
    settings = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": "1"}
    workers = {}
    try:
        for rank in ranks:
            workers[rank] = subprocess.Popen(
                python(["-c", program, *arguments]),
                cwd=ROOT,
                env=os.environ | settings | tf_config(addresses, rank),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        yield workers, addresses
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()


@pytest.mark.parametrize(
    "arguments",
    [
        *([str(int(signal.SIGKILL))], [str(int(signal.SIGSTOP))]),
        *nightly(["raise"], ["raise", "blocks"], [str(int(signal.SIGKILL)), "late"]),
    ],
    ids=" ".join,
)
def test_the_others_end_and_name_the_one_that_died(arguments):
    with cluster(range(3), 3, *arguments) as (workers, _):
        for rank in (0, 2):
            _, errors = workers[rank].communicate(timeout=60 + 2 * TIMEOUT_SECONDS)
            assert workers[rank].returncode != 0
            assert "/job:worker/replica:0/task:1" in errors


def test_training_goes_on_after_errors_on_all_workers():
    with cluster(range(2), 2, program=RETRYING) as (workers, _):
        ends = [worker.communicate(timeout=120)[1] for worker in workers.values()]
    assert workers[1].returncode == 0, ends[1]
    assert "makes a new strategy, and worker 1 has not made one within 2 seconds" in ends[0]


def test_a_worker_that_stops_alone_is_named_on_all():
    with cluster(range(3), 3, "stop") as (workers, _):
        ends = {
            rank: worker.communicate(timeout=60 + 4 * TIMEOUT_SECONDS)[1]
            for rank, worker in workers.items()
        }
    assert f"Worker 2 is still in the middle of its epoch after {TIMEOUT_SECONDS} s" in ends[1]
    assert "Worker 1 has given up. Worker 1 waits between two steps" in ends[0]
    # Worker 0 may have ended before it could be asked.
    assert "Worker 1 has given up." in ends[2] or "Worker 0, which leads the cluster," in ends[2]
    assert all(worker.returncode != 0 for worker in workers.values())


def test_a_worker_that_never_comes_is_named():
    start = time.monotonic()
    with cluster([0, 2], 3, "none") as (workers, addresses):
        for worker in workers.values():
            _, errors = worker.communicate(timeout=60 + TIMEOUT_SECONDS)
            assert (
                f"TimeoutError: All workers of the cluster must start within {TIMEOUT_SECONDS}"
                in errors
            )
            assert f"Missing: worker 1 at {addresses[1]}." in errors
    assert time.monotonic() - start > TIMEOUT_SECONDS


def test_a_port_that_is_taken():
    with socket.create_server(("", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        worker = subprocess.run(
            python(["-c", TRAINING, "none"]),
            cwd=ROOT,
            env=os.environ | tf_config([address], 0),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert f"cannot listen at its address in the cluster, {address}" in worker.stderr
