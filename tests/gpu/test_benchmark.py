"""benchmarks/gpu.py runs without a GPU, where its times mean nothing."""

import json
import subprocess
import sys

import pytest

from tests.gpu.devices import ROOT


@pytest.mark.nightly
def test_the_benchmark_runs_emulated(tmp_path):
    output = tmp_path / "gpu.json"
    options = ["--device", "emulated", "--widths", "64", "1024", "--rounds", "1", "--launches", "1"]
    job = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "gpu.py", *options, "--output", output],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert job.returncode == 0, job.stderr
    written = json.loads(output.read_text())
    assert all(len(taken) == 1 for taken in written["seconds"].values())
    assert len(written["verdicts"]) == 7
