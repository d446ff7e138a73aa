"""The threshold kernels against the oracle, and their other promises."""

import numpy as np
import pytest

from tests.gpu.devices import Emulated
from tests.gpu.formats import to_float64, to_storage
from tests.gpu.threshold import (
    COUNT,
    EXCEEDING,
    FLAG,
    HEADER_WORDS,
    SQUARES,
    STEP,
    WORDS,
    ThresholdKernels,
)
from tests.reference import threshold as oracle
from tests.support.nightly import nightly

# Blocks of 4,096 values, whole and partial, and parts that begin in the middle of blocks.
SIZES = [33, 4096, 0, 1, 9000, 511]
PART_SIZES = [2**31, 5000]
DTYPES = ["float32", "float16", "bfloat16"]


def values_of(rng, sizes, dtype="float32"):
    return [
        to_storage(rng.normal(size=size) * np.exp(rng.normal(size=size)), dtype) for size in sizes
    ]


def flat(tensors, dtype="float32"):
    return np.concatenate([to_float64(tensor, dtype) for tensor in tensors]).astype(np.float32)


def parts_of(values, part_size):
    return np.split(values, range(part_size, values.size, part_size))


def codes_of(message):
    """Returns the (index, sign) pairs of a message."""
    codes = message[HEADER_WORDS:][: message[COUNT]].view(np.uint32)
    return [(int(code & 0x7FFFFFFF), -1 if code >> 31 else 1) for code in codes]


def float_of(word):
    return float(np.int32(word).view(np.float32))


