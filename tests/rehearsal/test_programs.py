"""Benchmarks and long trainings run in their smallest form. Their figures mean nothing here."""

import json
import os
import shutil

import pytest

from tests.rehearsal.small import IN_NAMESPACES, ON_THIS_MACHINE, STARTED_BY
from tests.support.launch import run_job

MOST_SECONDS = 600
needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="network namespaces need root and iproute2",
)


def run(engine, *command):
    """Runs a program on two workers, or alone, and returns its output."""
    status, _, printed = run_job(engine, 2, command, MOST_SECONDS)
    assert status == 0, printed
    return printed


@pytest.mark.parametrize(
    "program",
    [*ON_THIS_MACHINE, *(pytest.param(name, marks=needs_namespaces) for name in IN_NAMESPACES)],
)
def test_program_runs(program, tmp_path):
    path = tmp_path / "output.json"
    options = {**ON_THIS_MACHINE, **IN_NAMESPACES}[program].format(folder=tmp_path).split()
    engine = STARTED_BY.get(program, "alone")
    run(engine, *program.split(), *options, "--output", str(path))
    written = json.loads(path.read_text())
    assert written["machine"]["cores"] > 0
    for verdict in written.get("verdicts", []):
        assert verdict["holds"] in (True, False, None)
        assert verdict["measured"] == verdict["measured"]


@needs_namespaces
def test_rate_of_a_network_is_printed():
    printed = run("alone", "benchmarks/network.py", "--rate", "none")
    assert "none: " in printed and "Mbit/s TCP goodput" in printed


def test_speech_is_compared(tmp_path):
    command = "examples/speech/compare.py", "--preset", "tiny", "--results", str(tmp_path)
    assert "1-bit against full" in run("alone", *command)
