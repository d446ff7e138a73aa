"""`exchange="auto"` between real workers."""

import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.nightly import nightly
from tests.support.ranks import assert_same_bits_on_all_ranks, engine, gather
from tf_onebit import Auto, OneBit, WarmStart
from tf_onebit._configurable import serialize
from tf_onebit._training.auto import with_decision, without_decision
from tf_onebit._training.gradient_exchange import GradientExchange

SHAPES = (256, 64), (64,), (64, 128)


def exchanged(exchange, variables, times=2):
    """Returns the gradients after some exchanges."""

    @tf.function
    def step():
        gradients = [tf.random.stateless_normal(v.shape, [engine().ranks[0], 1]) for v in variables]
        return exchange([gradients], variables)[0]

    for _ in range(times):
        gradients = step()
    return [gradient.numpy() for gradient in gradients]


def make_variables():
    return [tf.Variable(tf.zeros(shape), name=f"v{i}") for i, shape in enumerate(SHAPES)]


@pytest.mark.workers(2, engines=["horovod", *nightly("tensorflow")])
def test_workers_decide_alike_and_stay_with_it():
    variables = make_variables()
    exchange = GradientExchange(Auto(WarmStart(OneBit(), steps=1)), engine(), mean=True)
    assert_same_bits_on_all_ranks(exchanged(exchange, variables))
    decided = serialize(exchange.built[0].template)
    assert gather(decided) == 2 * [decided]
    # Gradients that it leaves out are named completely.
    assert set(exchange.built[0].template.exclude) <= {f"^v{i}:0$" for i in range(3)} | {".*"}

    # A resumed run does not decide again. A new decision would differ from this one.
    other = WarmStart(OneBit(exclude=["^v0:0$", "nothing else"]), steps=1)
    (states,) = exchange.carried.states()
    states = [with_decision(without_decision(state), other) for state in states]
    resumed = GradientExchange(Auto(), engine(), mean=True)
    resumed.load_states([gather(states[0])], exchange.scale)
    with pytest.raises(ValueError, match="must use the same exchange as before"):
        exchanged(resumed, variables)  # its residuals belong to other gradients
    assert not resumed.built

    again = GradientExchange(Auto(), engine(), mean=True)
    again.load_states([gather(exchange.carried.states()[0][0])], exchange.scale)
    first, second = (exchanged(e, variables, times=1) for e in (exchange, again))
    assert serialize(again.built[0].template) == decided
    for mine, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.workers(2, engines=["horovod", "tensorflow"])
def test_a_worker_that_does_not_measure_is_told_apart():
    mine = Auto() if engine().ranks == [0] else OneBit()
    with pytest.raises(ValueError, match="rank 0 has exchange = .*Auto.*, rank 1 has .*OneBit"):
        exchanged(GradientExchange(mine, engine(), mean=True), make_variables())


@pytest.mark.nightly
@pytest.mark.workers(2)
def test_tapes_of_a_loop_share_one_decision():
    variables = make_variables()
    exchanges = []
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v * v) for v in variables])
        tape = hvd.DistributedGradientTape(tape, exchange="auto")
        tape.gradient(loss, variables)
        exchanges.append(tape._exchange)
    assert exchanges[0] is exchanges[1]
    assert len(exchanges[0].built) == 1
