"""The compiled ops refuse arguments that do not fit each other."""

import types

import pytest
import tensorflow as tf

from tf_onebit import ops
from tf_onebit._layout import Layout

LAYOUT = Layout([(64, 32, 32), (5, 0, 0)], world_size=2)
WORKER_WORDS = LAYOUT.worker_message_bytes // 4
SHARD_WORDS = LAYOUT.shard_message_bytes // 4


def variable(size, dtype=tf.float32):
    return tf.Variable(tf.zeros([size], dtype))


def gradients(first=64, second=5):
    return [tf.ones([first]), tf.ones([second])]


def messages(shape, dtype=tf.int32):
    return tf.zeros(shape, dtype)


def refuses(message):
    return pytest.raises(tf.errors.InvalidArgumentError, match=message)


@pytest.mark.parametrize("sizes", [(63, 5), (65, 5), (0, 5), (64, 4), (5, 64)])
def test_encode_refuses_gradients_of_other_sizes(sizes):
    with refuses(r"gradient must have (64|5) values, as the layout says\. Received: \d+ values"):
        ops.one_bit_encode(gradients(*sizes), variable(64), LAYOUT)


def test_encode_refuses_another_number_of_gradients():
    with refuses("gradients must have 2 values, as the layout says. Received: 1 values"):
        ops.one_bit_encode(gradients()[:1], variable(64), LAYOUT)


def test_encode_refuses_an_empty_list():
    with refuses("N"):
        ops.one_bit_encode([], variable(0), Layout([], world_size=2))


@pytest.mark.parametrize("size", [0, 63, 69])
def test_encode_refuses_a_residual_of_another_size(size):
    with refuses(f"residual must have 64 values, as the layout says. Received: {size} values"):
        ops.one_bit_encode(gradients(), variable(size), LAYOUT)


def test_encode_refuses_a_residual_of_another_type():
    with refuses("residual must be a float32 or bfloat16 variable. Received: dtype=double"):
        ops.one_bit_encode(gradients(), variable(64, tf.float64), LAYOUT)


@pytest.mark.parametrize("size", [63, 69])
def test_scales_of_another_number_of_values_are_refused(size):
    expected = f"value_scales must have 64 values, as the layout says. Received: {size} values"
    with refuses(expected):
        ops.one_bit_encode(gradients(), variable(64), LAYOUT, value_scales=tf.ones([size]))
    received = messages([2, SHARD_WORDS]), tf.ones([5])
    with refuses(expected):
        ops.one_bit_decode(*received, gradients(), LAYOUT, value_scales=tf.ones([size]))


def test_learning_refuses_what_does_not_fit_the_layout():
    with refuses("update must have 64 values, as the layout says. Received: 65 values"):
        ops.one_bit_learn_scales(gradients(65), variable(64), LAYOUT)
    with refuses("updates must have 2 values, as the layout says. Received: 1 values"):
        ops.one_bit_learn_scales(gradients()[:1], variable(64), LAYOUT)
    with refuses("squares must have 64 values, as the layout says. Received: 69 values"):
        ops.one_bit_learn_scales(gradients(), variable(69), LAYOUT)


@pytest.mark.parametrize("dtype", [tf.float64, tf.int32])
def test_encode_refuses_gradients_of_other_types(dtype):
    with refuses("T"):
        ops.one_bit_encode([tf.cast(g, dtype) for g in gradients()], variable(64), LAYOUT)


def test_encode_refuses_gradients_of_two_types():
    first, second = gradients()
    with pytest.raises((tf.errors.InvalidArgumentError, TypeError), match="half|float16"):
        ops.one_bit_encode([first, tf.cast(second, tf.float16)], variable(64), LAYOUT)


def test_encode_refuses_unknown_levels():
    with refuses("median"):
        ops.one_bit_encode(gradients(), variable(64), LAYOUT, levels="median")


