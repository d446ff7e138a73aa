"""`tf-onebit doctor` says what is there, what works, and what to do about faults."""

import dataclasses
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.support.programs import ROOT, run_python
from tf_onebit._doctor import Gpu, GpuFacts, reasons_against_gpus

PROGRAM = str(pathlib.Path(sys.executable).with_name("tf-onebit"))
H100 = Gpu("NVIDIA H100", (9, 0))
FIT = GpuFacts("13.0.48", (13, 0), tensorflow_has_cuda=True, gpus=[H100])


def with_facts(**changes):
    return dataclasses.replace(FIT, **changes)


def test_nothing_is_said_against_a_gpu_that_fits():
    assert reasons_against_gpus(FIT) == []
    assert reasons_against_gpus(with_facts(driver_version=(13, 2))) == []
    assert reasons_against_gpus(with_facts(cuda_version="12.8.61", driver_version=(13, 0))) == []


@pytest.mark.parametrize(
    "changes, what_happened, what_to_do",
    [
        ({"cuda_version": ""}, "have no kernels for GPUs", "CUDA_VISIBLE_DEVICES=-1"),
        ({"tensorflow_has_cuda": False}, "built without CUDA", "tensorflow[and-cuda]==2.21.0"),
        (
            {"driver_version": (12, 4)},
            "driver is for CUDA 12.4, and the kernels are compiled with CUDA 13.0.48",
            "Install driver 580 or later",
        ),
        ({"gpus": [], "visible_devices": ""}, "CUDA_VISIBLE_DEVICES=''", "If nvidia-smi shows one"),
        (
            {"gpus": [H100, Gpu("Tesla V100", (7, 0))]},
            "Tesla V100 (compute capability 7.0) is too old",
            "Hide it with CUDA_VISIBLE_DEVICES",
        ),
    ],
)
def test_a_reason_says_what_happened_and_what_to_do(changes, what_happened, what_to_do):
    (reason,) = reasons_against_gpus(with_facts(**changes))
    assert what_happened in reason
    assert what_to_do in reason


def test_the_command_reports_this_installation():
    job = subprocess.run([PROGRAM, "doctor"], capture_output=True, text=True, timeout=120)
    assert job.returncode == 0, job.stderr
    lines = job.stdout.splitlines()
    assert lines[0].startswith("tf_onebit ")
    assert "tensorflow-cpu 2.21.0, keras 3.15.1" in lines[1]
    (ops,) = [line for line in lines if line.startswith("Compiled ops: ")]
    assert str(ROOT / "tf_onebit" / "libtf_onebit_ops_2_21.so") in ops
    assert "Horovod: 0.28.1+tf2.21, built with gloo; without mpi, nccl, ddl, ccl" in lines
    # `make` builds Horovod with the tool.
    assert "Slower than necessary" not in job.stdout
    # Without a GPU, the parts that a GPU needs are not mentioned.
    assert sum("GPU" in line for line in lines) == 1
    assert any(line.startswith("GPUs: not used, training runs on the CPU") for line in lines)
    assert job.stderr == ""


def test_a_tensorflow_that_fails_in_another_way_is_told(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise TypeError('Descriptors cannot be created')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tf_onebit._cli; "
    status, output, _ = run_python(program + "sys.exit(tf_onebit._cli.main(['doctor']))")
    assert status == 1
    assert "TensorFlow does not load: TypeError: Descriptors cannot be created. Install" in output


def test_ops_that_do_not_load_are_told_with_the_build_command(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "tf_onebit", tmp_path / "tf_onebit", ignore=ignored)
    program = "import sys, tf_onebit._cli; sys.exit(tf_onebit._cli.main(['doctor']))"
    status, output, _ = run_python(program, folder=tmp_path, in_fork=True)
    assert status == 1
    assert "Compiled ops: The compiled ops of tf_onebit are missing." in output
    assert "python setup.py build_ext --inplace" in output
