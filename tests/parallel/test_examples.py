"""examples/keras_fit runs with every engine."""

import re
import subprocess
import sys

import pytest

from tests.parallel.launch import ROOT, run_job

EXAMPLE = ["examples/keras_fit/train.py", "--epochs", "3"]


@pytest.mark.parametrize("engine", ["multi_worker", "mirrored", "horovod"])
def test_digits_are_learned(engine, tmp_path):
    command = [*EXAMPLE, "--engine", engine, "--backup", str(tmp_path / "backups")]
    if engine == "mirrored":
        job = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
        status, output = job.returncode, job.stdout + job.stderr
    else:
        status, _, output = run_job({"multi_worker": "tensorflow"}.get(engine, engine), 2, command)
    assert status == 0, output
    (accuracy,) = re.findall(r"held-out accuracy: (\d\.\d+)", output)
    assert float(accuracy) > 0.7
