"""The same training gives the same weights on every engine."""

import numpy as np
import pytest

from tests.parallel.launch import run_job
from tests.parallel.train_on_engine import CASES


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Function that trains once and returns, by case, the weights on each rank."""
    finished = {}

    def train(engine, replicas, devices=1, cases=tuple(CASES)):
        key = engine, replicas, devices, cases
        if key not in finished:
            output = tmp_path_factory.mktemp("weights")
            finished[key] = _train(engine, replicas, devices, cases, output)
        return finished[key]

    return train


def _train(engine, replicas, devices, cases, output):
    command = ["-m", "tests.parallel.train_on_engine", "--engine", engine, "--output", str(output)]
    command += ["--replicas", str(replicas), "--devices", str(devices), "--cases", *cases]
    job = run_job(engine, replicas // devices, command, timeout_seconds=300)
    assert job.returncode == 0, job.output
    ranks = 1 if engine == "mirrored" else replicas // devices
    return {
        name: [list(np.load(output / f"{name}_{rank}.npz").values()) for rank in range(ranks)]
        for name in cases
    }


def assert_same_bits(weights, others):
    for array, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("case", CASES)
def test_engines_give_the_same_bits(case, trained):
    mirrored = trained("mirrored", 4, devices=4)[case][0]
    for engine in ("horovod", "tensorflow"):
        for weights in trained(engine, 4)[case]:
            assert_same_bits(weights, mirrored)


AMONG_THREE = ("buckets", "warm_start", "full_precision", "density")


@pytest.mark.parametrize("case", AMONG_THREE)
def test_engines_agree_with_three_workers(case, trained):
    mirrored = trained("mirrored", 3, devices=3, cases=AMONG_THREE)[case][0]
    for weights in trained("tensorflow", 3, cases=AMONG_THREE)[case]:
        assert_same_bits(weights, mirrored)
    over_horovod = trained("horovod", 3, cases=AMONG_THREE)[case]
    for weights in over_horovod:
        assert_same_bits(weights, over_horovod[0])
    # Keras divides by three before it computes gradients, Horovod's average comes after.
    for array, other in zip(over_horovod[0], mirrored, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-6, atol=1e-6)


def test_eleven_tasks_are_in_the_order_of_their_numbers(trained):
    # TensorFlow sorts them as text: 0, 1, 10, 2, ...
    mirrored = trained("mirrored", 11, devices=11, cases=("buckets",))["buckets"][0]
    for weights in trained("tensorflow", 11, cases=("buckets",))["buckets"]:
        assert_same_bits(weights, mirrored)


@pytest.mark.parametrize("case", CASES)
def test_two_workers_with_two_devices_each(case, trained):
    ranks = trained("tensorflow", 4, devices=2)[case]
    assert_same_bits(*ranks)
    if case == "full_precision":  # between devices as between workers: four replicas as ever
        mirrored = trained("mirrored", 4, devices=4)[case][0]
        for array, other in zip(ranks[0], mirrored, strict=True):
            np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5)
