"""Arguments that AsynchronousOptimizer refuses, and its training with one worker."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tf_onebit import FullPrecision, OneBit, Threshold, WarmStart

SGD = keras.optimizers.SGD


@pytest.fixture(autouse=True, scope="module")
def alone():
    hvd.init()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"momentum": 0.9}, "deltas of other workers know nothing of it. Received: momentum=0.9"),
        ({"nesterov": True}, "deltas of other workers know nothing of it"),
        ({"weight_decay": 0.1}, "decay the weights on its own"),
        ({"clipnorm": 1.0}, "no gradient of all workers to clip"),
        ({"clipvalue": 1.0}, "no gradient of all workers to clip"),
        ({"global_clipnorm": 1.0}, "no gradient of all workers to clip"),
        ({"use_ema": True}, "average other weights"),
    ],
)
def test_anything_but_plain_sgd_is_refused_with_a_reason(settings, reason):
    with pytest.raises(ValueError, match=f"needs plain SGD, because .*{reason}"):
        hvd.AsynchronousOptimizer(SGD(0.1, **settings))


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam(), "sgd", None])
def test_other_optimizers_are_refused(optimizer):
    with pytest.raises(ValueError, match="Received: optimizer=.* Use DistributedOptimizer"):
        hvd.AsynchronousOptimizer(optimizer)


def test_a_selection_without_tau_is_refused():
    exchange = Threshold(target_density=0.01, selection="top_k")
    with pytest.raises(ValueError, match="Received: selection='top_k' in its exchange"):
        hvd.AsynchronousOptimizer(SGD(0.1), exchange)


def test_an_optimizer_is_wrapped_only_once():
    for wrap in (hvd.AsynchronousOptimizer, hvd.DistributedOptimizer):
        with pytest.raises(ValueError, match="distributed already"):
            wrap(hvd.AsynchronousOptimizer(SGD(0.1)))
    with pytest.raises(ValueError, match="distributed already"):
        hvd.AsynchronousOptimizer(hvd.DistributedOptimizer(SGD(0.1)))


@pytest.mark.parametrize(
    "exchange",
    [OneBit(), FullPrecision(), WarmStart(Threshold(), steps=3), Threshold(exclude=["bias"])],
)
def test_only_threshold_without_exceptions_is_exchanged(exchange):
    with pytest.raises(ValueError, match="exchanges all gradients with tf_onebit.Threshold"):
        hvd.AsynchronousOptimizer(SGD(0.1), exchange)


@pytest.mark.parametrize("max_staleness", [-1, 1.5, float("nan"), float("inf")])
def test_max_staleness_is_a_number_of_steps(max_staleness):
    with pytest.raises(ValueError, match=f"max_staleness={max_staleness}"):
        hvd.AsynchronousOptimizer(SGD(0.1), max_staleness=max_staleness)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_timeout_is_positive(seconds):
    with pytest.raises(ValueError, match=f"timeout_seconds={seconds}"):
        hvd.AsynchronousOptimizer(SGD(0.1), timeout_seconds=seconds)


def test_other_operations_are_refused():
    with pytest.raises(ValueError, match="op must be Average or Sum"):
        hvd.AsynchronousOptimizer(SGD(0.1), op=17)


@pytest.mark.parametrize(
    "variable",
    [
        keras.Variable(np.ones(3), dtype="float16"),
        keras.Variable(np.ones(3), dtype="float64"),
    ],
)
def test_variables_must_be_float32(variable):
    with pytest.raises(ValueError, match=f"float32 variables .* {variable.dtype}"):
        hvd.AsynchronousOptimizer(SGD(0.1)).build([variable])


def test_constraints_are_refused():
    layer = keras.layers.Dense(2, kernel_constraint="non_neg")
    layer.build((None, 3))
    with pytest.raises(ValueError, match="without constraints"):
        hvd.AsynchronousOptimizer(SGD(0.1)).build(layer.trainable_variables)


def test_mixed_float16_is_refused():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with pytest.raises(ValueError, match="Use mixed_bfloat16"):
            hvd.AsynchronousOptimizer(SGD(0.1)).build([keras.Variable(np.ones(3, np.float32))])
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("variable_class", [keras.Variable, tf.Variable])
def test_one_worker_applies_what_it_would_send(variable_class):
    variable = variable_class(np.zeros(3, np.float32))
    optimizer = hvd.AsynchronousOptimizer(SGD(0.5), Threshold(tau=1.0))
    for _ in range(3):
        optimizer.apply([tf.constant([0.4, -3.0, 0.0])], [variable])
    optimizer.gradient_exchange.drain("the end")
    np.testing.assert_allclose(variable.numpy(), [-0.5, 1.5, 0.0])
    assert optimizer.gradient_exchange.metrics()["staleness"] == 0


def test_one_worker_ends_with_a_gradient_that_is_not_finite():
    variable = keras.Variable(np.zeros(3, np.float32), name="weights")
    optimizer = hvd.AsynchronousOptimizer(SGD(0.5), Threshold(tau=1.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Rank 0 met .* of 'weights'"):
        tf.function(lambda g: optimizer.apply([g], [variable]))(tf.constant([0.4, -3.0, np.nan]))
    np.testing.assert_array_equal(variable.numpy(), np.zeros(3))


def test_averages_of_metrics_would_have_workers_wait():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd.AsynchronousOptimizer(SGD(0.1)), "mse")
    with pytest.raises(ValueError, match="MetricAverageCallback makes .* Leave it out"):
        model.fit(np.ones((4, 3)), np.ones(4), callbacks=[hvd.MetricAverageCallback()], verbose=0)


def test_it_is_saved_as_the_class_that_it_was():
    optimizer = hvd.AsynchronousOptimizer(SGD(0.5))
    assert keras.optimizers.deserialize(keras.optimizers.serialize(optimizer)).__class__ is SGD
