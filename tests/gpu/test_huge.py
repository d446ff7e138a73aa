"""Inputs of more than 2^31 bytes on a GPU: the values at their end come out right."""

import numpy as np
import pytest

from tests.gpu.devices import Cuda
from tests.gpu.one_bit import OneBitKernels, layout
from tests.gpu.skipping import skip_or_fail
from tests.gpu.threshold import COUNT, HEADER_WORDS, ThresholdKernels

COLUMN_SIZE, TAIL = 512, 64
NUM_COLUMNS = 2**31 // 4 // COLUMN_SIZE + TAIL


@pytest.fixture
def device():
    reason = Cuda.missing()
    if reason is not None:
        skip_or_fail(reason)
    return Cuda


def one_bit_results(device, gradient):
    """Returns levels, codes, decoded gradient and residual."""
    columns = gradient.size // COLUMN_SIZE
    kernels = OneBitKernels(device, layout.Layout([(gradient.size, *2 * [COLUMN_SIZE])], 1))
    residual = kernels.residual(gradient.size)
    messages, _ = kernels.encode([gradient], residual)
    (decoded,) = kernels.decode(messages, np.zeros(0, np.float32))
    levels, codes = np.split(messages[0, 1:], [2 * columns])
    return levels, codes, decoded, kernels.numpy(residual)


def test_one_bit_messages_of_more_than_two_gibibytes(device, rng):
    gradient = rng.standard_normal(NUM_COLUMNS * COLUMN_SIZE, np.float32)
    whole = one_bit_results(device, gradient)
    end = one_bit_results(device, gradient[-TAIL * COLUMN_SIZE :])
    for of_whole, of_end in zip(whole, end, strict=True):
        np.testing.assert_array_equal(of_whole[-of_end.size :], of_end)


def test_threshold_messages_about_more_than_two_gibibytes(device, rng):
    size, tail = NUM_COLUMNS * COLUMN_SIZE, TAIL * COLUMN_SIZE
    gradient = rng.standard_normal(size, np.float32)

    def sent(values):
        kernels = ThresholdKernels(device, [values.size])
        residual = kernels.to_device(np.zeros(values.size, np.float32))
        message = kernels.encode([values], residual, 3.5, 1.0, values.size // 1000)
        (decoded,) = kernels.decode_sum(message[np.newaxis])
        codes = message[0, HEADER_WORDS:][: message[0, COUNT]].view(np.uint32)
        return codes, decoded, kernels.numpy(residual)

    (codes, *whole), (codes_of_end, *end) = sent(gradient), sent(gradient[-tail:])
    assert codes_of_end.size > 0
    np.testing.assert_array_equal(
        codes[-codes_of_end.size :], codes_of_end + np.uint32(size - tail)
    )
    for of_whole, of_end in zip(whole, end, strict=True):
        np.testing.assert_array_equal(of_whole[-tail:], of_end)
