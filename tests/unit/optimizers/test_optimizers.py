"""Optimizers that count the steps of their moments: Keras' own weights, and moved steps."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.reference import rectified_adam
from tests.support.bits import assert_same_bits
from tests.support.nightly import nightly_rows
from tests.support.programs import run_python
from tf_onebit import optimizers

KERAS = {
    "adam": (optimizers.Adam, keras.optimizers.Adam),
    "adamw": (optimizers.AdamW, keras.optimizers.AdamW),
    "nadam": (optimizers.Nadam, keras.optimizers.Nadam),
}
CLASSES = [*(ours for ours, _ in KERAS.values()), optimizers.RectifiedAdam]
# Powers of two: Keras rounds betas to float32 in places, and so rounds nothing.
BETAS = {"beta_1": 0.5, "beta_2": 0.875}
every_class = pytest.mark.parametrize(
    "optimizer_class",
    # AdamW is an Adam with weight decay.
    [
        c if c is not optimizers.AdamW else pytest.param(c, marks=pytest.mark.nightly)
        for c in CLASSES
    ],
    ids=lambda c: c.__name__,
)


def schedule():
    return keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.5)


def options(name):
    """Returns a function that makes keyword arguments.

    A schedule may belong to one optimizer only.
    """
    return {
        "plain": lambda: {},
        "decayed": lambda: {"weight_decay": 0.1},
        "accumulated": lambda: {"gradient_accumulation_steps": 2, "clipnorm": 0.5},
        "scheduled": lambda: {"learning_rate": schedule()},
        "averaged": lambda: {"use_ema": True, "ema_overwrite_frequency": 5},
        "amsgrad": lambda: {"amsgrad": True},
    }[name]()


CASES = [
    *((name, option) for name in KERAS for option in ("plain", "accumulated", "scheduled")),
    *((name, option) for name in KERAS for option in ("decayed", "averaged")),
    *((name, "amsgrad") for name in ("adam", "adamw")),
]
# In graphs, which take longer: each optimizer and each option, some in `fit`.
IN_GRAPHS = [
    *((name, "plain") for name in KERAS),
    *(("adamw", "accumulated"), ("nadam", "accumulated"), ("nadam", "scheduled")),
    *(("adam", "amsgrad"), ("adamw", "decayed")),
]
IN_FIT = [
    ("nadam", "averaged"),
    *nightly_rows(("adam", "accumulated"), ("adamw", "scheduled")),
]
# Eagerly: what is in no graph above.
EAGERLY = [("adam", "decayed"), ("adam", "scheduled"), ("nadam", "averaged")]


def weights(dtype="float32"):
    rng = np.random.default_rng(2)
    return [keras.Variable(rng.standard_normal(shape), dtype=dtype) for shape in ((5, 3), (4,))]


def gradients(steps, dtype=np.float32):
    rng = np.random.default_rng(3)
    return [
        [rng.standard_normal(shape).astype(dtype) for shape in ((5, 3), (4,))] for _ in range(steps)
    ]


def values(variables):
    return [variable.numpy() for variable in variables]


def make_model(optimizer):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    return model


def fit(model):
    x = np.random.default_rng(4).standard_normal((80, 4)).astype(np.float32)
    model.fit(x, x[:, :2] ** 2, batch_size=4, shuffle=False, verbose=0)


def step_eagerly(model, steps=5):
    """Makes steps with made-up gradients: compiling would take most of a test's time."""
    rng = np.random.default_rng(5)
    for _ in range(steps):
        model.optimizer.apply(
            [tf.constant(rng.standard_normal(v.shape), v.dtype) for v in model.trainable_variables],
            model.trainable_variables,
        )


def trained(optimizer, steps=3):
    """Returns the weights after some steps."""
    variables = weights()
    for step in gradients(steps):
        optimizer.apply([tf.constant(g) for g in step], variables)
    return variables


