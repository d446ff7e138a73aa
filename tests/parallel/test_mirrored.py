"""`MirroredStrategy` trains several devices as one process trains on the whole batch."""

import json
import subprocess
import sys

import pytest

from tests.parallel.launch import ROOT
from tests.parallel.train_mirrored import CASES


@pytest.fixture(scope="module")
def result():
    # A process of its own: devices are made before TensorFlow is used.
    command = [sys.executable, "-m", "tests.parallel.train_mirrored"]
    job = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert job.returncode == 0, job.stderr
    return json.loads(job.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_full_precision_equals_one_device_on_the_whole_batch(case, result):
    assert result[case] < 1e-5


def test_batches_that_do_not_divide_are_learned(result):
    first, last, validation = result["uneven"]
    assert last < 0.7 * first
    assert validation < first
    assert result["predictions"] < 1e-5


def test_what_cannot_work_is_refused(result):
    assert "Received: ema_overwrite_frequency=2. Leave it None" in result["overwritten"]
    assert "was made outside of the scope of the MirroredStrategy" in result["outside"]
