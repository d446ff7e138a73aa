"""The Keras optimizer NormalizedAdaGrad against the oracle, and with Keras' own parts around it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.reference import adagrad as reference
from tf_onebit.optimizers import NormalizedAdaGrad

RATE, TIME_CONSTANT, SAMPLES, EPSILON = 0.125, 50.0, 16, 1e-2
SHAPES = [(5, 3), (4,), (), (3, 3, 2, 4)]
SETTINGS = {
    "plain": {},
    "momentum": {"momentum": 0.75},
    "nesterov": {"momentum": 0.75, "nesterov": True},
    "adagrad_on_momentum": {"momentum": 0.75, "adagrad_on": "momentum"},
    "adagrad_on_nesterov": {"momentum": 0.75, "nesterov": True, "adagrad_on": "momentum"},
}
every_setting = pytest.mark.parametrize("name", SETTINGS)


def make(rate=RATE, **settings):
    return NormalizedAdaGrad(rate, TIME_CONSTANT, SAMPLES, epsilon=EPSILON, **settings)


class Oracle:
    """SGD with the gradients that the stages return."""

    def __init__(self, variables, momentum=0.0, nesterov=False, adagrad_on="gradient"):
        self.weights = [np.float64(variable) for variable in variables]
        self.stages = [reference.NormalizedAdaGrad(TIME_CONSTANT, EPSILON)]
        if momentum:
            at = 1 if adagrad_on == "gradient" else 0
            self.stages.insert(at, reference.Momentum(momentum, nesterov))

    def step(self, gradients, samples=SAMPLES):
        for stage in self.stages:
            gradients = stage.step(gradients, samples)
        self.weights = [w - RATE * g for w, g in zip(self.weights, gradients, strict=True)]


def weights(rng):
    return [keras.Variable(rng.normal(size=shape), dtype="float32") for shape in SHAPES]


def gradients_of(rng):
    return [tf.constant(rng.normal(size=shape), tf.float32) for shape in SHAPES]


def assert_at(variables, oracle):
    for variable, expected in zip(variables, oracle.weights, strict=True):
        np.testing.assert_allclose(variable.numpy(), expected, rtol=2e-5, atol=2e-5)


def state_of(optimizer):
    return [variable.numpy() for variable in optimizer.variables]


def assert_same_state(optimizer, state):
    for variable, expected in zip(optimizer.variables, state, strict=True):
        np.testing.assert_array_equal(variable, expected)


@every_setting
@pytest.mark.parametrize("in_a_graph", [False, True], ids=["eager", "graph"])
def test_steps_are_those_of_the_paper_also_when_the_batch_size_changes(rng, name, in_a_graph):
    variables, traces = weights(rng), []
    optimizer, oracle = make(**SETTINGS[name]), Oracle(variables, **SETTINGS[name])
    optimizer.set_global_batch_size(4)  # not built yet
    optimizer.build(variables)

    def apply(gradients):
        traces.append(1)
        optimizer.apply(gradients)

    step = tf.function(apply) if in_a_graph else apply
    for samples in (4, 4, 32, 2):
        optimizer.set_global_batch_size(samples)
        gradients = gradients_of(rng)
        step(gradients)
        oracle.step([np.float64(g) for g in gradients], samples)
        if not SETTINGS[name]:
            for average, deviation in zip(
                optimizer._averages, oracle.stages[0].deviations, strict=True
            ):
                np.testing.assert_allclose(np.sqrt(average), deviation, rtol=1e-5)
    assert_at(variables, oracle)
    assert len(traces) == 1 or not in_a_graph


def test_a_batch_size_set_before_the_first_step_counts_from_the_first(rng):
    variables = weights(rng)
    optimizer, oracle = make(), Oracle(variables)
    optimizer.set_global_batch_size(2)
    for _ in range(3):
        gradients = gradients_of(rng)
        optimizer.apply(gradients, variables)
        oracle.step([np.float64(g) for g in gradients], 2)
    assert_at(variables, oracle)
    assert optimizer.get_config()["global_batch_size"] == 2


def test_the_batch_size_is_what_is_in_use_also_after_a_restore(rng):
    optimizer, restored = make(), make()
    for one in (optimizer, restored):
        one.build(weights(rng))
    assert optimizer.global_batch_size == SAMPLES
    optimizer.set_global_batch_size(2)
    for variable, saved in zip(restored.variables, optimizer.variables, strict=True):
        variable.assign(saved)
    assert restored.global_batch_size == restored.get_config()["global_batch_size"] == 2


def test_weights_decay_and_gradients_are_clipped_as_with_keras(rng):
    variables = weights(rng)
    optimizer = make(weight_decay=0.5, clipvalue=0.25)
    oracle = Oracle(variables)
    for _ in range(3):
        gradients = gradients_of(rng)
        optimizer.apply(gradients, variables)
        oracle.weights = [w * (1 - 0.5 * RATE) for w in oracle.weights]
        oracle.step([np.clip(np.float64(g), -0.25, 0.25) for g in gradients])
    assert_at(variables, oracle)


def test_averages_of_variables_in_bfloat16_follow_the_gradients(rng):
    optimizer, oracle = NormalizedAdaGrad(RATE, 1000, 1), reference.NormalizedAdaGrad(1000, 1e-3)
    optimizer.build([keras.Variable(tf.zeros((5, 3)), dtype="bfloat16")])
    step = tf.function(lambda gradient: optimizer.apply([gradient]))
    for i in range(600):  # then a step's share is too small for bfloat16
        gradient = tf.constant(rng.normal(size=(5, 3)) * (1 if i < 300 else 2), tf.bfloat16)
        step(gradient)
        oracle.step([np.float64(gradient)], 1)
    (average,) = optimizer._averages
    np.testing.assert_allclose(np.sqrt(average), oracle.deviations[0], rtol=1e-4)


@every_setting
def test_variables_in_bfloat16_take_the_steps_of_the_paper(rng, name):
    variables = [keras.Variable(tf.zeros(shape), dtype="bfloat16") for shape in SHAPES]
    optimizer, oracle = make(**SETTINGS[name]), Oracle(variables, **SETTINGS[name])
    for _ in range(3):
        gradients = [tf.cast(g, tf.bfloat16) for g in gradients_of(rng)]
        optimizer.apply(gradients, variables)
        oracle.step([np.float64(g) for g in gradients])
    for variable, expected in zip(variables, oracle.weights, strict=True):
        assert variable.dtype == "bfloat16"
        np.testing.assert_allclose(np.float64(variable), expected, rtol=0.03, atol=0.03)


def test_accumulated_gradients_count_as_one_step(rng):
    variables = weights(rng)
    optimizer, oracle = make(gradient_accumulation_steps=2), Oracle(variables)
    for _ in range(3):
        pair = [gradients_of(rng) for _ in range(2)]
        for gradients in pair:
            optimizer.apply(gradients, variables)
        oracle.step([(np.float64(a) + np.float64(b)) / 2 for a, b in zip(*pair, strict=True)])
    assert_at(variables, oracle)
    assert int(optimizer._samples) == 3 * SAMPLES


def test_sparse_gradients_are_dense_ones(rng):
    slices = [
        tf.IndexedSlices(tf.constant(rng.normal(size=(3, 4)), tf.float32), rows, [6, 4])
        for rows in (tf.constant([1, 4, 1]), tf.constant([0, 4, 5]))
    ]
    start = np.float32(rng.normal(size=(6, 4)))
    tables = [keras.Variable(start, dtype="float32") for _ in range(2)]
    for table, convert in zip(tables, (lambda g: g, tf.convert_to_tensor), strict=True):
        optimizer = make(momentum=0.5)
        for gradient in slices * 2:
            optimizer.apply([convert(gradient)], [table])
    np.testing.assert_array_equal(*tables)
    assert (tables[0].numpy()[1] != start[1]).all() and (tables[0].numpy()[2] == start[2]).all()


def test_gradients_that_are_zero_move_nothing(rng):
    (variable, *_) = weights(rng)
    before, optimizer = variable.numpy(), make()
    for _ in range(2):
        optimizer.apply([tf.zeros(variable.shape)], [variable])
    np.testing.assert_array_equal(variable, before)
    gradient = gradients_of(rng)[0]
    optimizer.apply([gradient], [variable])
    assert np.isfinite(variable.numpy()).all() and (variable.numpy() != before).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_squares_that_are_not_finite_do_not_enter_the_average(rng, value):
    variable, optimizer = keras.Variable([0.0, 0.0]), make()
    optimizer.apply([tf.constant([1.0, 2.0])], [variable])
    optimizer.apply([tf.constant([1.0, value], tf.float32)], [variable])
    np.testing.assert_allclose(optimizer._averages[0], [1.0, 4.0])


def test_a_step_that_keras_skips_leaves_the_state(rng):
    variables = weights(rng)
    scaled = keras.optimizers.LossScaleOptimizer(make(momentum=0.5))
    scaled.apply(gradients_of(rng), variables)
    before, state = [v.numpy() for v in variables], state_of(scaled.inner_optimizer)
    gradients = gradients_of(rng)
    scaled.apply([*gradients[:-1], np.nan * gradients[-1]], variables)
    assert_same_state(scaled.inner_optimizer, state)
    for variable, expected in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable, expected)


def model_of(optimizer):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    return model


def fit(model, epochs=1):
    x = np.random.default_rng(4).standard_normal((32, 4)).astype(np.float32)
    model.fit(x, x[:, :2] ** 2, batch_size=4, epochs=epochs, shuffle=False, verbose=0)
    return model.get_weights()


def test_a_saved_model_goes_on_as_if_nothing_had_happened(tmp_path):
    settings = SETTINGS["adagrad_on_nesterov"]
    expected = fit(model_of(make(**settings)), epochs=2)
    model = model_of(make(**settings))
    model.optimizer.set_global_batch_size(SAMPLES)
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for mine, theirs in zip(fit(loaded), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time_constant": 0}, "time_constant must be a positive number of samples.*=0"),
        ({"global_batch_size": 1.5}, "global_batch_size must be a positive whole.*=1.5"),
        ({"global_batch_size": None}, "global_batch_size must be a positive whole.*=None"),
        ({"momentum": 1.0}, "momentum must be at least 0 and less than 1.*momentum=1.0"),
        ({"adagrad_on": "both"}, "adagrad_on must be .*adagrad_on='both'"),
        ({"epsilon": 0.0}, "epsilon must be positive.*epsilon=0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    given = {"learning_rate": 0.1, "time_constant": 9, "global_batch_size": 8}
    with pytest.raises(ValueError, match=message):
        NormalizedAdaGrad(**given | settings)


@pytest.mark.parametrize("built", [False, True])
def test_a_batch_size_that_is_none_is_refused(rng, built):
    optimizer = make()
    if built:
        optimizer.build(weights(rng))
    with pytest.raises(ValueError, match="global_batch_size must be .*global_batch_size=0"):
        optimizer.set_global_batch_size(0)