@pytest.mark.parametrize(
    "name, option, in_graph",
    [
        *((*case, False) for case in EAGERLY),
        *((*case, True) for case in IN_GRAPHS),
        *nightly_rows(*((*case, False) for case in CASES if case not in EAGERLY)),
    ],
)
def test_unmoved_weights_have_the_bits_of_keras(name, option, in_graph):
    results = []
    for optimizer_class in KERAS[name]:
        optimizer, variables = optimizer_class(**options(option)), weights()
        optimizer.build(variables)
        apply = tf.function(optimizer.apply) if in_graph else optimizer.apply
        for step in gradients(20):
            apply([tf.constant(g) for g in step])
        results.append([values(variables), values(optimizer.variables)])
    ours, theirs = results
    assert_same_bits(ours[0], theirs[0])
    assert_same_bits(ours[1][:-1], theirs[1])  # the last is the steps that k is ahead
    assert ours[1][-1] == 0


@pytest.mark.parametrize("name, option", IN_FIT)
def test_unmoved_weights_have_the_bits_of_keras_in_fit(name, option):
    models = [make_model(optimizer_class(**options(option))) for optimizer_class in KERAS[name]]
    for model in models:
        fit(model)
    ours, theirs = models
    assert_same_bits(ours.get_weights(), theirs.get_weights())
    assert_same_bits(values(ours.optimizer.variables)[:-1], values(theirs.optimizer.variables))


def test_a_scaled_loss_trains_as_with_keras():
    models = [
        make_model(keras.optimizers.LossScaleOptimizer(optimizer_class()))
        for optimizer_class in KERAS["nadam"]
    ]
    for model in models:
        fit(model)
    assert_same_bits(*(model.get_weights() for model in models))
    assert inner_of(models[0]).moment_steps == 20


def adam_step(theta, m, v, g, t, rate):
    m, v = 0.5 * m + 0.5 * g, 0.875 * v + 0.125 * g * g
    m_hat, v_hat = m / (1 - 0.5**t), v / (1 - 0.875**t)
    # Keras' epsilon is the "hat" epsilon of Kingma and Ba, for the uncorrected root.
    return theta - rate * m_hat / (np.sqrt(v_hat) + 1e-7 / np.sqrt(1 - 0.875**t))


def adamw_step(theta, m, v, g, t, rate):
    return adam_step(theta * (1 - rate * 0.125), m, v, g, t, rate)


def momentum_of(j):
    return 0.5 * (1 - 0.5 * 0.96**j)


def nadam_step(theta, m, v, g, t, rate, product):
    m, v = 0.5 * m + 0.5 * g, 0.875 * v + 0.125 * g * g
    product = product * momentum_of(t)
    following = momentum_of(t + 1)
    m_hat = following * m / (1 - product * following) + (1 - momentum_of(t)) * g / (1 - product)
    return theta - rate * m_hat / (np.sqrt(v / (1 - 0.875**t)) + 1e-7)


def rectified_step(theta, m, v, g, t, rate):
    reference = rectified_adam.RectifiedAdam(theta, rate, **BETAS)
    reference.m, reference.v, reference.t = m, v, t - 1
    reference.step(g)
    return reference.weights


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize(
    "optimizer_class, transcription",
    list(zip(CLASSES, (adam_step, adamw_step, nadam_step, rectified_step), strict=True)),
    ids=lambda c: c.__name__,
)
def test_a_step_after_moving_counts_moved_steps(optimizer_class, transcription, in_graph):
    """Makes steps 1 to 3, then `k += 1.75`, then a step whose t is 5.75."""
    decay = {"weight_decay": 0.125} if optimizer_class is optimizers.AdamW else {}
    optimizer, variables = optimizer_class(0.25, **BETAS, **decay), weights("float64")
    optimizer.build(variables)
    apply = tf.function(optimizer.apply) if in_graph else optimizer.apply
    *first, last = gradients(4, np.float64)
    for step in first:
        apply([tf.constant(g) for g in step])
    assert optimizer.moment_steps == 3
    optimizer.advance_moments(1.75)
    assert optimizer.moment_steps == 4.75
    first_moments, second_moments = (values(moment.variables) for moment in optimizer.moments)
    product = {}
    if optimizer_class is optimizers.Nadam:
        steps = momentum_of(1), momentum_of(2), momentum_of(3), momentum_of(4)
        product["product"] = np.prod(steps) * momentum_of(5) ** 0.75
    before = values(variables)
    apply([tf.constant(g) for g in last])
    for theta, m, v, g, result in zip(
        before, first_moments, second_moments, last, variables, strict=True
    ):
        expected = transcription(theta, m, v, g, 5.75, 0.25, **product)
        # Keras rounds Nadam's 0.96 to float32.
        rtol = 1e-6 if product else 1e-11
        np.testing.assert_allclose(result.numpy(), expected, rtol=rtol)
    assert optimizer.moment_steps == 5.75
    assert int(optimizer.iterations) == 4


