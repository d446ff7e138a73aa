"""Benchmarks and long trainings run, as small as they can be: their figures mean nothing here."""

import json
import os
import shutil

import pytest

from tests.parallel.launch import run_job
from tests.rehearsal.small import BENCHMARKS, OF_NETWORKS

MOST_SECONDS = 600
by_name = lambda programs: pytest.mark.parametrize("name", programs)  # noqa: E731


def run(engine, program, options, folder):
    """Runs a program on two workers, or alone: what it prints."""
    options = [option.format(folder=folder) for option in options]
    status, _, printed = run_job(engine, 2, [*program, *options], MOST_SECONDS)
    assert status == 0, printed
    return printed


def written_by(name, engine, options, folder):
    """What a benchmark writes."""
    path = folder / "output.json"
    program, *command = name.split()
    run(engine, [f"benchmarks/{program}", *command], [*options, "--output", str(path)], folder)
    return json.loads(path.read_text())


def check(written):
    assert written["machine"]["cores"] > 0
    for verdict in written.get("verdicts", []):
        assert verdict["holds"] in (True, False, None)
        assert verdict["measured"] == verdict["measured"]


@by_name(BENCHMARKS)
def test_benchmark_runs(name, tmp_path):
    check(written_by(name, *BENCHMARKS[name], tmp_path))


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="network namespaces need root and iproute2",
)
class TestInNetworkNamespaces:
    @by_name([name for name in OF_NETWORKS if name != "network.py"])
    def test_benchmark_runs(self, name, tmp_path):
        check(written_by(name, *OF_NETWORKS[name], tmp_path))

    def test_a_network_is_measured(self, tmp_path):
        engine, options = OF_NETWORKS["network.py"]
        printed = run(engine, ["benchmarks/network.py"], options, tmp_path)
        assert "none: " in printed and "Mbit/s TCP goodput" in printed


def test_speech_is_compared(tmp_path):
    options = ["--preset", "tiny", "--results", "{folder}"]
    printed = run("alone", ["examples/speech/compare.py"], options, tmp_path)
    assert "1-bit against full" in printed
