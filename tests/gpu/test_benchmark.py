"""benchmarks/gpu.py runs without a GPU, where its times mean nothing."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.gpu.devices import ROOT, Emulated
from tests.gpu.threshold import COUNT, HEADER_WORDS, STEP, ThresholdKernels


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu_threshold_rows

    return gpu_threshold_rows


def test_each_launch_of_the_threshold_sends_as_much(benchmark, rng):
    size, tau = 50_000, benchmark.TAU
    gradient, before, messages = benchmark.threshold_inputs(size, rng)
    assert np.count_nonzero(gradient) == size
    kernels = ThresholdKernels(Emulated, [size])
    residual = kernels.to_device(before)
    capacity = messages.shape[-1] - HEADER_WORDS
    indices = []
    for launch in range(20):
        sent = kernels.encode([gradient * (-1) ** launch], residual, tau, tau, capacity)[0]
        assert 0 < sent[COUNT] <= capacity
        codes = sent[HEADER_WORDS : HEADER_WORDS + sent[COUNT]].view(np.uint32)
        indices.append((codes & 0x7FFFFFFF).tolist())
    assert all(of_launch == indices[0] for of_launch in indices)
    np.testing.assert_allclose(residual, before, atol=1e-6)


def test_messages_about_the_threshold_differ_and_are_those_of_workers(benchmark, rng):
    size = 50_000
    *_, messages = benchmark.threshold_inputs(size, rng)
    assert len({message.tobytes() for message in messages}) == benchmark.WORLD_SIZE
    expected = np.zeros(size, np.float32)
    for message in messages[:, 0]:
        codes = message[HEADER_WORDS : HEADER_WORDS + message[COUNT]].view(np.uint32)
        indices = (codes & 0x7FFFFFFF).astype(np.int64)
        assert np.all(np.diff(indices) > 0)
        assert 0.5 < codes.size / (benchmark.DENSITY * size) < 1.5
        step = message[STEP : STEP + 1].view(np.float32)
        expected[indices] += np.where(codes >> 31, -step, step)
    (decoded,) = ThresholdKernels(Emulated, [size]).decode_sum(messages)
    np.testing.assert_array_equal(decoded, expected)


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
