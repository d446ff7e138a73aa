"""WarmStart: full precision first, then the exchange it wraps."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import build_workers, exchange, gradients_of, specs_of
from tests.support.nightly import nightly
from tf_onebit import Delayed, FullPrecision, OneBit, WarmStart
from tf_onebit.exchanges import Bucketed
from tf_onebit.transforms import Momentum

SHAPES = [(40, 100), (7,)]


def workers_of(steps, world_size=2):
    return build_workers(WarmStart(OneBit(), steps), specs_of(SHAPES), world_size)


def run_eagerly(workers, gradients):
    return exchange(workers, gradients)[0][0]


def run_in_a_graph():
    return tf.function(run_eagerly)


@pytest.mark.parametrize("run", [lambda: run_eagerly, run_in_a_graph], ids=["eager", "graph"])
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("world_size", [2, *nightly(1, 3)])
def test_switches_after_exactly_so_many_exchanges(rng, run, steps, world_size):
    workers, step = workers_of(steps, world_size), run()
    compressed = build_workers(OneBit(), specs_of(SHAPES), world_size)
    for i in range(steps + 2):
        gradients = [gradients_of(rng, SHAPES) for _ in range(world_size)]
        exchanged = step(workers, gradients)
        if i < steps:
            expected = [tf.add_n(parts) for parts in zip(*gradients, strict=True)]
        else:
            expected = run_eagerly(compressed, gradients)
        for tensor, value in zip(exchanged, expected, strict=True):
            np.testing.assert_array_equal(tensor, value)


def test_residuals_stay_zero_until_the_switch(rng):
    workers = workers_of(steps=2)
    norms = []
    for _ in range(4):
        exchange(workers, [gradients_of(rng, SHAPES) for _ in range(2)])
        norms.append(workers[0].residual_sum_of_squares())
    assert norms[:2] == [0, 0]
    assert min(norms[2:]) > 0


def test_reported_bytes_are_those_of_the_last_exchange(rng):
    workers = workers_of(steps=2)
    reported = []
    for _ in range(4):
        exchange(workers, [gradients_of(rng, SHAPES) for _ in range(2)])
        reported.append(workers[0].bytes_sent())
    full, compressed = 4 * 4007 + 4, workers[0].buckets[0].exchange.bytes_sent()
    assert reported == [full, full, compressed, compressed]
    assert compressed < full / 10


def test_begins_once():
    with pytest.raises(ValueError, match="Received: WarmStart within WarmStart. Use one"):
        WarmStart(WarmStart(OneBit(), steps=1), steps=1)


def test_wraps_what_compresses_nothing(rng):
    template = WarmStart(FullPrecision(), steps=1)
    workers = build_workers(template, specs_of(SHAPES), 2)
    for _ in range(3):
        gradients = [gradients_of(rng, SHAPES) for _ in range(2)]
        exchanged, _ = exchange(workers, gradients)
        for tensor, *parts in zip(exchanged[0], *gradients, strict=True):
            np.testing.assert_array_equal(tensor, parts[0] + parts[1])


def test_takes_over_buckets_and_exclusions():
    template = WarmStart(OneBit(bucket_bytes=123, exclude=["bias"]), steps=1)
    assert (template.bucket_bytes, template.exclude) == (123, ("bias",))


def advice_after(template, rng, exchanges):
    """Returns the advice of a worker if training ended after some exchanges."""
    workers = build_workers(template, specs_of(SHAPES), 2)
    for _ in range(exchanges):
        exchange(workers, [gradients_of(rng, SHAPES) for _ in range(2)])
    return workers[0].advice()


def test_says_how_much_of_a_warm_start_is_over_and_how_long_one_might_be(rng):
    by_steps = WarmStart(OneBit(), steps=1000)
    by_samples = WarmStart(OneBit(), samples=9000, global_batch_size=64)
    assert "after 20 of 1000 steps. All" in advice_after(by_steps, rng, 20)
    said = advice_after(by_samples, rng, 3)
    assert "after 192 of 9000 samples. All" in said
    assert "WarmStart(..., samples=...) with about a tenth of the job's samples" in said
    assert said.endswith("Received: samples=9000. Use for example samples=19.")


@pytest.mark.parametrize(
    "template, exchanges",
    [
        (WarmStart(OneBit(), steps=3), 0),
        (WarmStart(OneBit(), steps=3), 3),
        # A single worker does the same.
        (WarmStart(OneBit(transforms=[Momentum(0.9)]), steps=9).uncompressed(), 3),
        (Bucketed(OneBit()), 1),
        (Delayed(OneBit()), 0),
    ],
    ids=["not begun", "over", "nothing to compress", "none", "delayed"],
)
def test_says_nothing_where_nothing_was_to_be_compressed_by_now(rng, template, exchanges):
    assert advice_after(template, rng, exchanges) is None


def test_what_is_said_counts_from_the_beginning_of_a_run_that_was_resumed(rng):
    before, after = (workers_of(steps=9) for _ in range(2))
    for _ in range(4):
        exchange(before, [gradients_of(rng, SHAPES) for _ in range(2)])
    after[0].load_state([worker.state() for worker in before])
    assert after[0].advice() == before[0].advice() is not None
