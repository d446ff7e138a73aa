"""Block synchronization of Keras models in lockstep, against Algorithm 1 in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.reference.bmuf import BmufAdam
from tf_onebit import OneBit, optimizers
from tf_onebit.block_momentum import BlockFilter
from tf_onebit.callbacks.block_variables import block_variables
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.exchanges import FullPrecision
from tf_onebit.training.blocks import BlockSynchronization

INPUTS, OUTPUTS = 6, 3
WORKERS = 4
# eta, zeta, nesterov
FILTERS = [(0.75, 1.0, True), (0.75, 0.9, True), (0.6, 1.0, False), (0.6, 0.9, False)]
# Keras keeps some of its numbers in float32: these are the same there.
ADAM = {"learning_rate": 2**-8, "beta_1": 0.75, "beta_2": 1 - 2**-6}
# Keras adds epsilon before the bias of v is corrected, the paper after: here it is nothing.
EPSILON = 1e-20
EVEN, UNEVEN, NO_DATA = [3, 3, 3, 3], [1, 2, 3, 2], [3, 1, 2, 0]


class Workers:
    """Linear models with an optimizer each, that train in blocks."""

    def __init__(self, block_filter, dtype, workers=WORKERS, template=None, **options):
        self.models = [_linear_model(dtype) for _ in range(workers)]
        self.blocks = BlockSynchronization(
            LockstepEngine(["CPU:0"] * workers),
            BlockFilter(*block_filter),
            template or FullPrecision(),
            [block_variables(model, "bmuf_adam") for model in self.models],
            **options,
        )
        self.blocks.train()

    @tf.function
    def step(self, worker, x, y):
        model = self.models[worker]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)

    @property
    def weights(self):
        return np.stack([_flat(model.trainable_variables) for model in self.models])

    @property
    def moments(self):
        """m and v: each `[workers, size]`."""
        return [
            np.stack([_flat(model.optimizer.moments[i].variables) for model in self.models])
            for i in range(2)
        ]

    @property
    def global_models(self):
        with self.blocks.view():
            return self.weights

    def assign(self, worker, weights, m, v):
        optimizer = self.models[worker].optimizer
        assign_flat(self.models[worker].trainable_variables, weights)
        for moment, value in zip(optimizer.moments, (m, v), strict=True):
            assign_flat(moment.variables, value)


def _linear_model(dtype):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((INPUTS,), dtype=dtype), keras.layers.Dense(OUTPUTS, dtype=dtype)]
    )
    model.compile(optimizers.Adam(**ADAM, epsilon=EPSILON), "mse")
    return model


def _flat(variables):
    return np.concatenate([keras.ops.convert_to_numpy(v).ravel() for v in variables])


def assign_flat(variables, flat):
    for variable in variables:
        size = int(np.prod(variable.shape))
        variable.assign(flat[:size].reshape(variable.shape))
        flat = flat[size:]


def batch(block, step, worker):
    rng = np.random.default_rng([block, step, worker])
    x = rng.standard_normal((8, INPUTS))
    return x, np.sin(x[:, :OUTPUTS]) + x[:, -1:] + 0.1 * rng.standard_normal((8, OUTPUTS))


def gradient(theta, x, y):
    kernel, bias = theta[: INPUTS * OUTPUTS].reshape(INPUTS, OUTPUTS), theta[INPUTS * OUTPUTS :]
    error = 2 * (x @ kernel + bias - y) / y.size
    return np.concatenate([(x.T @ error).ravel(), error.sum(axis=0)])


def oracle_of(workers, block_filter):
    adam = ADAM["learning_rate"], ADAM["beta_1"], ADAM["beta_2"], EPSILON
    return BmufAdam(workers.weights[0], WORKERS, *block_filter, *adam)


@pytest.mark.parametrize("block_filter", FILTERS)
def test_run_of_200_blocks_is_algorithm_1(block_filter):
    workers = Workers(block_filter, "float64")
    oracle = oracle_of(workers, block_filter)
    for block in range(200):
        steps = {2: UNEVEN, 8: NO_DATA}.get(block % 9, EVEN)
        for worker in range(WORKERS):
            for step in range(steps[worker]):
                x, y = batch(block, step, worker)
                oracle.step(worker, step + 1, gradient(oracle.theta[worker], x, y))
                workers.step(worker, tf.constant(x), tf.constant(y))
        oracle.end_block(steps)
        workers.blocks.synchronize()
    for ours, theirs in [
        (workers.global_models, oracle.theta_global),
        (workers.weights, oracle.theta_init),
        (workers.moments[0], oracle.m_init),
        (workers.moments[1], oracle.v_init),
    ]:
        assert close(ours, np.broadcast_to(theirs, ours.shape), 1e-9)
    for model in workers.models:
        assert abs(model.optimizer.moment_steps - oracle.k) < 1e-6


def close(ours, theirs, tolerance):
    return np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


@pytest.mark.parametrize("block_filter", FILTERS)
@pytest.mark.parametrize("steps", [EVEN, UNEVEN, NO_DATA], ids=["even", "uneven", "no_data"])
def test_every_synchronization_is_that_of_algorithm_1_in_float32(block_filter, steps):
    workers = Workers(block_filter, "float32")
    oracle = oracle_of(workers, block_filter)
    rng = np.random.default_rng(0)
    for _ in range(5):
        # What workers have made of it: any float32, and the oracle begins with the very same.
        before = workers.weights[0], *(moment[0] for moment in workers.moments)
        oracle.theta_global = workers.global_models[0].astype(np.float64)
        oracle.theta_init, oracle.m_init, oracle.v_init = (x.astype(np.float64) for x in before)
        oracle.delta = _flat(workers.blocks._replicas[0]._deltas).astype(np.float64)
        for worker in range(WORKERS):
            theta, m, v = (x.copy() for x in before)
            if steps[worker]:
                theta += 0.1 * rng.standard_normal(theta.shape).astype(np.float32)
                m += 0.1 * rng.standard_normal(m.shape).astype(np.float32)
                v = (
                    np.float32(ADAM["beta_2"]) ** steps[worker] * v
                    + rng.random(v.shape).astype(np.float32) * 0.1
                )
            workers.assign(worker, theta, m, v)
            optimizer = workers.models[worker].optimizer
            optimizer.iterations.assign_add(steps[worker])
            oracle.theta[worker], oracle.m[worker], oracle.v[worker] = theta, m, v
        oracle.end_block(steps)
        workers.blocks.synchronize()
        assert close(workers.weights, oracle.theta_init, 1e-5)
        assert close(workers.global_models, oracle.theta_global, 1e-5)
        assert close(workers.moments[0], oracle.m_init, 1e-5)
        assert close(workers.moments[1], oracle.v_init, 1e-5)
        assert workers.models[0].optimizer.moment_steps == pytest.approx(oracle.k, abs=1e-6)


def test_schedules_follow_the_worker_that_has_made_the_most_steps():
    workers = Workers((0.5, 1.0, True), "float32")
    for worker, count in enumerate(NO_DATA):
        for step in range(count):
            workers.step(worker, *map(tf.constant, map(np.float32, batch(0, step, worker))))
    workers.blocks.synchronize()
    assert [int(model.optimizer.iterations) for model in workers.models] == [3] * WORKERS


def test_warm_up_is_the_training_of_one_worker():
    workers = Workers((0.75, 1.0, True), "float64", warmup_steps=6)
    alone = Workers((0.0, 1.0, True), "float64", workers=1)
    for block in range(2):
        for worker in range(WORKERS):
            for step in range(3):
                data = tuple(map(tf.constant, batch(block, step, worker)))
                workers.step(worker, *data)
                if worker == 0:
                    alone.step(0, *data)
        workers.blocks.synchronize()
        alone.blocks.synchronize()
    assert np.array_equal(workers.weights, np.tile(alone.weights, (WORKERS, 1)))
    assert np.array_equal(workers.moments[1], np.tile(alone.moments[1], (WORKERS, 1)))
    # Now it is over, and nothing of it is left in the momentum.
    assert workers.blocks.equivalent_steps == 0
    begin = workers.weights[0]
    for worker in range(WORKERS):
        workers.step(worker, *map(tf.constant, batch(2, 0, worker)))
    mean = workers.weights.mean(axis=0)
    workers.blocks.synchronize()
    expected = mean + 0.75 * (mean - begin)
    np.testing.assert_allclose(workers.weights[0], expected, rtol=1e-12, atol=1e-14)


def test_nothing_is_lost_of_blocks_that_are_exchanged_with_one_bit():
    """Error feedback: what models have moved, and what is unsent, is what workers have made."""
    workers = Workers((0.0, 1.0, True), "float32", template=OneBit(min_size=1, min_column_size=1))
    made = np.zeros_like(workers.weights[0])
    begin = workers.weights[0].copy()
    for block in range(20):
        before = workers.weights
        for worker in range(WORKERS):
            for step in range(2):
                data = map(np.float32, batch(block, step, worker))
                workers.step(worker, *map(tf.constant, data))
        made += (workers.weights - before).mean(axis=0)
        workers.blocks.synchronize()
    assert (workers.moments[1] >= 0).all()
    assert len(np.unique(workers.weights, axis=0)) == 1
    unsent = np.linalg.norm(workers.weights[0] - begin - made)
    assert 0 < unsent < 0.3 * np.linalg.norm(made)


def test_weights_that_are_not_finite_are_an_error_and_change_nothing():
    workers = Workers((0.75, 1.0, True), "float32")
    for worker in range(WORKERS):
        workers.step(worker, *map(tf.constant, map(np.float32, batch(0, 0, worker))))
    workers.blocks.synchronize()
    good = workers.global_models
    for worker in range(WORKERS):
        workers.step(worker, *map(tf.constant, map(np.float32, batch(1, 0, worker))))
    workers.models[2].layers[-1].bias.assign([1.0, np.nan, 1.0])
    message = "Rank 2 met an infinity or NaN in what became of '.*bias'"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        workers.blocks.synchronize()
    assert np.array_equal(workers.global_models, good)


def test_another_number_of_workers_goes_on_from_the_mean_of_where_they_were():
    template = OneBit(min_size=1, min_column_size=1)
    before = Workers((0.75, 1.0, True), "float32", template=template)
    for block in range(2):
        for worker in range(WORKERS):
            before.step(worker, *map(tf.constant, map(np.float32, batch(block, 0, worker))))
        if block == 0:
            before.blocks.synchronize()
    where = before.weights
    with before.blocks.view():
        states, model = before.blocks.states(), before.weights[0]
    after = Workers((0.5, 1.0, True), "float32", workers=2, template=template)
    for worker in range(2):
        assign_flat(after.models[worker].trainable_variables, model)
    after.blocks.load_states(states, [0, 1], as_many=False)
    after.blocks.train()
    np.testing.assert_allclose(after.weights, np.tile(where.mean(axis=0), (2, 1)), rtol=1e-6)
    assert after.blocks.equivalent_steps == before.blocks.equivalent_steps == 1
    delta = before.blocks._replicas[0]._deltas[0]
    assert np.array_equal(after.blocks._replicas[1]._deltas[0], delta)


def test_second_moments_of_weights_without_gradients_stay_positive():
    workers = Workers((0.75, 1.0, True), "float32")
    rng = np.random.default_rng(0)
    size = workers.weights.shape[1]
    for worker in range(WORKERS):
        v = rng.random(size).astype(np.float32)
        workers.assign(worker, np.zeros(size), np.zeros(size), v if worker == 0 else 0 * v)
    for _ in range(3):
        for worker in range(WORKERS):
            optimizer = workers.models[worker].optimizer
            optimizer.iterations.assign_add(2000)
            # Decayed to nothing but rounding, of either sign.
            left = workers.moments[1][worker] * np.float32(ADAM["beta_2"] ** 2000)
            left += 1e-9 * rng.standard_normal(size).astype(np.float32)
            workers.assign(worker, np.zeros(size), np.zeros(size), left)
        workers.blocks.synchronize()
        assert (workers.moments[1] >= 0).all()
