"""The threshold ops refuse arguments that do not fit each other, and corrupt messages."""

import resource

import numpy as np
import pytest
import tensorflow as tf

from tests.unit.ops.test_ops_errors import refuses, variable
from tests.unit.ops.test_threshold_ops import write
from tf_onebit import ops
from tf_onebit.ops.threshold import (
    COUNT,
    EXCEEDING,
    FLAG,
    HEADER_WORDS,
    MAX_PART_SIZE,
    SQUARES,
    STEP,
    WORDS,
)

SIZES = [64, 5]
SIZE = 69


def gradients(first=64, second=5, dtype=tf.float32):
    return [tf.ones([first], dtype), tf.ones([second], dtype)]


def encode(given=None, residual=None, threshold=1.0, step=1.0, capacity=3, sizes=SIZES, **options):
    given = gradients() if given is None else given
    residual = variable(SIZE) if residual is None else residual
    return ops.threshold_encode(given, residual, threshold, step, capacity, sizes, **options)


@pytest.mark.parametrize("sizes", [(63, 5), (65, 5), (0, 5), (64, 4), (5, 64)])
def test_encode_refuses_gradients_of_other_sizes(sizes):
    with refuses(r"gradient must have (64|5) values, as the layout says\. Received: \d+ values"):
        encode(gradients(*sizes))


def test_encode_refuses_another_number_of_gradients():
    with refuses("gradients must have 2 values, as the layout says. Received: 1 values"):
        encode(gradients()[:1])


def test_encode_refuses_an_empty_list():
    with refuses("N"):
        encode([], variable(0), sizes=[])


@pytest.mark.parametrize("size", [0, 68, 70])
def test_encode_refuses_a_residual_of_another_size(size):
    with refuses(f"residual must have 69 values, as the layout says. Received: {size} values"):
        encode(residual=variable(size))


def test_encode_refuses_a_residual_of_another_type():
    with refuses("residual must be a float32 variable. Received: dtype=double"):
        encode(residual=variable(SIZE, tf.float64))


@pytest.mark.parametrize("dtype", [tf.float64, tf.int32])
def test_encode_refuses_gradients_of_other_types(dtype):
    with refuses("T"):
        encode(gradients(dtype=dtype))


@pytest.mark.parametrize("threshold", [0.0, -0.0, -1.0, -np.inf, np.nan])
def test_encode_refuses_a_threshold_that_is_not_positive(threshold):
    with refuses("threshold must be positive. Received: threshold="):
        encode(threshold=threshold)


@pytest.mark.parametrize("size", [-1.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["magnitude", "step"])
def test_encode_refuses_what_is_no_size(name, size):
    with refuses(f"{name} must be .*finite. Received: {name}="):
        encode(**{name: size})


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.5, np.nan])
def test_encode_refuses_a_decay_that_is_no_fraction(decay):
    with refuses("decay must be above 0 and at most 1. Received: decay="):
        encode(decay=decay)


@pytest.mark.parametrize("capacity", [-1, 2**31 + 1, -(2**62)])
def test_encode_refuses_a_capacity_that_is_no_number_of_values(capacity):
    expected = rf"capacity must be a number of values, at most 2\^31. Received: capacity={capacity}"
    with refuses(expected):
        encode(capacity=capacity)


@pytest.mark.parametrize("name", ["threshold", "magnitude", "step", "capacity"])
def test_encode_refuses_several_numbers_in_the_place_of_one(name):
    with refuses("threshold, magnitude, step and capacity must have 1 values.*Received: 2 values"):
        encode(**{name: [1, 1]})


def test_a_refused_call_leaves_the_residual_unlocked_and_unchanged():
    residual = variable(SIZE)
    for arguments in ({"threshold": -1.0}, {"given": gradients(63)}):
        with refuses("Received"):
            encode(residual=residual, **arguments)
    assert not residual.numpy().any()
    encode(residual=residual)


# ------------------------------------------------------------------------------------- messages

# A message that all readers accept: of two workers, about two parts of 35 and 34 values.
PARTS = {"part_size": 35}
GOOD = np.stack([[write([0, 2**31 + 7, 33], padding=2)] * 2] * 2)
CODED = ops.golomb_rice_encode(GOOD, SIZES, **PARTS).numpy()
VARIABLES = [tf.Variable(tf.ones([size])) for size in SIZES]


