"""Plain gradient descent: exchanged gradients are added to weights while they are decoded."""

import itertools

import keras
import numpy as np
import pytest

import tf_onebit.horovod as hvd
from tests.support.bits import assert_same_bits
from tests.support.both_engines import batches, model_with
from tests.support.nightly import nightly_rows
from tests.support.ranks import assert_same_bits_on_all_ranks
from tests.support.training import embedding_model, make_model
from tf_onebit import Delayed, FullPrecision, OneBit, Threshold, WarmStart

# So large that it changes nothing. But it takes gradients, so that no update can be added.
NO_CLIP = {"clipvalue": 1e30}

CASES = {
    "warm_one_bit": (lambda: WarmStart(OneBit(), steps=3), {"weight_decay": 0.01}, {}),
    "delayed_sums": (lambda: Delayed(OneBit()), {"gradient_accumulation_steps": 2}, {}),
    "coded_threshold": (
        lambda: Threshold(target_density=0.1, coding="golomb_rice"),
        {"use_ema": True, "ema_overwrite_frequency": 3},
        {},
    ),
    "warm_delayed_threshold": (
        lambda: WarmStart(Delayed(Threshold(target_density=0.1)), steps=2),
        {"learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)},
        {"steps_per_execution": 2},
    ),
    # Embeddings, excluded gradients and full precision leave the update to the optimizer.
    "excluded": (lambda: OneBit(exclude=["second"]), {}, {"run_eagerly": True}),
    "full_precision": (FullPrecision, {}, {}),
    "embeddings": (lambda: OneBit(min_size=0), {}, {"make": embedding_model}),
}
USUAL = [
    ("horovod", 2, "warm_one_bit"),
    ("tensorflow", 2, "coded_threshold"),
]
OTHERS = [
    row for row in itertools.product(("horovod", "tensorflow"), [2], CASES) if row not in USUAL
]


def trained(world_size, name, **clip):
    exchange, settings, arguments = CASES[name]
    settings = {"learning_rate": 0.1} | settings | clip
    make, arguments = arguments.get("make", make_model), dict(arguments)
    arguments.pop("make", None)
    model = model_with(exchange(), lambda: keras.optimizers.SGD(**settings), make, **arguments)
    model.fit(batches(world_size), epochs=2, verbose=0)
    return model


@pytest.mark.workers(jobs=[*USUAL, *nightly_rows(*OTHERS)], also=["name"])
def test_weights_have_the_bits_of_exchanged_gradients(name, world_size):
    weights = trained(world_size, name).get_weights()
    assert_same_bits_on_all_ranks(weights)
    assert_same_bits(weights, trained(world_size, name, **NO_CLIP).get_weights())


@pytest.mark.workers(2)
def test_weights_stay_as_they_were_if_an_exchange_fails():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, weight_decay=0.1), OneBit())
    variables = [keras.Variable(np.ones((64, 64), np.float32)) for _ in range(2)]
    good = np.full((64, 64), 0.5, np.float32)
    optimizer.apply([good, good], variables)
    before = [np.array(variable) for variable in variables]
    bad = np.full((64, 64), np.nan if hvd.rank() else 0.5, np.float32)
    with pytest.raises(Exception, match="Rank 1 met an infinity or NaN in the gradient"):
        optimizer.apply([good, bad], variables)
    assert_same_bits([np.array(variable) for variable in variables], before)


@pytest.mark.workers(2)
def test_a_variable_may_be_given_twice():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), OneBit(min_size=0))
    variable, ones = keras.Variable(np.zeros((64, 64), np.float32)), np.ones((64, 64), np.float32)
    optimizer.build([variable])
    optimizer.apply([ones, 2 * ones], [variable, variable])
    np.testing.assert_allclose(np.array(variable), -3.0)


@pytest.mark.workers(2)
def test_settings_that_change_between_steps_count():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), OneBit(min_size=0))
    variable = keras.Variable(np.zeros((64, 64), np.float32))
    optimizer.apply([np.ones((64, 64), np.float32)], [variable])
    optimizer.clipvalue = 0.25
    optimizer.apply([np.ones((64, 64), np.float32)], [variable])
    np.testing.assert_allclose(np.array(variable), -1.25)