def test_schedules_do_not_move():
    optimizer = optimizers.Adam(schedule())
    trained(optimizer, 3)
    optimizer.advance_moments(100.5)
    assert float(optimizer.learning_rate) == pytest.approx(0.005)
    assert int(optimizer.iterations) == 3
    assert optimizer.iterations.dtype == "int64"


@every_class
def test_accumulated_steps_count_once(optimizer_class):
    optimizer = optimizer_class(gradient_accumulation_steps=2)
    trained(optimizer, 5)
    assert optimizer.moment_steps == 2
    optimizer.advance_moments(0.5)
    trained_on = optimizer._trainable_variables
    optimizer.apply([tf.constant(g) for g in gradients(1)[0]], trained_on)
    assert optimizer.moment_steps == 3.5


@every_class
def test_setting_steps_changes_nothing_else(optimizer_class):
    optimizer = optimizer_class()
    trained(optimizer)
    ahead = optimizer._moment_steps_ahead
    others = [variable for variable in optimizer.variables if variable is not ahead]
    optimizer.iterations.assign(10)
    before = values(others)
    optimizer.moment_steps = 4.25
    assert optimizer.moment_steps == 4.25
    assert ahead.numpy() == -5.75
    assert_same_bits(values(others), before)


@pytest.mark.parametrize("steps", [0.0, 0.3, 1.0, 2.75, 2000.5])
def test_nadams_product_follows(steps):
    optimizer, variables = optimizers.Nadam(beta_1=0.9996), weights("float64")
    optimizer.build(variables)
    optimizer.moment_steps = 6.5
    optimizer._u_product.assign(0.75)
    optimizer.advance_moments(steps)
    logarithm, step, left = np.log(0.75), 7.5, steps
    while left > 0:
        logarithm += min(left, 1) * np.log(0.9996 * (1 - 0.5 * 0.96**step))
        step, left = step + 1, left - 1
    np.testing.assert_allclose(optimizer._u_product.numpy(), np.exp(logarithm), rtol=1e-11)


def test_whole_steps_move_nadams_product_as_steps_do():
    stepped, moved = optimizers.Nadam(), optimizers.Nadam()
    trained(stepped, 5)
    trained(moved, 2)
    moved.advance_moments(3)
    np.testing.assert_allclose(moved._u_product.numpy(), stepped._u_product.numpy(), rtol=1e-6)


@every_class
def test_after_a_reset_steps_are_those_of_a_new_optimizer(optimizer_class):
    amsgrad = {"amsgrad": True} if issubclass(optimizer_class, keras.optimizers.Adam) else {}
    optimizer = optimizer_class(**amsgrad)
    variables = trained(optimizer)
    optimizer.advance_moments(7.5)
    optimizer.reset_moments()
    assert optimizer.moment_steps == 0
    assert int(optimizer.iterations) == 3
    fresh, copies = optimizer_class(**amsgrad), [keras.Variable(v.numpy()) for v in variables]
    for step in gradients(3):
        optimizer.apply([tf.constant(g) for g in step], variables)
        fresh.apply([tf.constant(g) for g in step], copies)
    assert_same_bits(values(variables), values(copies))


@every_class
def test_moments_are_the_averages(optimizer_class):
    optimizer = optimizer_class(**BETAS)
    trained(optimizer, 2)
    (first, second), step = optimizer.moments, gradients(2)
    assert (first.decay, first.of_squares) == (0.5, False)
    assert (second.decay, second.of_squares) == (0.875, True)
    for index in range(2):
        one, two = step[0][index], step[1][index]
        m, v = first.variables[index].numpy(), second.variables[index].numpy()
        np.testing.assert_allclose(m, one / 4 + two / 2, rtol=1e-6)
        np.testing.assert_allclose(v, (0.875 * one**2 + two**2) / 8, rtol=1e-6)


