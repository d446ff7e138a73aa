"""OneBit against the paper: the oracle, and properties over many steps."""

import numpy as np
import pytest
import tensorflow as tf

from tests.reference.one_bit import Cluster, columns_of
from tests.support.gradients import (
    ROUNDING,
    as_float64,
    assert_close,
    build_workers,
    exchange,
    flat,
    gradients_of,
    specs_of,
)
from tests.support.nightly import nightly
from tests.support.transforms import DivideByTotal
from tf_onebit import OneBit
from tf_onebit._layout import Layout, column_cut
from tf_onebit.exchanges import Bucketed

MATRICES = [(31, 1), (10, 100), (1, 33), (3, 3, 4, 24), (4, 200)]
PLAIN = [(33,), (), (0,)]
SMALL = {"min_column_size": 32, "max_column_size": 64, "min_size": 31}
every_world_size = pytest.mark.parametrize("world_size", [1, 5, *nightly(2)])
every_rule = pytest.mark.parametrize("levels", ["mean", "symmetric"])
every_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16", *nightly("float16")])


def columns(shape):
    return columns_of(shape, SMALL["min_column_size"], SMALL["max_column_size"])


@every_world_size
@every_dtype
@every_rule
@pytest.mark.parametrize("error_feedback", [True, False], ids=["feedback", "no_feedback"])
@pytest.mark.parametrize("bucket_bytes", [10**9, 2000], ids=["one_bucket", "buckets"])
def test_exchange_is_that_of_the_paper(
    rng, world_size, dtype, levels, error_feedback, bucket_bytes
):
    settings = {"levels": levels, "error_feedback": error_feedback}
    oracles = [
        Cluster(world_size, columns(shape), int(np.prod(shape)), **settings) for shape in MATRICES
    ]
    template = Bucketed(OneBit(bucket_bytes=bucket_bytes, **settings, **SMALL))
    workers = build_workers(template, specs_of(MATRICES, dtype), world_size)
    for _ in range(2):
        gradients = [gradients_of(rng, MATRICES, dtype) for _ in range(world_size)]
        exchanged, _ = exchange(workers, gradients, scale=1 / world_size)
        for i, oracle in enumerate(oracles):
            expected = oracle.exchange([as_float64(mine[i]).ravel() for mine in gradients])
            received = as_float64(exchanged[0][i]).ravel()
            assert_close(received, expected / world_size, relative=ROUNDING[dtype])


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("transforms", [[], [DivideByTotal(0.1)]], ids=["sum", "transformed"])
def test_second_bit_of_an_aggregate_quantizes_the_error_of_the_first(rng, world_size, transforms):
    template = OneBit(aggregate_bits=2, transforms=transforms, **SMALL)
    workers = build_workers(template, specs_of(MATRICES), world_size)
    sizes = [int(np.prod(shape)) for shape in MATRICES]
    oracles = [
        Cluster(world_size, columns(shape), size, bits=2)
        for shape, size in zip(MATRICES, sizes, strict=True)
    ]
    # The sum of a few codes has many equal values. Without a residual, rounding alone would decide
    # about the second bit of their errors.
    residual = rng.normal(size=sum(sizes)).astype(np.float32)
    ends = np.cumsum(sizes)
    for oracle, mine in zip(oracles, np.split(residual, ends[:-1]), strict=True):
        oracle.owners.residual = mine.astype(np.float64)
    ends = np.cumsum([worker.shard_residual.shape[0] for worker in workers])
    for worker, shard in zip(workers, np.split(residual, ends[:-1]), strict=True):
        worker.shard_residual.assign(shard)
    for _ in range(2):
        gradients = [gradients_of(rng, MATRICES) for _ in range(world_size)]
        exchanged, _ = exchange(workers, gradients)
        sums = [
            sum(
                worker(as_float64(mine[i]).ravel())
                for worker, mine in zip(oracle.workers, gradients, strict=True)
            )
            for i, oracle in enumerate(oracles)
        ]
        total = 0.1 * sum(np.abs(values).sum() for values in sums) if transforms else 1.0
        for oracle, values, received in zip(oracles, sums, exchanged[0], strict=True):
            assert_close(as_float64(received).ravel(), oracle.owners(values / total))


@pytest.mark.parametrize("moments, bits", [("after", 1), ("local", 2)])
def test_aggregates_of_updates_have_two_bits_by_default(moments, bits):
    assert OneBit(moments=moments).aggregate_bits == bits
    assert OneBit(moments=moments, aggregate_bits=1).aggregate_bits == 1


@every_world_size
@every_rule
@pytest.mark.parametrize("bits", [1, 2])
def test_all_gradients_are_what_was_applied_and_the_last_residuals(rng, world_size, levels, bits):
    shapes = MATRICES + PLAIN
    template = OneBit(levels=levels, aggregate_bits=bits, **SMALL)
    workers = build_workers(template, specs_of(shapes), world_size)
    local, applied = 0, 0
    for _ in range(20):
        gradients = [gradients_of(rng, shapes) for _ in range(world_size)]
        exchanged, _ = exchange(workers, gradients)
        local = local + sum(flat(mine, tf.float64) for mine in gradients)
        applied = applied + flat(exchanged[0], tf.float64)
    kept = sum(as_float64(worker.worker_residual) for worker in workers)
    kept = kept + np.concatenate([as_float64(worker.shard_residual) for worker in workers])
    plain_values = local.size - kept.size
    applied += np.concatenate([kept, np.zeros(plain_values)])
    # In units of the sum of magnitudes, because rounding errors of the steps add up.
    np.testing.assert_allclose(applied, local, atol=1e-5 * np.abs(local).max())
    assert np.abs(kept).max() > 1e-2 * np.abs(local).max()