@pytest.mark.parametrize(
    "shape", [(2, WORKER_WORDS - 1), (2, WORKER_WORDS + 1), (1, WORKER_WORDS), (3, WORKER_WORDS)]
)
def test_owner_refuses_messages_of_another_shape(shape):
    expected = rf"messages must have shape \[2, {WORKER_WORDS}\], .* Received: shape=\[{shape[0]},"
    with refuses(expected):
        ops.one_bit_decode_sum(messages(shape), LAYOUT, rank=0)
    with refuses(expected):
        ops.one_bit_aggregate(messages(shape), variable(32), LAYOUT, rank=0)


def test_owner_refuses_messages_of_another_rank():
    with refuses(r"messages must have shape .* Received: shape=\[\d+\]"):
        ops.one_bit_decode_sum(messages([2 * WORKER_WORDS]), LAYOUT, rank=0)


@pytest.mark.parametrize("size", [31, 33, 64])
def test_encode_shard_refuses_an_aggregate_of_another_size(size):
    with refuses(f"aggregate must have 32 values, as the layout says. Received: {size} values"):
        ops.one_bit_encode_shard(tf.ones([size]), variable(32), LAYOUT, rank=1)


def test_owner_refuses_a_residual_of_another_size():
    expected = "residual must have 32 values, as the layout says. Received: 64 values"
    with refuses(expected):
        ops.one_bit_encode_shard(tf.ones([32]), variable(64), LAYOUT, rank=1)
    with refuses(expected):
        ops.one_bit_aggregate(messages([2, WORKER_WORDS]), variable(64), LAYOUT, rank=1)


@pytest.mark.parametrize("bits", [3, 7])
def test_another_number_of_bits_is_refused(bits):
    expected = f"bits must be 1 or 2. Received: bits={bits}"
    with refuses(expected):
        ops.one_bit_encode_shard(tf.ones([32]), variable(32), LAYOUT, rank=1, bits=bits)
    with refuses(expected):
        ops.one_bit_aggregate(messages([2, WORKER_WORDS]), variable(32), LAYOUT, 0, bits=bits)
    with refuses(expected):
        received = messages([2 * bits, SHARD_WORDS])
        ops.one_bit_decode(received, tf.ones([5]), gradients(), LAYOUT, bits=bits)


def test_a_second_bit_needs_error_feedback():
    for_shard = {"error_feedback": False, "bits": 2}
    with refuses("bits=2 needs error_feedback"):
        ops.one_bit_encode_shard(tf.ones([32]), variable(0), LAYOUT, rank=1, **for_shard)


def test_decode_refuses_messages_of_fewer_bits():
    with refuses(rf"messages must have shape \[4, {SHARD_WORDS}\]"):
        ops.one_bit_decode(messages([2, SHARD_WORDS]), tf.ones([5]), gradients(), LAYOUT, bits=2)


@pytest.mark.parametrize("rank", [2, 100])
def test_owner_refuses_a_rank_without_a_shard(rank):
    expected = f"rank must be less than the number of shards, 2. Received: rank={rank}."
    with refuses(expected):
        ops.one_bit_decode_sum(messages([2, WORKER_WORDS]), LAYOUT, rank)
    with refuses(expected):
        ops.one_bit_encode_shard(tf.ones([32]), variable(32), LAYOUT, rank)
    with refuses(expected):
        ops.one_bit_aggregate(messages([2, WORKER_WORDS]), variable(32), LAYOUT, rank)


def test_owner_refuses_a_negative_rank():
    with refuses("rank"):
        ops.one_bit_decode_sum(messages([2, WORKER_WORDS]), LAYOUT, rank=-1)


def test_decode_refuses_messages_of_another_shape():
    with refuses(rf"messages must have shape \[2, {SHARD_WORDS}\], as the layout says"):
        ops.one_bit_decode(messages([2, WORKER_WORDS]), tf.ones([5]), gradients(), LAYOUT)