@every_class
def test_what_cannot_be_done_is_refused(optimizer_class):
    optimizer = optimizer_class(name="mine")
    for use in (
        lambda: optimizer.moments,
        lambda: optimizer.moment_steps,
        lambda: setattr(optimizer, "moment_steps", 1.0),
        lambda: optimizer.advance_moments(1.0),
        lambda: optimizer.reset_moments(),
    ):
        with pytest.raises(ValueError, match="'mine' .* only once it has been built. Call"):
            use()
    optimizer.build(weights())
    before = values(optimizer.variables)
    for steps in (-1, -0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"Received: steps={steps}. To start from zero"):
            optimizer.advance_moments(steps)
        with pytest.raises(ValueError, match=f"Received: moment_steps={steps}. To start from zero"):
            optimizer.moment_steps = steps
    with pytest.raises(ValueError, match="'mine' cannot be read within a tf.function"):
        tf.function(lambda: optimizer.advance_moments(1.0))()
    assert_same_bits(values(optimizer.variables), before)


@pytest.mark.parametrize("betas", [{}, BETAS, {"beta_2": 0.6}, {"beta_2": 0.5}])
def test_rectified_adam_equals_the_paper(betas):
    optimizer, variables = optimizers.RectifiedAdam(0.25, **betas), weights("float64")
    references = [rectified_adam.RectifiedAdam(v, 0.25, **betas) for v in values(variables)]
    for step in gradients(20, np.float64):
        optimizer.apply([tf.constant(g) for g in step], variables)
        for variable, reference, g in zip(variables, references, step, strict=True):
            reference.step(g)
            np.testing.assert_allclose(variable.numpy(), reference.weights, rtol=1e-10)


def test_rectified_adam_trains_in_float32_with_all_of_keras_options():
    decay, rate = 0.01, 0.25
    optimizer = optimizers.RectifiedAdam(rate, weight_decay=decay, clipvalue=0.5)
    variables = weights()
    references = [rectified_adam.RectifiedAdam(v, rate) for v in values(variables)]
    for step in gradients(20):
        optimizer.apply([tf.constant(g) for g in step], variables)
        for reference, g in zip(references, step, strict=True):
            reference.weights *= 1 - decay * rate
            reference.step(np.clip(g, -0.5, 0.5))
    for variable, reference in zip(variables, references, strict=True):
        np.testing.assert_allclose(variable.numpy(), reference.weights, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="not recognized: {'amsgrad'"):
        optimizers.RectifiedAdam(amsgrad=True)


def test_variance_is_intractable_for_four_steps():
    assert [rectified_adam.variance_rectification(t, 0.999) is None for t in range(1, 7)] == [
        *[True] * 4,
        *[False] * 2,
    ]
    assert rectified_adam.variance_rectification(1e6, 0.999) == pytest.approx(1)


WRAPPERS = {
    "plain": lambda optimizer: optimizer,
    "loss_scaled": keras.optimizers.LossScaleOptimizer,
    "distributed": hvd.DistributedOptimizer,
    "both": lambda o: hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(o)),
}


def inner_of(model):
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


@pytest.mark.parametrize(
    "optimizer_class, wrapper",
    [
        *((optimizers.Nadam, wrapper) for wrapper in ("plain", "both")),
        (optimizers.RectifiedAdam, "distributed"),
        *nightly_rows(
            *((c, "both") for c in CLASSES if c is not optimizers.Nadam),
            *((optimizers.Nadam, wrapper) for wrapper in ("loss_scaled", "distributed")),
        ),
    ],
)
def test_saved_models_train_on(optimizer_class, wrapper, tmp_path):
    hvd.init()
    given = {"beta_1": 0.75, "beta_2": 0.5, "epsilon": 1e-5, "use_ema": True, "name": "mine"}
    made = optimizer_class(schedule(), **given)
    model = make_model(WRAPPERS[wrapper](made))
    step_eagerly(model)
    inner_of(model).advance_moments(2.25)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(inner_of(loaded)) is optimizer_class
    config = inner_of(loaded).get_config()
    assert config == inner_of(model).get_config()
    assert config == {**config, **given}
    assert inner_of(loaded).moment_steps == 7.25
    assert_same_bits(values(loaded.optimizer.variables), values(model.optimizer.variables))
    step_eagerly(model)
    step_eagerly(loaded)
    assert_same_bits(loaded.get_weights(), model.get_weights())


