"""IndexedSlices are summed exactly."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import as_float64, build_workers, exchange
from tf_onebit import FullPrecision, OneBit, WarmStart
from tf_onebit.collectives import echo
from tf_onebit.exchanges import Bucketed, GradientSpec

ROWS, WIDTH = 10, 3
TEMPLATES = [OneBit(), FullPrecision(), WarmStart(OneBit(), steps=1)]
every_template = pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: type(t).__name__)
INDICES = {
    "distinct": [[1, 2], [3, 4], [5, 6]],
    "shared": [[1, 2], [2, 1], [1, 9]],
    "duplicate": [[1, 1, 1], [1, 0, 1], [0, 0, 9]],
    "different_counts": [[1, 2, 3, 4, 5], [], [9]],
    "none": [[], [], []],
}
every_pattern = pytest.mark.parametrize("indices", INDICES.values(), ids=INDICES.keys())


def slices_of(rng, indices, index_dtype=tf.int64, dtype=tf.float32):
    # Small integers: sums are exact in any order.
    values = tf.constant(rng.integers(-8, 9, size=(len(indices), WIDTH)), dtype)
    shape = tf.constant([ROWS, WIDTH], index_dtype)
    return tf.IndexedSlices(values, tf.constant(indices, index_dtype), shape)


def dense(slices):
    """Returns the matrix of the slices, in which equal indices add up."""
    matrix = np.zeros([ROWS, WIDTH])
    np.add.at(matrix, np.asarray(slices.indices, int), as_float64(slices.values))
    return matrix


def embedding_spec(dtype="float32", sparse=True):
    return GradientSpec("embedding", (ROWS, WIDTH), dtype, sparse)


@every_template
@every_pattern
@pytest.mark.parametrize("index_dtype", [tf.int32, tf.int64], ids=lambda d: d.name)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16], ids=lambda d: d.name)
def test_sum_is_exact(rng, template, indices, index_dtype, dtype):
    workers = build_workers(Bucketed(template), [embedding_spec(dtype.name)], 3)
    gradients = [[slices_of(rng, mine, index_dtype, dtype)] for mine in indices]
    exchanged, _ = exchange(workers, gradients, scale=0.5)
    expected = 0.5 * sum(dense(slices) for (slices,) in gradients)
    for (slices,) in exchanged:
        np.testing.assert_array_equal(dense(slices), expected)
        assert (slices.indices.dtype, slices.values.dtype) == (index_dtype, dtype)


def test_scale_is_not_rounded_to_float32(rng):
    workers = build_workers(Bucketed(OneBit()), [embedding_spec("float64")], 3)
    gradients = [[slices_of(rng, [1, 2], dtype=tf.float64)] for _ in range(3)]
    exchanged, _ = exchange(workers, gradients, scale=1 / 3)
    expected = sum(dense(slices) for (slices,) in gradients) / 3
    np.testing.assert_allclose(dense(exchanged[0][0]), expected, rtol=1e-15)


@every_pattern
def test_each_row_of_the_result_has_another_index(rng, indices):
    workers = build_workers(Bucketed(OneBit()), [embedding_spec()], 3)
    exchanged, _ = exchange(workers, [[slices_of(rng, mine)] for mine in indices])
    for (slices,) in exchanged:
        received = slices.indices.numpy().tolist()
        assert sorted(received) == sorted(set(sum(indices, [])))


@every_pattern
@pytest.mark.parametrize(
    ("dtype", "row_bytes"), [("float32", 4 + 4 * WIDTH), ("bfloat16", 4 + 2 * WIDTH)]
)
def test_reported_bytes_are_those_of_the_rows_of_this_worker(rng, dtype, row_bytes, indices):
    workers = build_workers(Bucketed(OneBit()), [embedding_spec(dtype)], 3)
    exchange(workers, [[slices_of(rng, mine, dtype=tf.as_dtype(dtype))] for mine in indices])
    assert [worker.bytes_sent() for worker in workers] == [
        2 * (4 + len(set(mine)) * row_bytes) for mine in indices
    ]


# Rows of three tables have the same shape.
TABLES = [(10, 3), (7, 3), (5, 2, 2), (4,), (2**31, 3)]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16], ids=lambda d: d.name)
def test_tables_with_rows_of_one_shape_share_a_collective(rng, dtype):
    indices = [[[1, 9, 1], [6], [0, 4], [3], [2**31 - 1]], [[], [6, 0], [4], [3], [5, 9]]]
    gradients = [
        [
            tf.IndexedSlices(
                tf.constant(rng.integers(-8, 9, size=(len(rows), *shape[1:])), dtype),
                tf.constant(rows, tf.int64),
                tf.constant(shape, tf.int64),
            )
            for rows, shape in zip(of_worker, TABLES, strict=True)
        ]
        for of_worker in indices
    ]
    specs = [GradientSpec(str(i), shape, dtype.name, True) for i, shape in enumerate(TABLES)]
    workers = build_workers(Bucketed(OneBit(bucket_bytes=2**40)), specs, 2)
    names = []
    echo.run(workers[0].run(gradients[0], 0.5), 2, lambda request: names.append(request.name))
    assert len(names) == 1 + 3  # a worker sends flags, and rows of three shapes
    results, _ = exchange(workers, gradients, 0.5)
    for exchanged in results:
        for slices, both in zip(exchanged, zip(*gradients, strict=True), strict=True):
            sums = {}
            for one in both:
                for row, values in zip(one.indices.numpy(), as_float64(one.values), strict=True):
                    sums[row] = sums.get(row, 0) + values / 2
            received = dict(zip(slices.indices.numpy(), as_float64(slices.values), strict=True))
            assert received.keys() == sums.keys()
            for row, values in sums.items():
                np.testing.assert_array_equal(received[row], values)


def test_an_index_beyond_a_table_reaches_no_other_table(rng):
    specs = [GradientSpec(name, (ROWS, WIDTH), "float32", True) for name in "ab"]
    workers = build_workers(Bucketed(OneBit()), specs, 2)
    gradients = [[slices_of(rng, [-1, ROWS]), slices_of(rng, [0])] for _ in range(2)]
    (first, second), *_ = exchange(workers, gradients)[0]
    assert sorted(first.indices.numpy()) == [-1, ROWS]
    assert second.indices.numpy().tolist() == [0]


def test_what_full_precision_would_send_has_the_rows_and_not_the_matrix(rng):
    (worker, *_) = workers = build_workers(Bucketed(OneBit()), [embedding_spec()], 3)
    exchange(workers, [[slices_of(rng, [1, 2])] for _ in range(3)])
    assert worker.full_precision_bytes() == worker.bytes_sent()


def test_travels_beside_dense_gradients(rng):
    specs = [GradientSpec("kernel", (40, 100), "float32"), embedding_spec()]
    workers = build_workers(Bucketed(OneBit()), specs, 2)
    gradients = [[tf.ones([40, 100]), slices_of(rng, [k, 5])] for k in range(2)]

    @tf.function
    def step():
        return exchange(workers, gradients)[0]

    kernel, slices = step()[1]
    np.testing.assert_array_equal(kernel, 2 * np.ones([40, 100]))
    np.testing.assert_array_equal(dense(slices), sum(dense(mine) for _, mine in gradients))