def test_decode_refuses_plain_values_of_another_number():
    with refuses("plain must have 5 values, as the layout says. Received: 6 values"):
        ops.one_bit_decode(messages([2, SHARD_WORDS]), tf.ones([6]), gradients(), LAYOUT)


def test_decode_refuses_gradients_that_do_not_fit_the_layout():
    received = messages([2, SHARD_WORDS]), tf.ones([5])
    with refuses("gradient must have 64 values, as the layout says. Received: 65 values"):
        ops.one_bit_decode(*received, gradients(65), LAYOUT)
    with refuses("gradients must have 2 values, as the layout says. Received: 1 values"):
        ops.one_bit_decode(*received, gradients()[:1], LAYOUT)


@pytest.mark.parametrize(
    ("expected", "variables", "words", "factor"),
    [
        ("variable must have 64 values", [variable(65), variable(5)], SHARD_WORDS, 1.0),
        ("variables must have 2 values", [variable(64)], SHARD_WORDS, 1.0),
        ("must be a float32 variable", [variable(64), variable(5, tf.half)], SHARD_WORDS, 1.0),
        ("messages must have shape", [variable(64), variable(5)], WORKER_WORDS, 1.0),
        ("factor must have 1 values", [variable(64), variable(5)], SHARD_WORDS, [1.0, 2.0]),
    ],
)
def test_nothing_is_added_to_variables_that_do_not_fit(expected, variables, words, factor):
    with refuses(expected):
        ops.one_bit_decode_add(
            variables, messages([2, words]), tf.ones([5]), LAYOUT, tf.constant(factor)
        )
    assert not any(value.numpy().any() for value in variables)
    variables[0].assign_add(tf.ones_like(variables[0]))  # it is unlocked


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": (64,)},
        {"sizes": (-64, 5)},
        {"row_sizes": (32, 0, 0)},
        {"row_sizes": (0, 0)},
        {"row_sizes": (16, 0)},
        {"column_sizes": (32,)},
        {"column_sizes": (-32, 0)},
        {"column_sizes": (64, 0)},
        {"column_sizes": (32, 32)},
        {"shard_starts": ()},
        {"shard_starts": (2,)},
        {"shard_starts": (1, 1, 2)},
        {"shard_starts": (0, 1, 3)},
        {"shard_starts": (0, 2, 1, 2)},
    ],
    ids=str,
)
def test_attributes_that_describe_no_layout_are_refused(change):
    inconsistent = types.SimpleNamespace(attributes=lambda: LAYOUT.attributes() | change)
    expected = "do not describe a layout. They come from tf_onebit._layout.Layout"
    with refuses(expected):
        ops.one_bit_encode(gradients(), variable(64), inconsistent)
    with refuses(expected):
        ops.one_bit_decode(messages([2, SHARD_WORDS]), tf.ones([5]), gradients(), inconsistent)


def test_attributes_that_describe_no_layout_are_refused_while_a_graph_is_made():
    inconsistent = types.SimpleNamespace(attributes=lambda: LAYOUT.attributes() | {"sizes": ()})
    with tf.Graph().as_default(), pytest.raises(ValueError, match="do not describe a layout"):
        ops.one_bit_decode_sum(messages([2, WORKER_WORDS]), inconsistent, rank=0)


def test_sizes_are_checked_when_a_graph_runs():
    residual = variable(64)

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None])])
    def encode(first, second):
        return ops.one_bit_encode([first, second], residual, LAYOUT)

    encode(*gradients())
    with refuses("gradient must have 64 values, as the layout says. Received: 63 values"):
        encode(*gradients(63))


def test_a_refused_call_leaves_the_residual_unlocked_and_unchanged():
    residual = variable(64)
    with refuses("residual must have 32 values"):
        ops.one_bit_encode_shard(tf.ones([32]), residual, LAYOUT, rank=0)
    assert not residual.numpy().any()
    ops.one_bit_encode(gradients(), residual, LAYOUT)