def apply(messages, sizes=SIZES, **options):
    """Applies messages to variables, which must not change if it fails."""
    variables = [variable(size) for size in sizes]
    try:
        ops.threshold_apply(variables, messages, **options)
    except tf.errors.InvalidArgumentError:
        assert not any(np.any(variable) for variable in variables)
        raise
    # The variables are not locked afterwards either.


def decode_sum(messages, sizes=SIZES, **options):
    return ops.threshold_decode_sum(messages, list(map(tf.zeros, sizes)), sizes, **options)


PACKED_READERS = {
    "decode_sum": decode_sum,
    "apply": apply,
    "golomb_rice_encode": lambda m, sizes=SIZES, **o: ops.golomb_rice_encode(m, sizes, **o),
}
READERS = {
    **{name: (read, GOOD) for name, read in PACKED_READERS.items()},
    "golomb_rice_decode": (
        lambda m, sizes=SIZES, **o: ops.golomb_rice_decode(m, sizes, **o),
        CODED,
    ),
}
every_reader = pytest.mark.parametrize(("read", "good"), READERS.values(), ids=READERS)
every_packed_reader = pytest.mark.parametrize(
    "read", PACKED_READERS.values(), ids=PACKED_READERS.keys()
)


@every_reader
def test_the_message_that_is_altered_below_is_read(read, good):
    read(good, **PARTS)


def altered(messages, changes):
    """Returns messages with other words in the last one, which rank 1 sent about part 1."""
    messages = messages.copy()
    for word, value in changes.items():
        messages[1, 1, word] = np.uint32(value & 0xFFFFFFFF).astype(np.int32)
    return messages


def bits(value):
    return int(np.float32(value).view(np.uint32))


def refuses_message(rank, fault):
    advice = "Do all workers run the same version of tf_onebit"
    return refuses(f"Message {rank} is corrupt: {fault}.*{advice}")


# By message: the words of a header that are wrong for packed and for coded messages.
HEADER_FAULTS = {
    "its length is not that of its words": [
        *({WORDS: length} for length in (0, HEADER_WORDS - 1, 2**31 - 1, -1, -(2**31))),
        *({WORDS: 1000}, {WORDS: 1000, COUNT: 3}),
    ],
    "it has more values than there are": [
        {word: count} for word in (COUNT, EXCEEDING) for count in (35, 2**31 - 1, -1)
    ],
    "it has more values than exceed the threshold": [{COUNT: 4}, {EXCEEDING: 2}],
    "its flag is negative": [{FLAG: -1}, {FLAG: -(2**31)}],
    "its sum of squares is": [{SQUARES: bits(squares)} for squares in (-1.0, np.nan, -np.inf)],
    "its step is not a": [{STEP: bits(step)} for step in (-1.0, np.nan, np.inf, -np.inf)],
}


@every_reader
@pytest.mark.parametrize(
    ("fault", "changes"),
    [(fault, changes) for fault, cases in HEADER_FAULTS.items() for changes in cases],
)
def test_a_corrupt_header_is_refused(read, good, fault, changes):
    with refuses_message(1, fault):
        read(altered(good, changes), **PARTS)


@every_reader
@pytest.mark.parametrize("words", range(HEADER_WORDS))
def test_a_message_that_ends_within_its_header_is_refused(read, good, words):
    with refuses_message(0, "it ends within its header"):
        read(good[:, :, :words], **PARTS)


@every_packed_reader
@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        ("its length and its number of values do not agree", {COUNT: 0}),
        ("its length and its number of values do not agree", {COUNT: 2}),
        ("its length and its number of values do not agree", {COUNT: 34, EXCEEDING: 34}),
        ("its length and its number of values do not agree", {WORDS: HEADER_WORDS + 2}),
        ("its indices do not ascend, or there are fewer values", {HEADER_WORDS: 8}),
        ("its indices do not ascend, or there are fewer values", {HEADER_WORDS: 7}),
        ("its indices do not ascend, or there are fewer values", {HEADER_WORDS + 2: 7}),
        ("its indices do not ascend, or there are fewer values", {HEADER_WORDS + 2: 34}),
        ("its indices do not ascend, or there are fewer values", {HEADER_WORDS + 2: 2**31 + 34}),
        ("its indices do not ascend, or there are fewer values", {HEADER_WORDS + 2: -1}),
    ],
)
def test_corrupt_values_are_refused(read, fault, changes):
    with refuses_message(1, fault):
        read(altered(GOOD, changes), **PARTS)


FIXED = HEADER_WORDS + 1  # after the parameter of the only block


