"""Keras optimizers in place of block momentum."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.unit.bmuf.test_block_momentum_callback import (
    BATCHES,
    fit,
    make_model,
    one_worker,
    sgd,
    untrained,
)
from tests.unit.bmuf.test_blocks import assign_flat, flat
from tests.unit.bmuf.test_fragments import (
    LATE,
    STEPS,
    UNITS,
    WORKERS,
    Workers,
    assert_close,
)
from tf_onebit._bmuf.meeting import End
from tf_onebit._bmuf.outer_optimizer import OuterOptimizer
from tf_onebit.callbacks import BlockMomentum

ETA, ZETA = 0.9, 0.7

__all__ = ["one_worker"]  # a fixture for all tests


class OuterAdamW:
    """AdamW of all workers' mean change, in NumPy: in place of `BmufAdam` in `LateFragments`."""

    BETA_1, BETA_2, EPSILON = 0.75, 1 - 2**-6, 1e-20

    def __init__(self, theta, workers, rate, decay):
        self.theta_init, self.theta = theta.copy(), np.tile(theta, (workers, 1))
        self.m, self.v, self.blocks = np.zeros_like(theta), np.zeros_like(theta), 0
        self.rate, self.decay = rate, decay

    @property
    def theta_global(self):
        return self.theta_init

    def end_block(self, steps):
        weights = np.asarray(steps, np.float64) / np.sum(steps)
        gradient = self.theta_init - weights @ self.theta
        self.blocks += 1
        self.m = self.BETA_1 * self.m + (1 - self.BETA_1) * gradient
        self.v = self.BETA_2 * self.v + (1 - self.BETA_2) * gradient**2
        m = self.m / (1 - self.BETA_1**self.blocks)
        v = self.v / (1 - self.BETA_2**self.blocks)
        decayed = self.theta_init * (1 - self.rate * self.decay)
        self.theta_init = decayed - self.rate * m / (np.sqrt(v) + self.EPSILON)
        self.theta[:] = self.theta_init


def nesterov():
    return keras.optimizers.SGD(ZETA, ETA, nesterov=True)


def adamw():
    """AdamW that leaves biases alone. Its numbers are the same in float32."""
    optimizer = keras.optimizers.AdamW(2**-6, 2**-3, OuterAdamW.BETA_1, OuterAdamW.BETA_2, 1e-20)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def train(workers, turns, overlaps):
    for turn in range(turns):
        workers.train(STEPS[turn % len(STEPS)])
        workers.start()
        if overlaps:
            workers.train(LATE)
            workers.finish(1)
        else:
            workers.finish(0)


@pytest.mark.parametrize("overlaps", [True, False])
def test_nesterovs_sgd_trains_as_block_momentum_does(overlaps):
    workers = Workers((ETA, ZETA, True), outer_optimizer=nesterov(), overlaps=overlaps)
    train(workers, 12, overlaps)
    # Keras keeps the rate and the momentum in float32.
    assert_close(workers.weights, workers.oracle.theta, 1e-7)
    with workers.blocks.view():  # where training goes on from, without what workers have learned
        assert len(np.unique(workers.weights, axis=0)) == 1


@pytest.mark.parametrize("overlaps", [True, False])
def test_adamw_makes_its_step_with_the_mean_change(overlaps):
    workers = Workers((0.0,), outer_optimizer=adamw(), overlaps=overlaps)
    is_kernel = flat([np.full(v.shape, v.name == "kernel") for v in workers.models[0].variables])
    workers.oracle.filters = [
        OuterAdamW(workers.weights[0][places], WORKERS, 2**-6, 2**-3 * is_kernel[places])
        for places in workers.oracle.places
    ]
    train(workers, 12, overlaps)
    # Keras keeps epsilon in float32.
    assert_close(workers.weights, workers.oracle.theta, 1e-6)
    for model in workers.global_models:
        assert_close(model, workers.oracle.theta_global, 1e-6)


