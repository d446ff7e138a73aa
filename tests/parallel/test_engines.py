"""The same training gives the same weights on every engine."""

import numpy as np
import pytest

from tests.parallel.train_on_engine import CASES
from tests.support.bits import assert_same_bits
from tests.support.launch import run_job
from tests.support.nightly import nightly

# Adam with plain exchanges. The mean of three in full precision: see test_data.py.
AMONG_THREE = ("buckets", "density")
# Recipes, transforms and coding.
AMONG_FOUR = ("adagrad", "threshold", "delayed", "full_precision")
# Those that `make test` trains.
USUAL = AMONG_FOUR[:2]
WITH_TWO_DEVICES = ("adagrad", "delayed", "full_precision", "density")
# One process trains with both of these numbers of devices.
MIRRORED = {4: AMONG_FOUR[2:], 3: AMONG_THREE}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns a function that trains once and returns, by case, the weights on each rank."""
    finished = {}

    def train(engine, replicas, cases, devices=1):
        key = engine, replicas, devices, cases
        if key not in finished:
            output = tmp_path_factory.mktemp("weights")
            runs = _train(engine, replicas // devices, devices, {replicas: cases}, output)
            finished[key] = {case: runs[replicas, case] for case in cases}
        return finished[key]

    return train


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory):
    """Returns a function that returns the final weights of one process.

    It takes a number of replicas and a case, and trains the usual cases and the others apart.
    """
    finished = {}

    def train(replicas, case):
        cases = {4: USUAL} if case in USUAL else MIRRORED
        if (replicas, case) not in finished:
            output = tmp_path_factory.mktemp("weights")
            runs = _train("mirrored", 1, max(cases), cases, output)
            finished.update({run: weights for run, (weights,) in runs.items()})
        return finished[replicas, case]

    return train


def _train(engine, processes, devices, cases, output):
    """Trains the cases of each number of replicas. Returns weights by these, of each process."""
    runs = [(replicas, case) for replicas, names in cases.items() for case in names]
    command = ["-m", "tests.parallel.train_on_engine", "--engine", engine, "--output", str(output)]
    command += ["--devices", str(devices), "--runs", *(f"{n}:{case}" for n, case in runs)]
    job = run_job(engine, processes, command, timeout_seconds=300)
    assert job.returncode == 0, job.output
    return {
        (n, case): [
            list(np.load(output / f"{n}:{case}_{rank}.npz").values()) for rank in range(processes)
        ]
        for n, case in runs
    }


def test_every_case_is_trained():
    assert {*AMONG_THREE, *AMONG_FOUR} == set(CASES)


@pytest.mark.parametrize("case", [*USUAL, *nightly(*AMONG_FOUR[2:])])
def test_engines_give_the_same_bits(case, trained, mirrored):
    cases = USUAL if case in USUAL else AMONG_FOUR[2:]
    for engine in ("horovod", "tensorflow"):
        for weights in trained(engine, 4, cases)[case]:
            assert_same_bits(weights, mirrored(4, case))


@pytest.mark.nightly
@pytest.mark.parametrize("case", AMONG_THREE)
def test_engines_agree_with_three_workers(case, trained, mirrored):
    for weights in trained("tensorflow", 3, AMONG_THREE)[case]:
        assert_same_bits(weights, mirrored(3, case))
    over_horovod = trained("horovod", 3, AMONG_THREE)[case]
    for weights in over_horovod:
        assert_same_bits(weights, over_horovod[0])
    # Keras divides by three before it computes gradients. Horovod's average comes after.
    for array, other in zip(over_horovod[0], mirrored(3, case), strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-6, atol=1e-6)


ELEVEN_TASKS = """
import numpy as np, tensorflow as tf
from tests.support.ranks import engine, gather, rank
from tf_onebit.collectives.requests import AllToAll, one_request

assert gather(rank()) == list(range(11))
sent = tf.constant([[100 * rank() + other] for other in range(11)], tf.int32)
(received,) = engine().run([one_request(AllToAll(sent, "order"))])
np.testing.assert_array_equal(received, [[100 * other + rank()] for other in range(11)])
"""


def test_eleven_tasks_are_in_the_order_of_their_numbers():
    # TensorFlow sorts them as text: 0, 1, 10, 2 and so on.
    job = run_job("tensorflow", 11, ["-c", ELEVEN_TASKS])
    assert job.returncode == 0, job.output


@pytest.mark.nightly
@pytest.mark.parametrize("case", WITH_TWO_DEVICES)
def test_two_workers_with_two_devices_each(case, trained, mirrored):
    ranks = trained("tensorflow", 4, WITH_TWO_DEVICES, devices=2)[case]
    assert_same_bits(*ranks)
    if case == "full_precision":  # between devices as between workers, with four replicas as before
        for array, other in zip(ranks[0], mirrored(4, case), strict=True):
            np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5)
