"""The threshold ops against the oracle, most of them to the last bit."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.reference import threshold as oracle
from tests.support.gradients import flat, gradients_of
from tests.support.programs import start_python
from tf_onebit import ops
from tf_onebit.ops.threshold import HEADER_WORDS, MAX_PART_SIZE

SHAPES = [(1, 1), (33,), (0,), (), (10, 100), (3, 3, 4, 24), (9001,), (31, 1)]
SIZES = [int(np.prod(shape)) for shape in SHAPES]
SIZE = sum(SIZES)
TAU = 0.7
STEPS = 2

every_dtype = pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
every_capacity = pytest.mark.parametrize("capacity", [0, 5, SIZE])
# One part, and parts that end within tensors and with them.
every_part_size = pytest.mark.parametrize("part_size", [MAX_PART_SIZE, SIZE, 1000, 34])


def variable_of(values):
    return tf.Variable(np.asarray(values, np.float32))


def parts_of(part_size, size=SIZE):
    return [slice(begin, min(begin + part_size, size)) for begin in range(0, size, part_size)]


class Message:
    """The fields of a row of messages."""

    def __init__(self, row):
        row = np.asarray(row)
        self.flag, self.words, self.count, self.exceeding = row[:4].tolist()
        self.step, self.squares = row[4:HEADER_WORDS].view(np.float32)
        self.codes, self.padding = row[HEADER_WORDS : self.words].view(np.uint32), row[self.words :]

    def sent(self):
        """Returns the values as the oracle has them: a list of (index, sign) pairs."""
        signs = np.where(self.codes >> 31, -1, 1)
        return list(zip((self.codes & 0x7FFFFFFF).tolist(), signs.tolist(), strict=True))


def write(codes, step=1.0, padding=0):
    """Returns a row of messages."""
    floats = np.array([step, 0.0], np.float32).view(np.uint32)
    header = [0, HEADER_WORDS + len(codes), len(codes), len(codes), *floats]
    return np.array([*header, *codes, *[0] * padding], np.uint32).view(np.int32)


def run(dtype, part_size, capacity):
    """Runs some steps of one worker. Returns the messages, and the values before and after."""
    rng = np.random.default_rng(7)
    residual = variable_of(rng.normal(size=SIZE))
    steps = []
    for _ in range(STEPS):
        gradients = gradients_of(rng, SHAPES, dtype)
        corrected = flat(gradients) + residual.numpy()
        rows = ops.threshold_encode(gradients, residual, TAU, 3.0, capacity, SIZES, part_size)
        steps.append((corrected, list(map(Message, rows)), residual.numpy()))
    return steps


@every_dtype
@every_part_size
@every_capacity
def test_some_steps_of_a_worker_are_those_of_the_oracle(dtype, part_size, capacity):
    for corrected, messages, residual in run(dtype, part_size, capacity):
        assert_that_messages_are_those_of_the_paper(corrected, messages, part_size, capacity)
        assert_that_residual_is_what_was_not_sent(corrected, residual, part_size, capacity)
        assert_that_sent_and_residual_are_what_came_in(corrected, messages, residual, part_size)
        assert_that_headers_say_what_follows(messages, residual, part_size, capacity)


def assert_that_messages_are_those_of_the_paper(corrected, messages, part_size, capacity):
    for part, message in zip(parts_of(part_size), messages, strict=True):
        expected, _, exceeding = oracle.encode(corrected[part], TAU, capacity)
        assert message.sent() == expected
        assert (message.count, message.exceeding) == (len(expected), exceeding)


def assert_that_residual_is_what_was_not_sent(corrected, residual, part_size, capacity):
    for part in parts_of(part_size):
        _, expected, _ = oracle.encode(corrected[part], TAU, capacity)
        # Values that wait have been subtracted and added again.
        is_exact = abs(corrected[part]) <= 2 * TAU
        np.testing.assert_array_equal(residual[part][is_exact], expected[is_exact])
        np.testing.assert_allclose(residual[part], expected, rtol=1e-6)


def assert_that_sent_and_residual_are_what_came_in(corrected, messages, residual, part_size):
    total = residual.astype(np.float64)
    for part, message in zip(parts_of(part_size), messages, strict=True):
        for index, sign in message.sent():
            total[part.start + index] += sign * np.float64(np.float32(TAU))
    is_exact = abs(corrected) <= 2 * TAU
    np.testing.assert_array_equal(total[is_exact], corrected[is_exact])
    np.testing.assert_allclose(total, corrected, rtol=1e-6)


def assert_that_headers_say_what_follows(messages, residual, part_size, capacity):
    for part, message in zip(parts_of(part_size), messages, strict=True):
        assert message.words == HEADER_WORDS + message.count
        assert len(message.padding) == capacity - message.count
        assert not message.padding.any()
        assert (message.flag, message.step) == (0, 3.0)
        squares = np.square(residual[part], dtype=np.float64).sum()
        np.testing.assert_allclose(message.squares, squares, rtol=1e-5)


@every_dtype
@every_part_size
@pytest.mark.parametrize("capacity", [50, SIZE])
def test_a_residual_decays_and_a_sent_value_takes_its_magnitude(rng, dtype, part_size, capacity):
    gradients, before = gradients_of(rng, SHAPES, dtype), rng.normal(size=SIZE)
    residual = variable_of(before)
    corrected = flat(gradients) + np.float32(0.7) * residual.numpy()
    rows = ops.threshold_encode(
        gradients, residual, TAU, 3.0, capacity, SIZES, part_size, magnitude=1.5, decay=0.7
    )
    for part, message in zip(parts_of(part_size), map(Message, rows), strict=True):
        expected, rest, _ = oracle.encode(corrected[part], TAU, capacity, magnitude=1.5)
        assert message.sent() == expected
        assert message.step == 3.0
        np.testing.assert_allclose(residual.numpy()[part], rest, rtol=1e-6, atol=1e-6)


@every_part_size
def test_without_padding_a_message_is_as_long_as_the_longest_part_needs(rng, part_size):
    values = gradients_of(rng, [(SIZE,)])[0]
    lengths = [len(oracle.encode(values[part].numpy(), TAU)[0]) for part in parts_of(part_size)]
    for capacity in (0, 3, SIZE):
        rows = ops.threshold_encode(
            [values], variable_of(np.zeros(SIZE)), TAU, 1.0, capacity, [SIZE], part_size, pad=False
        )
        assert rows.shape == [len(lengths), HEADER_WORDS + min(capacity, max(lengths))]


def test_what_does_not_fit_is_sent_later(rng):
    values = (rng.uniform(0.5, 2, SIZE) * rng.choice([-1, 1], SIZE)).astype(np.float32)
    residual, zeros = variable_of(values), tf.zeros([SIZE])
    expected, _, exceeding = oracle.encode(values, 1.0)
    capacity, sent = 500, []
    while exceeding > 0:
        (row,) = ops.threshold_encode([zeros], residual, 1.0, 1.0, capacity, [SIZE])
        message = Message(row)
        assert message.exceeding == exceeding
        assert message.count == min(capacity, exceeding)
        sent += message.sent()
        exceeding -= message.count
        # All values that wait keep their bits.
        _, waiting, _ = oracle.encode(values, 1.0, len(sent))
        np.testing.assert_array_equal(residual, waiting)
    assert sent == expected


def test_nothing_exceeds_infinity(rng):
    values = np.array([3e38, -3e38, -0.0, 1e-37, *rng.normal(size=60)], np.float32)
    residual = variable_of(np.full(64, -0.0))
    (row,) = ops.threshold_encode([tf.constant(values)], residual, np.inf, 1.0, 64, [64])
    assert Message(row).exceeding == 0
    assert residual.numpy().tobytes() == values.tobytes()


@pytest.mark.parametrize("part_size", [MAX_PART_SIZE, 10])
def test_no_values_have_a_message(part_size):
    no_values = [tf.zeros([0]), tf.zeros([5, 0])]
    rows = ops.threshold_encode(no_values, variable_of([]), 1.0, 2.0, 0, [0, 0], part_size)
    np.testing.assert_array_equal(rows, [write([], step=2.0)])
    for tensor, local in zip(
        ops.threshold_decode_sum([rows, rows], no_values, [0, 0], part_size), no_values, strict=True
    ):
        assert tensor.shape == local.shape
    coded = ops.golomb_rice_encode([rows], [0, 0], part_size)
    np.testing.assert_array_equal(ops.golomb_rice_decode(coded, [0, 0], part_size), [rows])


# ----------------------------------------------------------------------- values that are not finite

every_value = pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])


@every_dtype
@every_value
@pytest.mark.parametrize("position", [0, 31, 40, 5000, SIZE - 1])
def test_value_that_is_not_finite_is_not_sent_and_keeps_its_residual(rng, dtype, value, position):
    gradients = gradients_of(rng, SHAPES, dtype)
    before = rng.normal(size=SIZE).astype(np.float32)
    before[position] = 5.0
    expected, expected_residual, _ = oracle.encode(flat(gradients) + before, TAU)
    expected_residual[position] = 5.0
    tensor = np.searchsorted(np.cumsum(SIZES), position, side="right")
    values = gradients[tensor].numpy()
    values.flat[position - sum(SIZES[:tensor])] = value
    gradients[tensor] = tf.constant(values)

    residual = variable_of(before)
    (row,) = ops.threshold_encode(gradients, residual, TAU, 1.0, SIZE, SIZES)
    message = Message(row)
    assert message.flag == 1 + tensor
    assert message.sent() == [(i, sign) for i, sign in expected if i != position]
    np.testing.assert_array_equal(residual, expected_residual)
    # The Monitor's norm stays a number.
    squares = np.square(expected_residual, dtype=np.float64).sum()
    np.testing.assert_allclose(message.squares, squares, rtol=1e-5)


@pytest.mark.parametrize("part_size", [MAX_PART_SIZE, 100])
@pytest.mark.parametrize("tensors", [(0, 7), (1, 4), (6,), (0, 1, 3, 4, 5, 6, 7)])
def test_flag_names_the_first_tensor_in_every_part(tensors, part_size):
    gradients = [tf.fill(shape, np.nan if i in tensors else 1.0) for i, shape in enumerate(SHAPES)]
    residual = variable_of(np.zeros(SIZE))
    rows = ops.threshold_encode(gradients, residual, TAU, 1.0, SIZE, SIZES, part_size)
    assert {Message(row).flag for row in rows} == {1 + tensors[0]}


def test_sum_that_overflows_is_flagged():
    residual = variable_of([3e38, 1.0])
    (row,) = ops.threshold_encode([tf.fill([2], 3e38)], residual, 1.0, 1.0, 2, [2])
    assert Message(row).flag == 1
    assert residual.numpy()[0] == np.float32(3e38)


# --------------------------------------------------------------------------------- decode and apply


@functools.cache
def messages_of(world_size, part_size, sizes=tuple(SIZES)):
    """Returns messages of different steps, `[world_size, parts, words]`, and their content."""
    rng = np.random.default_rng(3)
    size, rows = sum(sizes), []
    for rank in range(world_size):
        residual = variable_of(rng.normal(size=size))
        # Workers send some, all or none of the values.
        threshold = [1.0, np.inf, 2.5, 0.1, 1e-6][rank % 5]
        capacity = min(size, part_size)
        no_gradients = [tf.zeros([size]) for size in sizes]
        rows.append(
            ops.threshold_encode(
                no_gradients, residual, threshold, 0.1 + rank, capacity, sizes, part_size
            )
        )
    return tf.stack(rows), [list(map(Message, parts)) for parts in rows]


def steps_of(messages):
    return [parts[0].step for parts in messages]


def sent_by(parts, part_size):
    """Returns (index, sign) pairs of a message about all values, as the oracle has them."""
    return [(p * part_size + i, sign) for p, part in enumerate(parts) for i, sign in part.sent()]


@every_dtype
@every_part_size
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_decoded_gradients_are_the_scaled_sum_in_the_order_of_ranks(
    rng, dtype, part_size, world_size
):
    received, messages = messages_of(world_size, part_size)
    sent = [sent_by(parts, part_size) for parts in messages]
    total = oracle.decode_sum(sent, steps_of(messages), SIZE, np.float32)
    scale = 1 / world_size
    local = gradients_of(rng, SHAPES, dtype)
    decoded = ops.threshold_decode_sum(received, local, SIZES, part_size, scale)
    assert [tuple(tensor.shape) for tensor in decoded] == SHAPES
    assert {tensor.dtype.name for tensor in decoded} == {dtype}
    expected = tf.cast(np.float32(scale) * total, dtype)
    np.testing.assert_array_equal(flat(decoded), flat([expected]))


@every_dtype
def test_outputs_that_fit_no_cache_are_the_same_sum(dtype):
    sizes, part_size = (5, 1_500_000, 0, 1_000_001, 3), 700_001
    received, messages = messages_of(2, part_size, sizes)
    total = np.zeros(sum(sizes), np.float32)
    for parts in messages:
        for part, message in enumerate(parts):
            indices = part * part_size + (message.codes & 0x7FFFFFFF)
            total[indices] += np.where(message.codes >> 31, -message.step, message.step)
    local = [tf.zeros([size], dtype) for size in sizes]
    decoded = ops.threshold_decode_sum(received, local, sizes, part_size)
    np.testing.assert_array_equal(flat(decoded), flat([tf.cast(total, dtype)]))


def test_decoding_no_messages_gives_zeros(rng):
    none = tf.zeros([0, 1, 10], tf.int32)
    decoded = ops.threshold_decode_sum(none, gradients_of(rng, SHAPES), SIZES)
    assert not flat(decoded).any()


@every_part_size
@pytest.mark.parametrize("world_size", [1, 3])
def test_decoded_sums_are_added_with_the_bits_of_an_addition(rng, part_size, world_size):
    received, _ = messages_of(world_size, part_size)
    before = gradients_of(rng, SHAPES)
    variables, factor = list(map(tf.Variable, before)), tf.constant(-0.3)
    decoded = ops.threshold_decode_sum(received, before, SIZES, part_size, 0.7)
    ops.threshold_decode_add(variables, received, factor, SIZES, part_size, 0.7)
    expected = [value + factor * change for value, change in zip(before, decoded, strict=True)]
    assert 0 < np.count_nonzero(flat(decoded)) < SIZE / 2
    np.testing.assert_array_equal(flat(variables), flat(expected))


def test_adding_no_messages_changes_nothing(rng):
    before = gradients_of(rng, SHAPES)
    variables = list(map(tf.Variable, before))
    ops.threshold_decode_add(variables, tf.zeros([0, 1, 10], tf.int32), 1.0, SIZES)
    np.testing.assert_array_equal(flat(variables), flat(before))


@every_part_size
@pytest.mark.parametrize("number", [0, 1, 3])
def test_apply_subtracts_one_message_after_another(rng, part_size, number):
    received, messages = messages_of(3, part_size)
    expected = gradients_of(rng, SHAPES)
    variables = list(map(tf.Variable, expected))
    ops.threshold_apply(variables, received[:number], part_size)
    expected = flat(expected)
    for parts in messages[:number]:
        sent = [sent_by(parts, part_size)]
        expected = expected - oracle.decode_sum(sent, steps_of([parts]), SIZE, np.float32)
    np.testing.assert_array_equal(flat(variables), expected)


@every_part_size
def test_variables_are_cleared_where_a_value_is_sent(rng, part_size):
    received, messages = messages_of(1, part_size)
    expected = gradients_of(rng, SHAPES)
    variables = list(map(tf.Variable, expected))
    ops.threshold_clear(variables, received, part_size)
    sent = oracle.decode_sum(
        [sent_by(messages[0], part_size)], steps_of(messages), SIZE, np.float32
    )
    assert 0 < np.count_nonzero(sent) < SIZE / 2
    np.testing.assert_array_equal(flat(variables), np.where(sent, 0, flat(expected)))


def test_only_a_range_of_a_variable_is_cleared():
    residual = tf.Variable(tf.zeros([5]))
    gradients = [tf.constant([0.1, 3.0]), tf.constant([2.0, 0.1, 2.0])]
    message = ops.threshold_encode(gradients, residual, 1.0, 1.0, 3, [2, 3])[tf.newaxis]
    variables = [tf.Variable(tf.ones([size])) for size in (4, 3)]
    ops.threshold_clear(variables, message, ranges=[(1, 2), (0, 3)])
    np.testing.assert_array_equal(variables[0], [1, 1, 0, 1])
    np.testing.assert_array_equal(variables[1], [0, 1, 0])
    for ranges, error in {
        ((3, 2), (0, 3)): "variable",
        ((-1, 2), (0, 3)): "begins must be places in variables. Received: -1",
    }.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=error):
            ops.threshold_clear(variables, message, ranges=ranges)
    np.testing.assert_array_equal(variables[0], [1, 1, 0, 1])


# ------------------------------------------------------------------------------------- Golomb-Rice


@every_part_size
@pytest.mark.parametrize("pad", [True, False])
def test_coded_messages_come_back(part_size, pad):
    packed, messages = messages_of(5, part_size)
    coded = ops.golomb_rice_encode(packed, SIZES, part_size, pad)
    decoded = ops.golomb_rice_decode(coded, SIZES, part_size)
    longest = max(message.words for parts in messages for message in parts)
    np.testing.assert_array_equal(decoded, packed[:, :, :longest])
    assert not np.any(packed[:, :, longest:])


@pytest.mark.parametrize("density", [0.3, 0.01, 0.001])
def test_coded_messages_are_as_short_as_documented(rng, density):
    size = 500_000
    indices = np.flatnonzero(rng.random(size) < density)
    codes = indices + 2**31 * rng.integers(0, 2, len(indices))
    coded = ops.golomb_rice_encode([[write(codes)]], [size], pad=False)
    bits_per_code = 32 * (coded.shape[-1] - HEADER_WORDS) / len(codes)
    assert bits_per_code < 1.5 - np.log2(density) + 1 + 0.5


@pytest.mark.parametrize("part_size", [MAX_PART_SIZE, 700])
def test_length_with_padding_depends_on_the_capacity_alone(part_size):
    size, capacity = 1000, 50
    lengths = set()
    for codes in (range(40), range(0, 300, 6), range(2**31 + 250, 2**31 + 300), [299], []):
        row = write(codes, padding=capacity - len(codes))
        parts = [row] * len(parts_of(part_size, size))
        coded = ops.golomb_rice_encode([parts], [size], part_size)
        lengths.add(coded.shape[-1])
        decoded = ops.golomb_rice_decode(coded, [size], part_size)
        np.testing.assert_array_equal(decoded, [[write(codes)] * len(parts)])
    assert len(lengths) == 1


# ------------------------------------------------------------------------------------- determinism

PRINT_DIGEST = """
import hashlib, sys
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from tf_onebit import ops