def test_a_backup_goes_on_with_the_outer_optimizer():
    before, after = (Workers((0.0,), "float32", outer_optimizer=adamw()) for _ in range(2))
    train(before, 4, overlaps=True)
    before.train(STEPS[0])
    before.start()
    after.resume(before)
    for workers in (before, after):
        workers.blocks.finish()
        workers.rng = np.random.default_rng(2)
        for _ in range(3):
            workers.train(STEPS[0])
            workers.blocks.start()
            workers.blocks.finish()
    np.testing.assert_array_equal(after.weights, before.weights)


def test_a_backup_of_another_outer_optimizer_is_refused():
    before = Workers((0.0,), outer_optimizer=adamw())
    for other in (None, nesterov()):
        after = Workers((0.0,), outer_optimizer=other)
        with pytest.raises(ValueError, match="outer_optimizer. Expected: .* Use the earlier outer"):
            after.resume(before)


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that Keras cannot make from its settings."""

    def __call__(self, step):
        return keras.ops.cast(0.5 ** keras.ops.cast(step, "float32"), "float32")

    def get_config(self):
        return {}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_layers_are_excluded_by_their_names(optimizer):
    """The optimizer knows weights by the names that they have in the model."""
    layers = [keras.layers.Dense(UNITS, name=name) for name in ("first", "head")]
    model = keras.Sequential([keras.Input((UNITS,)), *layers])
    if optimizer == "muon":
        outer = keras.optimizers.Muon(Halving(), exclude_layers=["head"])
    else:
        outer = keras.optimizers.AdamW(Halving(), weight_decay=0.5)
        outer.exclude_from_weight_decay(var_names=["head"])
    weights = model.trainable_variables
    own = OuterOptimizer(outer, weights)
    begin = [np.array(weight) for weight in weights]
    gradients = [np.linspace(0.1, 1, b.size, dtype=np.float32).reshape(b.shape) for b in begin]
    changes = own.step([weight.value for weight in weights], [-tf.constant(g) for g in gradients])
    outer.apply([tf.constant(gradient) for gradient in gradients], weights)
    for change, weight, before in zip(changes, weights, begin, strict=True):
        np.testing.assert_allclose(change, weight - before, rtol=1e-5, atol=1e-6)


def test_training_that_begins_anew_forgets_moments_and_schedule():
    rate = keras.optimizers.schedules.ExponentialDecay(0.5, decay_steps=1, decay_rate=0.5)
    workers = Workers((0.0,), outer_optimizer=keras.optimizers.Adam(rate), overlaps=False)
    steps = []
    for _ in range(2):
        with workers.blocks.view():
            for model in workers.models:
                assign_flat(model.trainable_variables, np.ones(workers.weights.shape[1]))
        for _ in range(2):
            workers.blocks.train()
            workers.rng = np.random.default_rng(1)
            workers.train([1] * WORKERS)
            workers.blocks.end(End.EPOCH)
            steps.append(workers.global_models[0])
    np.testing.assert_array_equal(steps[:2], steps[2:])


def trained(*callbacks, epochs=2):
    """Returns the weights of a model that was trained with `fit`."""
    model = untrained(sgd)
    fit(model, callbacks, epochs)
    return flat(model.trainable_variables)


@pytest.mark.parametrize("overlap", [0, 2])
def test_one_worker_may_have_an_outer_optimizer(overlap):
    """With SGD of rate 1, each block ends where the worker has come to."""
    blocks = BlockMomentum(3, outer_optimizer=keras.optimizers.SGD(1.0), overlap=overlap)
    np.testing.assert_allclose(trained(blocks), trained(), rtol=1e-5, atol=1e-6)


def test_the_outer_optimizer_rests_in_the_warm_up():
    still = {"outer_optimizer": keras.optimizers.SGD(0.0)}
    warm = trained(BlockMomentum(3, warmup_steps=BATCHES, **still))
    np.testing.assert_allclose(warm, trained(epochs=1), rtol=1e-5, atol=1e-6)


def test_an_outer_optimizer_is_used_outside_of_scopes():
    blocks = BlockMomentum(3, outer_optimizer="sgd")
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        with pytest.raises(ValueError, match="outer_optimizer=SGD for a fit within strategy.sc"):
            fit(make_model(), [blocks])
