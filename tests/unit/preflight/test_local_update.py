"""The part of an update that precedes an exchange which adds to the weights, and its time."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import planned
from tf_onebit._measurement import Alone
from tf_onebit._preflight.computation import ModelInStep
from tf_onebit._preflight.local_update import adds_to_weights, with_local_update
from tf_onebit._training.model_optimizers import inner_optimizer
from tf_onebit.exchanges import FullPrecision, OneBit, Threshold
from tf_onebit.planner import Computation

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "clipped_adam": lambda: keras.optimizers.Adam(clipnorm=0.5),
    "rmsprop": keras.optimizers.RMSprop,
    "scaled_loss": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
}
WITH_AN_UPDATE_OF_KERAS = {
    "clipped_sgd": lambda: keras.optimizers.SGD(0.1, clipnorm=1.0),
    "ftrl": keras.optimizers.Ftrl,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_exchange_is_left_the_adding_and_nothing_else(name):
    weight = keras.Variable([1.0, 2.0, 3.0])
    table = keras.Variable([[1.0], [2.0]])
    gradients = [
        tf.constant([4.0, -5.0, 6.0]),
        tf.IndexedSlices(tf.ones([1, 1]), tf.constant([1]), tf.constant([2, 1])),
    ]
    optimizer, by_keras = OPTIMIZERS[name](), OPTIMIZERS[name]()
    variables_of_keras = [keras.Variable(weight), keras.Variable(table)]
    optimizer.build([weight, table])
    by_keras.build(variables_of_keras)
    tf.function(with_local_update(optimizer).apply)(gradients)
    tf.function(by_keras.apply)(gradients)
    np.testing.assert_array_equal(weight, [1.0, 2.0, 3.0])
    # An exchange adds no rows.
    np.testing.assert_array_equal(table, variables_of_keras[1])
    assert np.any(table.numpy() != [[1.0], [2.0]])
    for own, other in zip(optimizer.variables, by_keras.variables, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-6)


@pytest.mark.parametrize("name", WITH_AN_UPDATE_OF_KERAS)
def test_keras_updates_weights_if_no_exchange_adds_to_them(name):
    optimizer = WITH_AN_UPDATE_OF_KERAS[name]()
    assert with_local_update(optimizer) is None
    assert not any(adds_to_weights(one, optimizer) for one in (OneBit(), Threshold()))


def test_exchanges_add_where_workers_exchange_updates_or_only_descend():
    for make in OPTIMIZERS.values():
        optimizer = inner_optimizer(make())
        assert adds_to_weights(OneBit(), optimizer) and adds_to_weights(Threshold(), optimizer)
        assert not adds_to_weights(FullPrecision(), optimizer)
    assert not adds_to_weights(OneBit(moments="after"), keras.optimizers.Adam())
    assert adds_to_weights(OneBit(moments="after"), keras.optimizers.SGD(0.1))


def ops_of(part):
    return {op.type for op in part.get_concrete_function().graph.get_operations()}


def test_the_compiled_update_of_a_job_is_timed(monkeypatch):
    timed = []

    def seconds(self, part, batch, workers):
        timed.append(part)
        return float(len(timed))

    monkeypatch.setattr(ModelInStep, "_seconds", seconds)
    computation = ModelInStep(planned.make_model_with_keras_adam()).measure(4, Alone(), 0.0)
    # Forward pass, backward pass, then each of the updates.
    assert computation == Computation(1.0, 1.0, update_seconds=2.0, local_update_seconds=1.0)
    assert ["TfOnebit>Adam" in ops_of(part) for part in timed] == [False, False, True, False]


def test_an_update_that_no_exchange_takes_part_in_is_timed_once(monkeypatch):
    model = planned.make_model()
    model.compile(keras.optimizers.Ftrl(), loss="mse")
    times = iter([1.0, 3.0, 7.0])
    monkeypatch.setattr(ModelInStep, "_seconds", lambda *_: next(times))
    computation = ModelInStep(model).measure(4, Alone(), 0.0)
    assert computation == Computation(1.0, 2.0, update_seconds=4.0)
