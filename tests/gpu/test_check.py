"""tools/gpu_check.sh goes through all stages, and says which failed."""

import subprocess
import sys

import pytest

from tests.gpu.devices import ROOT


def check(folder, python):
    """Runs the script with a stand-in for Python."""
    stand_in = folder / "python"
    stand_in.write_text(f"#!/bin/sh\n{python}\n")
    stand_in.chmod(0o755)
    command = [ROOT / "tools" / "gpu_check.sh", "--device", "emulated", folder / "results"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(stand_in)}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_all_stages_without_a_gpu_run(tmp_path):
    job = check(tmp_path, 'echo "called with $*"')
    assert job.returncode == 0, job.stdout
    assert job.stdout.splitlines()[-1] == "failed: none"
    logs = {path.stem: path.read_text() for path in (tmp_path / "results").glob("*.log")}
    assert set(logs) == {"facts", "build", "tests", "benchmark"}
    assert "-k not cuda" in logs["tests"]
    assert "benchmarks/gpu.py --device emulated" in logs["benchmark"]


def test_a_stage_that_fails_is_named_and_does_not_stop_the_others(tmp_path):
    job = check(tmp_path, 'case "$*" in "-m pytest"*) echo bad news; exit 3;; esac')
    assert job.returncode == 1
    assert "== tests: status 3" in job.stdout
    assert "bad news" in job.stdout
    assert "== benchmark: status 0" in job.stdout
    assert job.stdout.splitlines()[-1] == "failed: tests"


@pytest.mark.parametrize("unit, figure", [("ns", "1.5"), ("us", "1500")])
def test_counters_become_a_table(tmp_path, unit, figure):
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import gpu_counters
    finally:
        sys.path.pop(0)
    names = [name for name, _ in gpu_counters.COLUMNS]
    kernel = "void tf_onebit::gpu::<unnamed>::DecodeColumns<float>(int)"
    rows = [
        ["Kernel Name", "Grid Size", *names],
        ["", "", unit, *["%"] * (len(names) - 1)],
        [kernel, "(7, 1, 1)", "1,500", *["25"] * (len(names) - 1)],
    ]
    file = tmp_path / "counters.log"
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    file.write_text("\n".join(["==PROF== noise", *lines]))
    job = subprocess.run(
        [sys.executable, ROOT / "tools" / "gpu_counters.py", file], capture_output=True, text=True
    )
    assert job.returncode == 0, job.stderr
    header, row = job.stdout.splitlines()
    assert header.split()[:3] == ["kernel", "grid", "us"]
    assert row.split()[:5] == ["DecodeColumns<float>", "(7,", "1,", "1)", figure]