@pytest.mark.parametrize("part_size", PART_SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threshold, capacity", [(4.0, 2000), (0.5, 700), (0.01, 14000), (99, 10)])
def test_messages_are_those_of_the_oracle(device, rng, dtype, threshold, capacity, part_size):
    kernels = ThresholdKernels(device, SIZES, part_size)
    residual = kernels.to_device(np.zeros(sum(SIZES), np.float32))
    kept = np.zeros(sum(SIZES), np.float32)
    for _ in range(2):
        gradients = values_of(rng, SIZES, dtype)
        messages = kernels.encode(gradients, residual, threshold, 0.25, capacity, dtype)
        rests = []
        corrected = parts_of(kept + flat(gradients, dtype), part_size)
        for message, values in zip(messages, corrected, strict=True):
            codes, rest, exceeding = oracle.encode(values, np.float32(threshold), capacity)
            rests.append(rest)
            assert message[FLAG] == 0
            assert message[WORDS] == HEADER_WORDS + len(codes)
            assert message[EXCEEDING] == exceeding
            assert codes_of(message) == codes
            assert not message[HEADER_WORDS + len(codes) :].any()
            assert float_of(message[STEP]) == 0.25
            assert float_of(message[SQUARES]) == pytest.approx(
                (rest.astype(float) ** 2).sum(), 1e-5
            )
        kept = np.concatenate(rests)
        np.testing.assert_array_equal(kernels.numpy(residual), kept)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("capacity", [700, 14000])
def test_a_residual_decays_and_a_sent_value_takes_its_magnitude(device, rng, dtype, capacity):
    kernels = ThresholdKernels(device, SIZES)
    before = rng.normal(size=sum(SIZES)).astype(np.float32)
    residual = kernels.to_device(before)
    gradients = values_of(rng, SIZES, dtype)
    options = {"magnitude": 0.75, "decay": 0.7}
    (message,) = kernels.encode(gradients, residual, 0.5, 0.25, capacity, dtype, **options)
    values = flat(gradients, dtype) + np.float32(0.7) * before
    codes, rest, _ = oracle.encode(values, np.float32(0.5), capacity, magnitude=0.75)
    assert codes_of(message) == codes
    # Values that wait have been subtracted and added again.
    np.testing.assert_allclose(kernels.numpy(residual), rest, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("misaligned", [False, True], ids=["aligned", "misaligned"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_run_has_the_bits_of_the_emulation(device, rng, dtype, misaligned):
    gradients = values_of(rng, SIZES, dtype)
    results = []
    for on, offset in [(Emulated, False), (device, misaligned), (device, misaligned)]:
        kernels = ThresholdKernels(on, SIZES, misaligned=offset)
        residual = kernels.to_device(np.zeros(sum(SIZES), np.float32))
        messages = kernels.encode(gradients, residual, 0.5, 0.25, 3000, dtype)
        decoded = kernels.decode_sum(np.stack([messages, messages]), 1 / 3, dtype)
        arrays = [messages, kernels.numpy(residual), *decoded]
        results.append(b"".join(array.tobytes() for array in arrays))
    assert results[1] == results[0]
    assert results[2] == results[0]


@pytest.mark.parametrize("part_size", PART_SIZES)
@pytest.mark.parametrize("workers", [1, 3, *nightly(130)])
def test_sums_are_those_of_the_oracle(device, rng, workers, part_size):
    kernels = ThresholdKernels(device, SIZES, part_size)
    steps = rng.uniform(0.1, 2, workers).astype(np.float32)
    messages, sent = [], []
    for step in steps:
        residual = kernels.to_device(np.zeros(sum(SIZES), np.float32))
        message = kernels.encode(values_of(rng, SIZES), residual, 3.0, step, 900)
        messages.append(message)
        sent.append([codes_of(part) for part in message])
    totals = []
    for part, values in enumerate(parts_of(np.zeros(sum(SIZES)), part_size)):
        of_part = [codes[part] for codes in sent]
        totals.append(oracle.decode_sum(of_part, steps, values.size, np.float32))
    total = np.concatenate(totals)
    for dtype in DTYPES:
        decoded = kernels.decode_sum(np.stack(messages), 0.25, dtype)
        expected = to_storage(total * np.float32(0.25), dtype)
        np.testing.assert_array_equal(np.concatenate(decoded), expected)


def test_variables_move_by_what_messages_say(device, rng):
    sizes = [400, 0, 5000, 1]
    kernels = ThresholdKernels(device, sizes, part_size=3000)
    before = values_of(rng, sizes)
    variables = [kernels.to_device(values) for values in before]
    messages, expected = [], [values.copy() for values in before]
    for step in np.float32([0.5, 0.3]):
        residual = kernels.to_device(np.zeros(sum(sizes), np.float32))
        message = kernels.encode(values_of(rng, sizes), residual, 2.0, step, 300)
        messages.append(message)
        for values, sent in zip(expected, kernels.decode_sum(message[np.newaxis]), strict=True):
            values -= sent
    kernels.update(variables, np.stack(messages))
    for variable, values in zip(variables, expected, strict=True):
        np.testing.assert_array_equal(kernels.numpy(variable), values)


def test_decoded_sums_are_added_to_variables(device, rng):
    sizes = [400, 0, 5000, 1]
    kernels = ThresholdKernels(device, sizes, part_size=3000)
    messages = []
    for _ in range(3):
        residual = kernels.to_device(np.zeros(sum(sizes), np.float32))
        messages.append(kernels.encode(values_of(rng, sizes), residual, 2.0, 0.5, 300))
    messages, before = np.stack(messages), values_of(rng, sizes)
    variables = [kernels.to_device(values) for values in before]
    kernels.decode_add(variables, messages, -0.3, 0.7)
    decoded = kernels.decode_sum(messages, 0.7)
    assert 0 < sum(map(np.count_nonzero, decoded)) < sum(sizes) / 2
    for variable, values, change in zip(variables, before, decoded, strict=True):
        np.testing.assert_array_equal(kernels.numpy(variable), values + np.float32(-0.3) * change)


def test_variables_are_cleared_where_messages_have_values(device, rng):
    sizes = [400, 0, 5000, 1]
    kernels = ThresholdKernels(device, sizes, part_size=3000)
    residual = kernels.to_device(np.zeros(sum(sizes), np.float32))
    message = kernels.encode(values_of(rng, sizes), residual, 2.0, 0.5, 300)[np.newaxis]
    before = values_of(rng, sizes)
    variables = [kernels.to_device(values) for values in before]
    kernels.update(variables, message, clears=True)
    for variable, values, sent in zip(variables, before, kernels.decode_sum(message), strict=True):
        np.testing.assert_array_equal(kernels.numpy(variable), np.where(sent, 0, values))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_flagged_and_stays_out(device, rng, bad):
    kernels = ThresholdKernels(device, SIZES)
    residual = kernels.to_device(np.full(sum(SIZES), 0.25, np.float32))
    gradients = values_of(rng, SIZES)
    finite = flat(gradients)
    gradients[4][8999] = gradients[5][3] = bad
    (message,) = kernels.encode(gradients, residual, 2.0, 2.0, 9000)
    bad_at = [sum(SIZES[:4]) + 8999, sum(SIZES[:5]) + 3]
    finite[bad_at] = 0
    codes, rest, _ = oracle.encode(finite + np.float32(0.25), np.float32(2.0))
    assert message[FLAG] == 1 + 4
    assert codes_of(message) == codes
    np.testing.assert_array_equal(kernels.numpy(residual), rest)
    assert np.isfinite(float_of(message[SQUARES]))


def test_more_tensors_than_a_launch_takes(device, rng):
    sizes = [3, 0, 17] * 200
    kernels = ThresholdKernels(device, sizes)
    residual = kernels.to_device(np.zeros(sum(sizes), np.float32))
    gradients = values_of(rng, sizes)
    (message,) = kernels.encode(gradients, residual, 1.0, 1.0, sum(sizes))
    codes, rest, _ = oracle.encode(flat(gradients), np.float32(1.0))
    assert codes_of(message) == codes
    np.testing.assert_array_equal(kernels.numpy(residual), rest)
    decoded = kernels.decode_sum(message[np.newaxis, np.newaxis])
    np.testing.assert_array_equal(
        flat(decoded), oracle.decode_sum([codes], [1.0], sum(sizes), np.float32)
    )


def test_nothing_is_a_message_too(device):
    kernels = ThresholdKernels(device, [0, 0])
    residual = kernels.to_device(np.zeros(0, np.float32))
    messages = kernels.encode([np.zeros(0, np.float32)] * 2, residual, 1.0, 0.5, 4)
    assert messages.shape == (1, HEADER_WORDS + 4)
    assert list(messages[0, : EXCEEDING + 1]) == [0, HEADER_WORDS, 0, 0]


@pytest.mark.parametrize(
    "words",
    [
        {COUNT: -1},
        {COUNT: 2**31 - 1},
        {HEADER_WORDS: -1},
        {HEADER_WORDS: 2**31 - 1, HEADER_WORDS + 1: 0},
    ],
)
def test_a_corrupt_message_changes_nothing_else(device, rng, words):
    sizes = [100, 4096]
    kernels = ThresholdKernels(device, sizes)
    message = np.zeros((1, 1, HEADER_WORDS + 8), np.int32)
    message[0, 0, : HEADER_WORDS + 1] = (
        0,
        HEADER_WORDS + 1,
        1,
        1,
        np.float32(1).view(np.int32),
        0,
        7,
    )
    for at, word in words.items():
        message[0, 0, at] = word
    room = kernels.to_device(np.full(3 * 8192, 5, np.float32))
    variables = [room[8192:][:100], room[8192 + 100 :][:4096]]
    kernels.update(variables, message)
    after = kernels.numpy(room)
    assert (after[:8192] == 5).all()
    assert (after[8192 + 4196 :] == 5).all()
    assert kernels.decode_sum(message)[0].shape == (100,)
