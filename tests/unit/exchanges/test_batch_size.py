"""Exchanges get the size of batches."""

import pytest
import tensorflow as tf

from tests.support.gradients import gradients_of
from tests.support.transforms import DividesByBatchSize
from tf_onebit import OneBit, WarmStart
from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit.collectives.lockstep import LockstepEngine

SHAPES = [(40,), (30,)]
EXCHANGES = {
    "one_bit": OneBit(transforms=[DividesByBatchSize()]),
    "local": OneBit(local_transforms=[DividesByBatchSize()]),
    "warmed": WarmStart(OneBit(transforms=[DividesByBatchSize()]), steps=0),
    "buckets": OneBit(transforms=[DividesByBatchSize()], bucket_bytes=1),
}
every_exchange = pytest.mark.parametrize("name", EXCHANGES)


def make(name):
    return GradientExchange(EXCHANGES[name], LockstepEngine(["CPU:0"] * 2), mean=False)


def divisors(exchange, rng, variables, run=None):
    """Returns the numbers by which each worker's gradients are divided."""
    gradients = [gradients_of(rng, SHAPES) for _ in range(2)]
    exchanged = (run or exchange)(gradients, variables)
    return {
        round(float(tf.reduce_sum(a + b) / tf.reduce_sum(got)))
        for mine in exchanged
        for got, a, b in zip(mine, *gradients, strict=True)
    }


def variables_of():
    return [tf.Variable(tf.zeros(shape)) for shape in SHAPES]


@every_exchange
@pytest.mark.parametrize("in_a_graph", [False, True], ids=["eager", "graph"])
def test_reaches_what_counts_samples_in_every_bucket_of_every_worker(rng, name, in_a_graph):
    exchange, variables, traces = make(name), variables_of(), []

    def step(gradients, _):
        traces.append(1)
        return exchange(gradients, variables)

    run = tf.function(step) if in_a_graph else step
    for samples in (8, 2, 32):
        exchange.set_global_batch_size(samples)
        assert divisors(exchange, rng, variables, run) == {samples}
    assert len(traces) == 1 or not in_a_graph


@every_exchange
def test_reaches_what_is_built_later(rng, name):
    exchange = make(name)
    exchange.set_global_batch_size(4)
    assert [divisors(exchange, rng, variables_of()) for _ in range(2)] == [{4}, {4}]


@every_exchange
@pytest.mark.parametrize("built", [False, True], ids=["unbuilt", "built"])
def test_what_came_last_is_in_force_after_a_resume(rng, name, built):
    saved, variables = make(name), variables_of()
    saved.set_global_batch_size(4)
    divisors(saved, rng, variables)
    for told_after in (False, True):
        resumed = make(name)
        resumed.set_global_batch_size(2)
        if built:
            divisors(resumed, rng, variables)
        resumed.load_states(saved.carried.states(), saved.scale)
        if told_after:
            resumed.set_global_batch_size(8)
        assert divisors(resumed, rng, variables) == {8 if told_after else 4}


@pytest.mark.parametrize("samples", [0, -1, 1.5, float("nan"), float("inf"), "8", None, True])
def test_a_batch_size_that_is_none_is_refused(samples):
    with pytest.raises(ValueError, match=f"global_batch_size must be .*=.*{samples}"):
        make("one_bit").set_global_batch_size(samples)
