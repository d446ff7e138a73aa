"""Every test of kernels runs emulated, and on a GPU if there is one."""

import os

import pytest

from tests.gpu.devices import Cuda, Emulated
from tests.gpu.skipping import skip_or_fail

if os.environ.get("TF_ONEBIT_CHECKED_MEMORY"):
    import cupy

    # Every array is an allocation of its own, so that memcheck sees what is written behind it.
    cupy.cuda.set_allocator(None)


@pytest.fixture(params=[Emulated, Cuda], ids=lambda device: device.name)
def device(request):
    reason = request.param.missing()
    if reason is not None:
        skip_or_fail(reason)
    return request.param
