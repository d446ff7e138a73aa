"""Block momentum in jobs of their own: on several nodes, and with a worker that dies."""

import os
import re
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support.launch import horovodrun, run_job
from tests.support.ranks import rank
from tests.support.training import compiled, fit_part, make_model


@pytest.fixture(scope="module")
def on_nodes(tmp_path_factory):
    """Returns the final arrays of `train_on_nodes`, as a function of a run's name and a rank."""
    return _ended("horovod", 4, tmp_path_factory, hosts="localhost:2,127.0.0.1:2")


@pytest.fixture(scope="module")
def with_two_devices(tmp_path_factory):
    return _ended("tensorflow", 2, tmp_path_factory)


def _ended(engine, processes, tmp_path_factory, hosts=None):
    output = tmp_path_factory.mktemp(engine)
    command = ["-m", "tests.parallel.train_on_nodes", "--engine", engine, "--output", str(output)]
    job = run_job(engine, processes, command, hosts=hosts)
    assert job.returncode == 0, job.output
    return lambda run, rank: list(np.load(output / f"{run}_{rank}.npz").values())


def test_nodes_train_as_two_workers_with_the_batches_of_theirs(on_nodes):
    for array, expected in zip(on_nodes("exact", 0), on_nodes("expected", 0), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", range(2))
def test_processes_with_two_devices_train_as_two_workers(rank, with_two_devices, on_nodes):
    for array, expected in zip(
        with_two_devices("exact", rank), on_nodes("expected", 0), strict=True
    ):
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("run", ["exact", "gan"])
def test_all_processes_of_all_nodes_end_with_the_same_bits(run, on_nodes):
    for other in range(1, 4):
        for array, expected in zip(on_nodes(run, other), on_nodes(run, 0), strict=True):
            np.testing.assert_array_equal(array, expected)
            assert np.isfinite(array).all()


def train_until_a_worker_dies(**options):
    """Lets rank 1 die in the middle of a block. The other rank says how its own `fit` ended.

    Args:
        options: arguments of `BlockMomentum`.
    """
    # horovodrun ends the other workers as soon as one has died. Only a worker that stays can
    # report.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hvd.init()

    def die(batch, logs=None):
        if rank() == 1 and batch == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    dying = keras.callbacks.LambdaCallback(on_train_batch_end=die)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), exchange=tf_onebit.Local())
    callbacks = [tf_onebit.callbacks.BlockMomentum(4, **options), dying]
    try:
        fit_part(compiled(make_model(), optimizer), 1000, hvd.size(), callbacks=callbacks)
        print(f"rank {rank()} finished", flush=True)
    except tf.errors.OpError as error:
        steps = int(optimizer.iterations)
        print(f"rank {rank()} ended with {type(error).__name__} after {steps}", flush=True)
        raise


@pytest.mark.parametrize(
    "options, last_steps",
    [
        ({}, [8]),  # the end of the block in which the other died
        # The end of the fragment that was under way, or of the next.
        ({"fragments": 2, "overlap": 3}, [7, 9]),
    ],
    ids=str,
)
def test_a_worker_that_dies_in_a_block_ends_the_job(options, last_steps):
    program = f"import {__name__} as jobs; jobs.train_until_a_worker_dies(**{options})"
    job = horovodrun(2, ["-c", program], timeout_seconds=60)
    assert job.returncode != 0
    ended = re.search(r"rank 0 ended with \w+ after (\d+)", job.output)
    assert ended and int(ended[1]) in last_steps, job.output
