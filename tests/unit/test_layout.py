"""The division of gradients into columns and shards, on which Python and the compiled ops agree."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.reference.one_bit import columns_of
from tf_onebit import ops
from tf_onebit._layout import Layout, column_cut, plain_cut

MIN_COLUMN_SIZE, MAX_COLUMN_SIZE = 64, 128
MODELS = {
    "odd": [(1, 1), (1,), (1, 31), (31, 1), (32,), (1, 33), (33, 7), (1000, 1), (0,)],
    "convolutions": [(3, 3, 16, 24), (24,), (3, 3, 24, 200), (200,)],
    "long_rows": [(5, 930), (930,), (2, 9304)],
    "even": [(64, 128), (128, 128)],
    "one_column": [(1, 100)],
    "plain_only": [(7,), (), (1000,)],
    "empty": [(0,)],
}
WORLD_SIZES = [1, 2, 3, 5, 8]
every_layout = pytest.mark.parametrize("world_size", WORLD_SIZES)
every_model = pytest.mark.parametrize("shapes", MODELS.values(), ids=MODELS.keys())


def layout_of(shapes, world_size):
    cuts = [
        (math.prod(shape), *column_cut(shape, MIN_COLUMN_SIZE, MAX_COLUMN_SIZE))
        if len(shape) > 1
        else plain_cut(shape)
        for shape in shapes
    ]
    return Layout(cuts, world_size)


def reference_columns(shapes):
    """Returns the numbers of values of all columns."""
    return [
        column.stop - column.start
        for shape in shapes
        if len(shape) > 1
        for column in columns_of(shape, MIN_COLUMN_SIZE, MAX_COLUMN_SIZE)
    ]


def words_of(columns):
    return [-(-count // 32) for count in columns]


@every_model
def test_columns_are_those_of_the_reference(shapes):
    columns = reference_columns(shapes)
    # As many shards as columns: each shard is one column, or two if columns are uneven.
    layout = layout_of(shapes, world_size=max(1, len(columns)))
    assert layout.num_columns == len(columns)
    shards = [
        sum(columns[begin:end])
        for begin, end in zip(layout.shard_starts[:-1], layout.shard_starts[1:], strict=True)
    ]
    assert list(layout.shard_sizes) == shards


@every_model
def test_columns_and_plain_tensors_cover_every_value_once(shapes):
    layout = layout_of(shapes, world_size=3)
    assert layout.size == sum(math.prod(shape) for shape in shapes if len(shape) > 1)
    assert layout.size + layout.plain_size == sum(map(math.prod, shapes))
    assert sum(layout.shard_sizes) == layout.size


@every_model
def test_columns_start_on_words(shapes):
    layout = layout_of(shapes, world_size=2)
    assert layout.code_words == sum(words_of(reference_columns(shapes)))


@every_layout
@every_model
def test_shards_are_balanced_to_within_one_column(shapes, world_size):
    words = words_of(reference_columns(shapes))
    layout = layout_of(shapes, world_size)
    ends = np.concatenate([[0], np.cumsum(words)])[np.asarray(layout.shard_starts)]
    shares = ends[-1] * np.arange(world_size + 1) / world_size
    assert (np.abs(ends - shares) <= max(words, default=0) / 2).all()


@every_layout
@every_model
def test_shards_are_consecutive_runs_of_all_columns(shapes, world_size):
    layout = layout_of(shapes, world_size)
    assert len(layout.shard_starts) == world_size + 1
    assert (layout.shard_starts[0], layout.shard_starts[-1]) == (0, layout.num_columns)
    assert list(layout.shard_starts) == sorted(layout.shard_starts)


def test_shards_without_columns_are_empty():
    layout = layout_of([(1, 100)], world_size=8)
    assert sorted(layout.shard_sizes) == [0] * 7 + [100]


@pytest.mark.parametrize("row_size", [1, 2, 31, 32, 33, 63, 64])
def test_short_rows_are_merged_until_they_are_long_enough(row_size):
    merged, column_size = column_cut((1000, row_size), min_column_size=64, max_column_size=512)
    assert merged == column_size
    assert merged % row_size == 0
    assert 64 <= merged < 64 + row_size


@pytest.mark.parametrize("row_size", [129, 200, 930, 1000, 9304])
def test_long_rows_are_cut_into_few_columns_of_whole_words(row_size):
    uncut, column_size = column_cut((5, row_size), min_column_size=64, max_column_size=128)
    assert uncut == row_size
    assert column_size <= 128
    assert column_size % 32 == 0
    assert math.ceil(row_size / column_size) == math.ceil(row_size / 128)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_empty_tensors_have_no_columns(shape):
    layout = Layout([(0, *column_cut(shape, MIN_COLUMN_SIZE, MAX_COLUMN_SIZE))], world_size=2)
    assert (layout.num_columns, layout.size, layout.code_words) == (0, 0, 0)


def test_a_column_does_not_span_tensors():
    layout = layout_of([(1, 10), (1, 10)], world_size=1)
    assert layout.num_columns == 2
    assert layout.code_words == 2


@every_layout
@every_model
def test_ops_infer_and_produce_the_shapes_of_the_layout(shapes, world_size):
    layout = layout_of(shapes, world_size)
    worker_words = layout.worker_message_bytes // 4
    shard_words = layout.shard_message_bytes // 4
    residual = tf.Variable(tf.zeros([layout.size]))
    shards = [tf.Variable(tf.zeros([size])) for size in layout.shard_sizes]

    @tf.function
    def all_ops():
        gradients = [tf.ones(shape) for shape in shapes]
        messages, _ = ops.one_bit_encode(gradients, residual, layout)
        outputs = [(messages, [world_size, worker_words])]
        for rank, shard in enumerate(shards):
            aggregate, plain = ops.one_bit_decode_sum(messages, layout, rank)
            outputs += [(aggregate, [layout.shard_sizes[rank]]), (plain, [layout.plain_size])]
            message, _ = ops.one_bit_encode_shard(aggregate, shard, layout, rank)
            outputs.append((message, [1, shard_words]))
            message, _, plain = ops.one_bit_aggregate(messages, shard, layout, rank, bits=2)
            outputs += [(message, [2, shard_words]), (plain, [layout.plain_size])]
        for tensor, shape in outputs:
            assert tensor.shape == shape, f"inferred {tensor.shape}, expected {shape}"
        expected.extend(shape for _, shape in outputs)
        return [tensor for tensor, _ in outputs]

    expected = []
    assert [tensor.numpy().shape for tensor in all_ops()] == list(map(tuple, expected))
