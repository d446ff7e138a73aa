"""The benchmarks run, as small as they can be: their figures mean nothing here."""

import json
import os
import shutil

import pytest

from tests.parallel.launch import run_job

OPS = ["--threads", "1", "--rounds", "1", "--repeats", "1"]
BENCHMARKS = [
    ("alone", "encode.py", OPS),
    ("horovod", "monitor.py", ["--steps", "10", "--rounds", "1"]),
    ("tensorflow", "endurance.py", ["--steps", "100"]),
    ("alone", "endurance.py", ["--engine", "mirrored", "--steps", "100"]),
]


def run(engine, program, options, folder):
    """What a benchmark writes."""
    options = [*options, "--output", str(folder / "output.json")]
    status, _, printed = run_job(engine, 2, [f"benchmarks/{program}", *options], 300)
    assert status == 0, printed
    return json.loads((folder / "output.json").read_text())


@pytest.mark.parametrize("engine, program, options", BENCHMARKS)
def test_benchmark_runs(engine, program, options, tmp_path):
    written = run(engine, program, options, tmp_path)
    assert written["machine"]["cores"] > 0
    for verdict in written["verdicts"]:
        assert verdict["holds"] in (True, False, None)
        assert verdict["measured"] == verdict["measured"]


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="network namespaces need root and iproute2",
)
def test_benchmark_runs_in_network_namespaces(tmp_path):
    options = ["--rate", "none", "--bytes", "4096", "--repetitions", "2"]
    written = run("alone", "collectives.py", options, tmp_path)
    assert written["machine"]["cores"] > 0