@every_class
def test_moved_steps_are_in_weights_files_and_stores(optimizer_class, tmp_path):
    model = make_model(optimizer_class())
    step_eagerly(model)
    model.optimizer.advance_moments(2.25)
    model.save_weights(tmp_path / "all.weights.h5")
    store = {}
    model.optimizer.save_own_variables(store)
    for load in (
        lambda again: again.load_weights(tmp_path / "all.weights.h5"),
        lambda again: again.optimizer.load_own_variables(store),
    ):
        again = make_model(optimizer_class())
        again.optimizer.build(again.trainable_variables)
        load(again)
        assert again.optimizer.moment_steps == 7.25
        assert_same_bits(values(again.optimizer.variables), values(model.optimizer.variables))


@every_class
def test_remade_optimizers_take_over_moved_steps(optimizer_class):
    hvd.init()
    optimizer = optimizer_class(gradient_accumulation_steps=2)
    trained(optimizer, 4)
    optimizer.advance_moments(2.25)
    distributed = hvd.DistributedOptimizer(optimizer)
    assert distributed.moment_steps == 4.25
    distributed.advance_moments(0.5)
    assert distributed.moment_steps == 4.75


def test_configurations_of_keras_are_left_to_keras():
    for ours, theirs in KERAS.values():
        for optimizer_class in (ours, theirs):
            config = keras.optimizers.serialize(optimizer_class(0.5))
            assert type(keras.optimizers.deserialize(config)) is optimizer_class


def test_variables_have_names_that_say_what_they_are():
    optimizer = optimizers.Adam(name="mine")
    optimizer.build(weights())
    assert optimizer.variables[-1].path == "mine/moment_steps_ahead"
    assert optimizer.variables[-1].dtype == "float64"


UNDER_STRATEGIES = """
import json
import sys
import keras
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

from tests.unit.optimizers.test_optimizers import make_model, schedule
from tf_onebit import distribute, optimizers

DEVICES = ["CPU:0", "CPU:1"]
STRATEGIES = {
    "tensorflow": lambda: tf.distribute.MirroredStrategy(DEVICES),
    "onebit": lambda: distribute.MirroredStrategy(None, DEVICES),
}
rng = np.random.default_rng(4)
x = rng.standard_normal((24, 4)).astype(np.float32)

def state(strategy, optimizer_class, **options):
    with strategy.scope():
        model = make_model(optimizer_class(schedule(), use_ema=True, **options))
    model.run_eagerly = strategy is tf.distribute.get_strategy()  # graphs take longer to make
    for part in range(2):
        model.fit(x, x[:, :2] ** 2, batch_size=4, shuffle=False, verbose=0)
        model.optimizer.advance_moments(2.5)
    assert model.optimizer.moment_steps == model.optimizer.iterations.numpy() + 5
    return [v.numpy() for v in (*model.variables, *model.optimizer.variables)]

distances = {}
for strategy, optimizer_class in (
    ("tensorflow", optimizers.AdamW),
    ("onebit", optimizers.Nadam),
):
    made = state(STRATEGIES[strategy](), optimizer_class)
    alone = state(tf.distribute.get_strategy(), optimizer_class)
    distance = max(float(np.abs(a - b).max()) for a, b in zip(made, alone, strict=True))
    distances[f"{strategy} {optimizer_class.__name__}"] = distance
print(json.dumps(distances))
"""


def test_two_devices_of_a_strategy_move_as_one():
    status, output, errors = run_python(UNDER_STRATEGIES, in_fork=True)
    assert status == 0, errors
    distances = json.loads(output.splitlines()[-1])
    assert {name: value for name, value in distances.items() if not value < 1e-5} == {}
