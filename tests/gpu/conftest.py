"""Every test of kernels runs emulated, and on a GPU if there is one."""

import pytest

from tests.gpu.devices import Cuda, Emulated, skip_or_fail


@pytest.fixture(params=[Emulated, Cuda], ids=lambda device: device.name)
def device(request):
    reason = request.param.missing()
    if reason is not None:
        skip_or_fail(reason)
    return request.param
