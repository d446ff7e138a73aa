"""Block synchronization of Keras models in lockstep, against Algorithm 1 in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.reference.bmuf import BmufAdam
from tests.support.nightly import nightly
from tf_onebit import OneBit, optimizers
from tf_onebit._bmuf.equations import BlockFilter
from tf_onebit._bmuf.synchronization import BlockSynchronization
from tf_onebit._bmuf.variables import block_variables
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.collectives.requests import Broadcast, tap_requests
from tf_onebit.exchanges import FullPrecision

INPUTS, OUTPUTS = 6, 3
WORKERS = 4
# eta, zeta, nesterov
FILTERS = [(0.75, 1.0, True), (0.75, 0.9, True), (0.6, 1.0, False), (0.6, 0.9, False)]
# Keras keeps some of its numbers in float32. These are the same there.
ADAM = {"learning_rate": 2**-8, "beta_1": 0.75, "beta_2": 1 - 2**-6}
# Keras adds epsilon before it corrects the bias of v, the paper after. With this value it does not
# matter.
EPSILON = 1e-20
EVEN, UNEVEN, NO_DATA = [3, 3, 3, 3], [1, 2, 3, 2], [3, 1, 2, 0]


class Workers:
    """Linear models that train in blocks, each with its optimizer."""

    def __init__(
        self,
        block_filter,
        dtype="float32",
        workers=WORKERS,
        template=None,
        make=None,
        correction="bmuf_adam",
        **options,
    ):
        self.models = [make() if make else linear_model(dtype) for _ in range(workers)]
        self.blocks = BlockSynchronization(
            LockstepEngine(["CPU:0"] * workers),
            BlockFilter(*block_filter),
            template or FullPrecision(),
            [
                block_variables(model, correction, compresses=template is not None)
                for model in self.models
            ],
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

    def train(self, block, steps, dtype=np.float32):
        """Makes some steps on each worker, with batches of its own."""
        for worker, count in enumerate(steps):
            for step in range(count):
                self.step(worker, *(tf.constant(a, dtype) for a in batch(block, step, worker)))

    @property
    def weights(self):
        return np.stack([flat(model.trainable_variables) for model in self.models])

    @property
    def moments(self):
        """M and v: each `[workers, size]`."""
        return [
            np.stack([flat(model.optimizer.moments[i].variables) for model in self.models])
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


def linear_model(dtype="float32", layers=(), optimizer=None):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((INPUTS,), dtype=dtype), *layers, keras.layers.Dense(OUTPUTS, dtype=dtype)]
    )
    model.compile(optimizer or optimizers.Adam(**ADAM, epsilon=EPSILON), "mse")
    return model


def flat(variables):
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


# The default, one whose learning rate is not 1, and one whose momentum is not Nesterov's.
@pytest.mark.parametrize("block_filter", [FILTERS[0], *nightly(*FILTERS[1:3])])
def test_run_of_45_blocks_is_algorithm_1(block_filter):
    workers = Workers(block_filter, "float64")
    oracle = oracle_of(workers, block_filter)
    for block in range(45):
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


@pytest.mark.parametrize("block_filter", [*FILTERS[1:3], *nightly(FILTERS[0], FILTERS[3])])
def test_every_synchronization_is_that_of_algorithm_1_in_float32(block_filter):
    workers = Workers(block_filter, "float32")
    oracle = oracle_of(workers, block_filter)
    rng = np.random.default_rng(0)
    for steps in 3 * [EVEN, UNEVEN, NO_DATA]:
        # The workers' state may be any float32. The oracle begins with exactly the same.
        before = workers.weights[0], *(moment[0] for moment in workers.moments)
        oracle.theta_global = workers.global_models[0].astype(np.float64)
        oracle.theta_init, oracle.m_init, oracle.v_init = (x.astype(np.float64) for x in before)
        oracle.delta = flat(workers.blocks._replicas[0]._deltas).astype(np.float64)
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


def test_schedules_follow_the_worker_that_has_made_the_most_steps(eagerly):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 1, 0.5)

    def make():
        return linear_model(optimizer=optimizers.Adam(schedule))

    workers = Workers((0.5, 1.0, True), make=make)
    for worker, count in enumerate(NO_DATA):
        for step in range(count):
            workers.step(worker, *map(tf.constant, map(np.float32, batch(0, step, worker))))
    workers.blocks.synchronize()
    assert [int(model.optimizer.iterations) for model in workers.models] == [3] * WORKERS
    rates = [float(model.optimizer.learning_rate) for model in workers.models]
    assert rates == pytest.approx([0.01 / 2**3] * WORKERS)


def test_warm_up_is_the_training_of_one_worker(eagerly):
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
    # The warm-up is over, and has left nothing in the momentum.
    assert workers.blocks._fragments[0].equivalent_steps == [0]
    begin = workers.weights[0]
    for worker in range(WORKERS):
        workers.step(worker, *map(tf.constant, batch(2, 0, worker)))
    mean = workers.weights.mean(axis=0)
    workers.blocks.synchronize()
    expected = mean + 0.75 * (mean - begin)
    np.testing.assert_allclose(workers.weights[0], expected, rtol=1e-12, atol=1e-14)


def test_nothing_is_lost_of_blocks_that_are_exchanged_with_one_bit():
    """Error feedback: the models' change and the unsent rest add up to the workers' change."""
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


def spoil_weights(model):
    model.layers[-1].bias.assign([1.0, np.nan, 1.0])


def spoil_moments(model):
    variance = model.optimizer.moments[1].variables[0]
    variance.assign(np.full(variance.shape, np.inf))


def spoil_statistics(model):
    model.layers[0].moving_mean.assign(np.full(INPUTS, np.nan))


SPOILT = {spoil_weights: "bias", spoil_moments: "gamma_velocity", spoil_statistics: "moving_mean"}


@pytest.mark.parametrize("spoil", SPOILT)
def test_what_is_not_finite_is_an_error_and_training_goes_on_from_before(spoil, request):
    if spoil is not spoil_weights:  # a graph's errors have the same words
        request.getfixturevalue("eagerly")
    workers = Workers((0.75, 1.0, True), make=normalized_model)
    workers.train(0, EVEN)
    workers.blocks.synchronize()
    good = workers.global_models
    moment_steps = workers.models[0].optimizer.moment_steps
    moments = workers.moments
    workers.train(1, EVEN)
    spoil(workers.models[2])
    message = f"Rank 2 met an infinity or NaN in the change of '.*{SPOILT[spoil]}'.*new optimizer"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        workers.blocks.synchronize()
    assert np.array_equal(workers.global_models, good)
    assert np.array_equal(workers.weights, good)
    assert np.array_equal(workers.moments, moments)
    assert workers.models[2].optimizer.moment_steps == moment_steps
    # Training continues as if it began there.
    workers.blocks.begin()
    workers.blocks.train()
    workers.train(2, EVEN)
    mean = workers.weights.mean(axis=0)
    workers.blocks.synchronize()
    expected = mean + 0.75 * (mean - good[0])
    np.testing.assert_allclose(workers.weights[0], expected, rtol=1e-4, atol=1e-5)


def normalized_model():
    return linear_model(layers=[keras.layers.BatchNormalization(momentum=0.5)])


def test_what_a_worker_without_data_has_does_not_count(eagerly):
    workers = Workers((0.75, 1.0, True), make=normalized_model)
    workers.train(0, NO_DATA)
    spoil_statistics(workers.models[NO_DATA.index(0)])
    workers.blocks.synchronize()
    for model in workers.models:
        assert np.isfinite(model.layers[0].moving_mean).all()


def test_workers_begin_with_all_that_worker_0_has():
    """This includes variables that are neither trained nor averaged."""

    def make():
        model = normalized_model()
        model.layers[0].trainable = False
        # Only worker 0 has loaded or learned these.
        if not made:
            for i, variable in enumerate((*model.variables, *built(model.optimizer, model))):
                variable.assign(np.full(variable.shape, 1 + i % 3))
        made.append(model)
        return model

    made = []
    Workers((0.75, 1.0, True), make=make)
    states = [[np.array(v) for v in (*m.variables, *m.optimizer.variables)] for m in made]
    for state in states[1:]:
        for array, expected in zip(state, states[0], strict=True):
            np.testing.assert_array_equal(array, expected)
    assert int(made[-1].optimizer.iterations) > 0


class NotingEngine(LockstepEngine):
    """An engine that notes the types of requests."""

    def __init__(self):
        super().__init__(["CPU:0"] * WORKERS)
        self.kinds = set()

    def run(self, generators):
        return super().run(
            tap_requests(generator, lambda request: self.kinds.add(type(request)))
            for generator in generators
        )


@pytest.mark.parametrize("are_equal", [True, False])
def test_only_workers_that_differ_broadcast_their_state_when_they_begin(are_equal):
    engine, models = NotingEngine(), [normalized_model() for _ in range(WORKERS)]
    if not are_equal:
        models[-1].optimizer.build(models[-1].trainable_variables)
        models[-1].optimizer.iterations.assign(1)
    variables = [block_variables(model, "bmuf_adam") for model in models]
    BlockSynchronization(engine, BlockFilter(0.5), FullPrecision(), variables).train()
    assert (Broadcast in engine.kinds) != are_equal
    assert int(models[-1].optimizer.iterations) == 0


def built(optimizer, model):
    optimizer.build(model.trainable_variables)
    return optimizer.variables


ONE_BIT = OneBit(min_size=1, min_column_size=1)


def test_all_go_on_with_what_the_leader_has_learned_while_the_model_was_warmed_up():
    workers = Workers(
        (0.75, 1.0, True),
        make=lambda: linear_model(optimizer=keras.optimizers.SGD(0.01, momentum=0.9)),
        warmup_steps=6,
    )
    alone = linear_model(optimizer=keras.optimizers.SGD(0.01, momentum=0.9))
    for block in range(2):
        workers.train(block, EVEN)
        for step in range(3):
            alone.train_on_batch(*(np.float32(a) for a in batch(block, step, 0)))
        workers.blocks.synchronize()
    assert np.any(alone.optimizer.momentums[0])
    for model in workers.models:
        for variable, value in zip(
            (*model.variables, *model.optimizer.variables),
            (*alone.variables, *alone.optimizer.variables),
            strict=True,
        ):
            np.testing.assert_allclose(variable, value, rtol=1e-5, atol=1e-7)


def test_weights_of_16_bits_go_on_from_the_bits_of_before(eagerly):
    def make():
        return linear_model("bfloat16")

    before, after = (Workers((0.75, 1.0, True), make=make) for _ in range(2))
    for block in range(2):
        before.train(block, EVEN, tf.bfloat16)
        if block == 0:
            before.blocks.synchronize()
    with before.blocks.view():
        states = before.blocks.states()
        shown = [[v.numpy() for v in all_variables(model)] for model in before.models]
    for model, arrays in zip(after.models, shown, strict=True):
        for variable, array in zip(all_variables(model), arrays, strict=True):
            variable.assign(array)
    after.blocks.load_states(states, list(range(WORKERS)), as_many=True)
    for workers in (before, after):
        workers.blocks.train()
        workers.blocks.synchronize()
        workers.train(2, EVEN, tf.bfloat16)
        workers.blocks.synchronize()
    for model, other in zip(before.models, after.models, strict=True):
        for variable, expected in zip(all_variables(model), all_variables(other), strict=True):
            np.testing.assert_array_equal(variable.numpy(), expected.numpy())


def all_variables(model):
    return [v.value for v in (*model.variables, *model.optimizer.variables)]


def test_state_of_other_settings_is_refused():
    before = Workers((0.75, 1.0, True))
    before.train(0, EVEN)
    with before.blocks.view():
        states = before.blocks.states()
    after = Workers((0.75, 1.0, True), template=ONE_BIT)
    with pytest.raises(ValueError, match="with 6 variables of 1 optimizers. Expected: 2 variables"):
        after.blocks.load_states(states, list(range(WORKERS)), as_many=True)


def test_another_number_of_workers_goes_on_from_the_mean_of_where_they_were(eagerly):
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
    for one in (before, after):
        assert one.blocks._fragments[0].equivalent_steps == [1]
    delta = before.blocks._replicas[0]._deltas[0]
    assert np.array_equal(after.blocks._replicas[1]._deltas[0], delta)


def test_second_moments_of_weights_without_gradients_stay_positive(eagerly):
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
            # Decayed until only rounding is left, of either sign.
            left = workers.moments[1][worker] * np.float32(ADAM["beta_2"] ** 2000)
            left += 1e-9 * rng.standard_normal(size).astype(np.float32)
            workers.assign(worker, np.zeros(size), np.zeros(size), left)
        workers.blocks.synchronize()
        assert (workers.moments[1] >= 0).all()