@pytest.mark.parametrize(
    "changes",
    [
        {COUNT: 0},
        {COUNT: 2},
        {COUNT: 4, EXCEEDING: 4},
        {COUNT: 34, EXCEEDING: 34},
        {WORDS: HEADER_WORDS},
        {WORDS: HEADER_WORDS + 2},
        {HEADER_WORDS: 31},
        {HEADER_WORDS: 255},
        {HEADER_WORDS: 1 << 8},
        {FIXED: -1},
        {FIXED + 1: 0},
        {FIXED + 1: -1},
        {FIXED + 1: 0b111 << 20},
    ],
)
def test_codes_that_do_not_decode_are_refused(changes):
    with refuses_message(1, "it does not decode to as many ascending indices as it says"):
        ops.golomb_rice_decode(altered(CODED, changes), SIZES, **PARTS)


def test_a_count_that_cannot_be_takes_no_memory():
    hostile = write([0] * 100)
    hostile[[COUNT, EXCEEDING]] = 2**31 - 1
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with refuses_message(0, "it does not decode"):
        ops.golomb_rice_decode([[hostile]], [2**31])
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert kilobytes < 100_000


@every_reader
@pytest.mark.parametrize(
    "index", [np.s_[0], np.s_[0, 0], np.s_[:, :1], np.s_[:, [0, 1, 1]]], ids=str
)
def test_messages_of_another_shape_are_refused(read, good, index):
    with refuses(r"messages must have shape \[number of messages, 2, words\]. Received: shape=\["):
        read(good[index], **PARTS)


@every_reader
@pytest.mark.parametrize("part_size", [0, -1, MAX_PART_SIZE + 1])
def test_parts_that_an_index_cannot_address_are_refused(read, good, part_size):
    with refuses(rf"part_size must be from 1 to 2\^31.*Received: part_size={part_size}"):
        read(good, part_size=part_size)


def test_encode_refuses_parts_that_an_index_cannot_address():
    with refuses(r"part_size must be from 1 to 2\^31.*Received: part_size=0"):
        encode(part_size=0)


def test_negative_sizes_are_refused():
    expected = "sizes must be numbers of values. Received: -1"
    with refuses(expected):
        encode(sizes=[70, -1])
    with refuses(expected):
        ops.golomb_rice_encode(GOOD, [70, -1])


def test_decode_refuses_gradients_of_other_sizes():
    with refuses("gradient must have 64 values, as the layout says. Received: 65 values"):
        ops.threshold_decode_sum(GOOD, gradients(65), SIZES, **PARTS)
    with refuses("gradients must have 2 values, as the layout says. Received: 1 values"):
        ops.threshold_decode_sum(GOOD, gradients()[:1], SIZES, **PARTS)


def test_apply_refuses_variables_of_another_type():
    with refuses("variable must be a float32 variable. Received: dtype=half"):
        ops.threshold_apply([variable(SIZE, tf.float16)], GOOD, **PARTS)


def test_apply_refuses_a_variable_twice():
    twice = [variable(35)] * 2
    with refuses(r"All variables must be different ones. Received: variables\[1\] a second time"):
        ops.threshold_apply(twice, GOOD, **PARTS)
    with refuses(r"All variables must be different ones. Received: variables\[1\] a second time"):
        ops.threshold_decode_add(twice, GOOD, 1.0, [35, 35], **PARTS)


def test_nothing_is_added_to_variables_that_do_not_fit():
    fitting = [variable(64), variable(5)]
    for expected, variables, factor in [
        ("variable must have 64 values", [variable(65), variable(5)], 1.0),
        ("variables must have 2 values", fitting[:1], 1.0),
        ("factor must have 1 values", fitting, [1.0, 2.0]),
    ]:
        with refuses(expected):
            ops.threshold_decode_add(variables, GOOD, factor, SIZES, **PARTS)
    assert not any(value.numpy().any() for value in fitting)


def test_parts_are_known_while_a_graph_is_made():
    residual = variable(SIZE)

    @tf.function
    def exchange():
        row = encode(residual=residual, **PARTS)
        coded = ops.golomb_rice_encode(row[tf.newaxis], SIZES, **PARTS)
        assert row.shape.as_list() == [2, None]
        assert coded.shape.as_list() == [1, 2, None]
        with pytest.raises(ValueError, match="must be rank 3"):
            ops.golomb_rice_encode(row, SIZES, **PARTS)
        return coded

    exchange()