@every_world_size
def test_transforms_work_once_on_the_sum_over_the_workers(rng, world_size):
    shapes = [(10, 100), (33,)]
    transforms = [DivideByTotal(factor=0.1), DivideByTotal(factor=0.5)]
    template = OneBit(transforms=transforms, **SMALL)
    workers = build_workers(template, specs_of(shapes), world_size)
    oracle = Cluster(world_size, columns((10, 100)), 1000)
    gradients = [gradients_of(rng, shapes) for _ in range(world_size)]
    exchanged, _ = exchange(workers, gradients)

    oracle.exchange([as_float64(matrix).ravel() for matrix, _ in gradients])
    plain = sum(as_float64(vector) for _, vector in gradients)
    # After the first transform all magnitudes add up to 1 / 0.1; the second makes it 1 / 0.5.
    total = 0.5 * (np.abs(oracle.aggregate).sum() + np.abs(plain).sum())
    owners = Cluster(1, columns((10, 100)), 1000).owners
    assert_close(as_float64(exchanged[0][0]).ravel(), owners(oracle.aggregate / total))
    assert_close(exchanged[0][1], plain / total)


@pytest.mark.parametrize("scale", [1.0, 0.5, -2.0])
def test_result_is_scaled_and_the_residuals_are_not(rng, scale):
    shapes = MATRICES + PLAIN
    gradients = [gradients_of(rng, shapes) for _ in range(2)]
    workers, scaled_workers = (build_workers(OneBit(), specs_of(shapes), 2) for _ in range(2))
    for _ in range(2):
        exchanged, _ = exchange(workers, gradients)
        scaled, _ = exchange(scaled_workers, gradients, scale)
        for tensor, scaled_tensor in zip(exchanged[0], scaled[0], strict=True):
            np.testing.assert_array_equal(scale * tensor, scaled_tensor)


def test_vectors_and_small_tensors_are_exact(rng):
    shapes = [(1023, 1), (5, 5, 5), (100_000,), (1024, 1)]
    gradients = [gradients_of(rng, shapes) for _ in range(3)]
    exchanged, _ = exchange(build_workers(OneBit(), specs_of(shapes), 3), gradients)
    is_exact = [
        np.array_equal(tensor, parts[0] + parts[1] + parts[2])
        for tensor, *parts in zip(exchanged[0], *gradients, strict=True)
    ]
    assert is_exact == [True, True, True, False]


def test_residual_norm_is_that_of_both_residuals(rng):
    workers = build_workers(OneBit(**SMALL), specs_of(MATRICES), 3)
    for _ in range(2):
        exchange(workers, [gradients_of(rng, MATRICES) for _ in range(3)])
    for worker in workers:
        residuals = flat([worker.worker_residual, worker.shard_residual], tf.float64)
        assert_close(worker.residual_sum_of_squares(), np.square(residuals).sum(), 1e-5)


def test_no_residuals_are_held_without_error_feedback():
    (worker,) = build_workers(OneBit(error_feedback=False, **SMALL), specs_of(MATRICES), 1)
    assert sum(tf.size(variable).numpy() for variable in worker.variables) == 1


def test_residuals_are_one_value_per_value_and_one_per_value_of_the_shard():
    workers = build_workers(OneBit(**SMALL), specs_of(MATRICES + PLAIN), 3)
    size = sum(int(np.prod(shape)) for shape in MATRICES)
    assert [worker.worker_residual.shape for worker in workers] == [[size]] * 3
    assert sum(worker.shard_residual.shape[0] for worker in workers) == size


# The DNN of Seide et al. 2014 that the benchmarks use: 45 million weights.
DNN_WIDTHS = [429, *7 * [2048], 9304]


@pytest.mark.parametrize("world_size", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("max_column_size", [512, 2048])
def test_codes_of_a_large_model_take_one_bit_per_value(world_size, max_column_size):
    shapes = list(zip(DNN_WIDTHS[:-1], DNN_WIDTHS[1:], strict=True))
    cuts = [(a * b, *column_cut((a, b), 64, max_column_size)) for a, b in shapes]
    layout = Layout(cuts, world_size)
    levels_bytes = 8 * int(np.diff(layout.shard_starts).max())
    codes_bytes = layout.shard_message_bytes - levels_bytes - 4
    sent_bytes = 2 * (world_size - 1) * codes_bytes
    one_bit_per_value = 2 * (world_size - 1) / world_size * sum(a * b for a, b in shapes) / 8
    assert abs(sent_bytes / one_bit_per_value - 1) < 0.01


@pytest.mark.parametrize("max_column_size", [512, 2048])
def test_levels_of_a_large_model_take_two_floats_per_column(max_column_size):
    shapes = list(zip(DNN_WIDTHS[:-1], DNN_WIDTHS[1:], strict=True))
    columns = sum(a * -(-b // max_column_size) for a, b in shapes)
    worker = OneBit(max_column_size=max_column_size)
    layout = Layout([worker._cut(spec) for spec in specs_of(shapes)], world_size=1)
    assert layout.shard_message_bytes == 4 + 8 * columns + 4 * layout.code_words
