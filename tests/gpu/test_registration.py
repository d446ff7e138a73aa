"""A library that was built with nvcc has a GPU kernel for every op, in any TensorFlow.

It has them in any TensorFlow that loads it.
"""

import json

import pytest

from tests.support.programs import run_python

# Registers the ops, and prints for each its kinds of devices and their numbers of kernels.
PROGRAM = """
import collections, json
from tensorflow.python.framework import kernels
from tf_onebit.ops import library

counts = {}
for function in dir(library.library):
    name = function.removeprefix("tf_onebit_")
    if name == function or name.endswith("_eager_fallback"):
        continue
    op = "TfOnebit>" + "".join(part.capitalize() for part in name.split("_"))
    registered = kernels.get_registered_kernels_for_op(op).kernel
    counts[name] = collections.Counter(kernel.device_type for kernel in registered)
print(json.dumps([library.cuda_version(), library.gpu_targets(), counts]))
"""
# Messages of a thousandth of the gradients are coded on the CPU, and its clock is read there.
ON_CPU_ONLY = {"golomb_rice_encode", "golomb_rice_decode", "record_time", "take_times"}


@pytest.fixture(scope="module")
def registered():
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    status, output, errors = run_python(PROGRAM, in_fork=True)
    assert status == 0, errors
    return json.loads(output.splitlines()[-1])


def test_every_op_has_kernels_on_the_cpu(registered):
    _, _, counts = registered
    assert all(count.get("CPU") for count in counts.values())


def test_every_op_has_the_same_kernels_on_gpus(registered):
    cuda_version, targets, counts = registered
    if not cuda_version:
        pytest.skip("the library was built without nvcc")
    assert targets.split()[:2] == ["80-real", "90-real"]
    for name, count in counts.items():
        expected = 0 if name in ON_CPU_ONLY else count["CPU"]
        assert count.get("GPU", 0) == expected, name
