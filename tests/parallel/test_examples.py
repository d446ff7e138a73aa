"""examples/keras_fit runs with every engine."""

import re

import pytest

from tests.parallel.launch import run_job

EXAMPLE = ["examples/keras_fit/train.py", "--epochs", "3"]


@pytest.mark.parametrize(
    "engine, options",
    [
        ("multi_worker", []),
        ("mirrored", ["--exchange", "threshold", "--coding", "golomb_rice"]),
        ("horovod", []),
        ("horovod", ["--exchange", "threshold", "--target-density", "0.01", "--asynchronous"]),
    ],
)
def test_digits_are_learned(engine, options, tmp_path):
    command = [*EXAMPLE, "--engine", engine, "--backup", str(tmp_path / "backups"), *options]
    status, _, output = run_job({"multi_worker": "tensorflow"}.get(engine, engine), 2, command)
    assert status == 0, output
    (accuracy,) = re.findall(r"held-out accuracy: (\d\.\d+)", output)
    assert float(accuracy) > 0.7
