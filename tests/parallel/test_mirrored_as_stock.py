"""`MirroredStrategy` gives what that of `tf.distribute` gives, beside the gradients' exchange."""

import json
import subprocess
import sys

import pytest

from tests.parallel.compare_mirrored import cases
from tests.parallel.launch import ROOT


@pytest.fixture(scope="module")
def results():
    # A process of its own: devices are made before TensorFlow is used.
    command = [sys.executable, "-m", "tests.parallel.compare_mirrored"]
    job = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert job.returncode == 0, job.stderr
    return json.loads(job.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", cases())
def test_same_as_in_the_strategy_of_tensorflow(case, results):
    stock, ours, of_workers = results[0][case]
    assert ours == of_workers == stock


def test_a_function_is_traced_once_and_freed(results):
    assert results[1] == str([("int64", 1), ("int64", 1)])


def test_a_tensor_that_is_one_object_on_all_replicas_is_summed_over_them(results):
    assert results[2] == str([("float32", 2.0)] * 2)
