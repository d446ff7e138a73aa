"""tools/gpu_check.sh goes through all stages, and says which failed."""

import re
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.gpu.devices import ROOT, Emulated
from tests.gpu.test_sanitizer import LIMIT_SECONDS


def check(folder, *options, **programs):
    """Runs the script with stand-ins for programs, which are the texts of shell scripts."""
    for name, text in programs.items():
        stand_in = folder / name.replace("_", "-")
        stand_in.write_text(f"#!/bin/sh\n{text}\n")
        stand_in.chmod(0o755)
    command = [ROOT / "tools" / "gpu_check.sh", *options, folder / "results"]
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "PYTHON": str(folder / "python")}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def logs_of(folder):
    return {path.stem: path.read_text() for path in (folder / "results").glob("*.log")}


SHOW = 'printf "%s\\n" "$0" "$@"'


def test_all_stages_without_a_gpu_run(tmp_path):
    job = check(tmp_path, "--device", "emulated", python='echo "called with $*"')
    assert job.returncode == 0, job.stdout
    assert job.stdout.splitlines()[-1] == "failed: none"
    logs = logs_of(tmp_path)
    assert set(logs) == {"facts", "build", "tests", "benchmark"}
    assert "-k not cuda" in logs["tests"]
    assert "benchmarks/gpu.py --device emulated" in logs["benchmark"]


def test_all_stages_with_a_gpu_run(tmp_path, monkeypatch):
    job = check(tmp_path, python=SHOW, nvidia_smi=SHOW, nvcc=SHOW, ncu=SHOW)
    assert job.returncode == 0, job.stdout
    assert re.fullmatch(r"took \d+ s of 360", job.stdout.splitlines()[-2])
    assert job.stdout.splitlines()[-1] == "failed: none"
    logs = logs_of(tmp_path)
    assert set(logs) == {
        *("facts", "build", "tests", "benchmark", "counters", "table", "sanitizers")
    }
    assert "nvidia-smi\n--query-gpu" in logs["facts"]
    assert {"devices.Emulated)", "devices.Cuda)"} <= set(
        re.findall(r"devices\.\w+\)", logs["build"])
    )
    assert "not emulated" in logs["tests"].splitlines()
    assert "--device" not in logs["benchmark"]
    assert "counters.log" in logs["table"]
    assert "tests/gpu/test_sanitizer.py" in logs["sanitizers"]
    (of_sanitizers,) = re.findall(r"== sanitizers: status 0, \d+ s of (\d+)", job.stdout)
    assert int(of_sanitizers) > LIMIT_SECONDS

    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu

    counted = logs["counters"].splitlines()
    rows = counted[counted.index("--rows") + 1 : counted.index("--output")]
    assert "threshold decode and add of 8" in rows
    assert set(rows) <= set(gpu.make_rows(Emulated, [(64, 64)], np.random.default_rng(1), False))


def test_a_stage_that_fails_is_named_and_does_not_stop_the_others(tmp_path):
    python = 'case "$*" in "-m pytest"*) echo bad news; exit 3;; esac'
    job = check(tmp_path, "--device", "emulated", python=python)
    assert job.returncode == 1
    assert "== tests: status 3" in job.stdout
    assert "bad news" in job.stdout
    assert "== benchmark: status 0" in job.stdout
    assert job.stdout.splitlines()[-1] == "failed: tests"


def test_stages_share_one_deadline(tmp_path):
    # The tests do not end, even when they are told to.
    python = 'trap "" TERM; case "$*" in "-m pytest"*) sleep 60;; esac'
    start = time.monotonic()
    job = check(tmp_path, "--device", "emulated", "--seconds", "7", python=python)
    assert time.monotonic() - start < 10
    assert job.returncode == 2
    assert job.stdout.splitlines()[-1] == "failed: tests benchmark"
    assert "no time is left" in logs_of(tmp_path)["benchmark"]


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