digest = hashlib.sha256()
def note(*tensors):
    for tensor in tensors:
        digest.update(tf.cast(tensor, tf.float32).numpy().tobytes())

rng = np.random.default_rng(5)
# Many stripes for threads to share, of which some are shorter.
sizes = [600_007, 300_000, 77]
for dtype in ("float32", "float16", "bfloat16"):
    for part_size in (2**31, 200_009):
        residuals = [tf.Variable(tf.zeros([sum(sizes)])) for _ in range(2)]
        for capacity in (40_000, 300_000):
            gradients = [tf.constant(rng.normal(size=size), dtype) for size in sizes]
            # There is not always room for all that exceeds.
            received = tf.stack([
                ops.threshold_encode(gradients, residual, tau, 0.3, capacity, sizes, part_size)
                for residual, tau in zip(residuals, (1.5, 0.1))
            ])
            digest.update(received.numpy().tobytes())
            note(*residuals)
            note(*ops.threshold_decode_sum(received, gradients, sizes, part_size, 0.5))
print(digest.hexdigest())
"""


def test_threads_and_instruction_sets_change_no_bit():
    settings = [("1", "plain"), ("2", "avx2"), ("2", "avx512")]
    programs = [
        start_python(PRINT_DIGEST, threads, in_fork=True, TF_ONEBIT_SIMD=simd)
        for threads, simd in settings
    ]
    digests = {}
    for setting, program in zip(settings, programs, strict=True):
        output, errors = program.communicate(timeout=120)
        assert program.returncode == 0, errors
        digests[setting] = output.strip()
    assert len(set(digests.values())) == 1, digests
    assert len(digests["1", "plain"]) == 64
