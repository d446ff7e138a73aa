"""Updates of each worker's own gradients, exchanged in place of gradients."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
from tests.reference.threshold import Cluster
from tests.support.adam_of_means import of_means
from tests.support.gradients import Exact
from tests.support.nightly import nightly, nightly_rows
from tf_onebit._framework_internals.tf_variables import copies_of
from tf_onebit._training.local_updates import expected_moments_of
from tf_onebit.callbacks import BackupAndRestore
from tf_onebit.exchanges import FullPrecision, Threshold
from tf_onebit.transforms import Momentum

DEVICES = ["CPU:0", "CPU:1"]
STEPS = 4
X, LABELS = np.eye(12, 6, dtype=np.float32), np.arange(12) % 5


class Roomy(Threshold):
    """Threshold whose messages have room for all values."""

    expected_density = 1.0


class Heavy(keras.optimizers.SGD):
    """Momentum, written by a user."""

    def update_step(self, gradient, variable, learning_rate):
        velocity = self.momentums[self._get_variable_index(variable)]
        self.assign(velocity, self.momentum * velocity + gradient)
        self.change(variable, -learning_rate * velocity)

    def change(self, variable, update):
        self.assign_add(variable, update)


class Telling(Heavy):
    adds_updates = True


class TwiceChanging(Telling):
    def change(self, variable, update):
        self.assign_add(variable, update / 2)
        self.assign_sub(variable, -update / 2)


class Assigning(Telling):
    def change(self, variable, update):
        self.assign(variable, variable + update)


class Bypassing(Telling):
    def change(self, variable, update):
        variable.assign_add(update)


class Named(keras.optimizers.Adam):
    """A subclass that leaves the update as it is."""


OPTIMIZERS = {
    "of_a_user": lambda: Telling(0.1, momentum=0.9),
    "subclass": lambda: Named(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "forgetful": lambda: keras.optimizers.Adam(0.01, beta_1=0.9, beta_2=0.8),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "rectified_adam": lambda: tf_onebit.optimizers.RectifiedAdam(0.01),
    "moved_nadam": lambda: tf_onebit.optimizers.Nadam(0.01),
    "global_clipped": lambda: keras.optimizers.SGD(0.01, momentum=0.9, global_clipnorm=0.5),
    "normalized_adagrad": lambda: tf_onebit.optimizers.NormalizedAdaGrad(
        0.01, time_constant=100, global_batch_size=10, momentum=0.5
    ),
    "clipped": lambda: keras.optimizers.Adam(0.01, clipnorm=0.5),
    "decayed": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    ),
}


def gradients_of(rng):
    return [rng.normal(size=shape).astype(np.float32) for shape in [(6, 5), (5,)]]


def plainly(make, initial, gradients):
    """The mean of the updates that one plain optimizer per worker makes of its gradients."""
    workers = [of_means(make(), len(DEVICES)) for _ in DEVICES]
    own = [[keras.Variable(array) for array in initial] for _ in DEVICES]
    weights = [array.astype(np.float64) for array in initial]
    for of_step in gradients:
        updates = []
        for optimizer, variables, mine in zip(workers, own, of_step, strict=True):
            for variable, value in zip(variables, weights, strict=True):
                variable.assign(value)
            before = [variable.numpy().astype(np.float64) for variable in variables]
            optimizer.apply([tf.constant(g) for g in mine], variables)
            after = [variable.numpy() for variable in variables]
            updates.append([a - b for a, b in zip(after, before, strict=True)])
        means = [np.mean(of_variable, axis=0) for of_variable in zip(*updates, strict=True)]
        weights = [w + mean for w, mean in zip(weights, means, strict=True)]
    return weights


# A velocity, moments that are counted, and a rule of a user.
USUAL = ("momentum", "adam", "of_a_user")


@pytest.mark.parametrize(
    "name", [*USUAL, *nightly(*(name for name in OPTIMIZERS if name not in USUAL))]
)
@pytest.mark.filterwarnings("error:Workers exchange gradients")
def test_workers_make_the_mean_of_what_optimizers_would_do_with_their_gradients(rng, name):
    make = OPTIMIZERS[name]
    initial, gradients = gradients_of(rng), gradients_of_steps(rng)
    weights, optimizer = trained(make, Exact(), initial, gradients)
    expected = plainly(make, initial, gradients)
    for mine, value in zip(weights, expected, strict=True):
        np.testing.assert_allclose(mine, value, rtol=1e-4, atol=1e-6)
    assert int(optimizer.iterations.numpy()) == STEPS


def test_moments_of_all_these_optimizers_are_local():
    assert {name: expected_moments_of(make(), Exact()) for name, make in OPTIMIZERS.items()} == (
        dict.fromkeys(OPTIMIZERS, "local")
    )


def gradients_of_steps(rng):
    return [[gradients_of(rng) for _ in DEVICES] for _ in range(STEPS)]


def trained(make, exchange, initial, gradients):
    """Returns weights and the optimizer after steps in the scope of a strategy."""
    strategy = tf_onebit.distribute.MirroredStrategy(exchange, DEVICES)
    with strategy.scope():
        variables = [keras.Variable(array) for array in initial]
        optimizer = make()

    @tf.function
    def step(*arrays):
        def on_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            # Keras divides the loss, and so gradients, by the number of replicas.
            mine = [tf.gather(array, replica) / len(DEVICES) for array in arrays]
            optimizer.apply(mine, variables)

        strategy.run(on_replica)

    for of_step in gradients:
        step(*(np.stack(of_variable) for of_variable in zip(*of_step, strict=True)))
    return [variable.numpy() for variable in variables], optimizer


@pytest.mark.parametrize("name", ["momentum", *nightly("nesterov")])
def test_threshold_clears_velocities_where_it_sends(rng, name):
    rate, momentum, tau = 0.1, 0.9, 0.15
    initial, gradients = gradients_of(rng), gradients_of_steps(rng)
    weights, optimizer = trained(OPTIMIZERS[name], Roomy(tau, moments="local"), initial, gradients)
    expected = flat(initial).astype(np.float64)
    velocities = [np.zeros_like(expected) for _ in DEVICES]
    cluster = Cluster(len(DEVICES), expected.size)
    for of_step in gradients:
        mine = [flat(of_worker) for of_worker in of_step]
        velocities = [momentum * v - rate * g for v, g in zip(velocities, mine, strict=True)]
        updates = velocities
        if name == "nesterov":
            updates = [momentum * v - rate * g for v, g in zip(velocities, mine, strict=True)]
        corrected = [r + u for r, u in zip(cluster.residuals, updates, strict=True)]
        expected += cluster.exchange(updates, tau) / len(DEVICES)
        velocities = [
            np.where(abs(c) > tau, 0, v) for c, v in zip(corrected, velocities, strict=True)
        ]
    np.testing.assert_allclose(flat(weights), expected, rtol=1e-5, atol=1e-6)
    copies = [copies_of(velocity) for velocity in optimizer.momentums]
    for on_device, velocity in zip(zip(*copies, strict=True), velocities, strict=True):
        np.testing.assert_allclose(flat(on_device), velocity, rtol=1e-5, atol=1e-6)
        assert 0 < np.count_nonzero(velocity) < velocity.size


def test_both_rounds_of_a_message_clear_velocities(rng):
    initial, gradients = gradients_of(rng), gradients_of_steps(rng)
    template = tf_onebit.Threshold(target_density=0.1, selection="top_k", moments="local")
    weights, optimizer = trained(OPTIMIZERS["momentum"], template, initial, gradients[:1])
    copies = [copies_of(velocity) for velocity in optimizer.momentums]
    cleared = [flat(on_device) == 0 for on_device in zip(*copies, strict=True)]
    # All that has moved was sent by some worker.
    moved = flat(weights) != flat(initial)
    np.testing.assert_array_equal(moved, np.any(cleared, axis=0))
    sent = round(0.1 * moved.size)
    assert all(0.5 * sent < mine.sum() <= sent for mine in cleared)


def flat(arrays):
    return np.concatenate([np.ravel(array) for array in arrays])


@pytest.mark.parametrize("rows", [6, 6000])  # with a copy, and with a branch
def test_a_gradient_that_is_not_finite_reaches_no_moment(rows):
    spoiled = np.full([rows, 5], 0.1, np.float32)
    spoiled[1, 2] = np.nan
    initial, ends = np.zeros_like(spoiled), {}

    def make():
        ends["optimizer"] = keras.optimizers.Adam(0.01)
        return ends["optimizer"]

    with pytest.raises(tf.errors.InvalidArgumentError, match="must be finite"):
        trained(make, Exact(), [initial], [[[spoiled], [np.ones_like(spoiled)]]])
    moments = [v.numpy() for v in ends["optimizer"].variables if v.shape == initial.shape]
    assert len(moments) == 2
    assert np.isfinite(moments).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Heavy(0.1, momentum=0.9),
        *nightly(
            lambda: keras.optimizers.Ftrl(0.1), lambda: keras.optimizers.ScheduleFreeAdamW(0.01)
        ),
    ],
    ids=["of_a_user", "ftrl", "schedule_free"],
)
def test_optimizers_that_may_not_add_their_updates_exchange_gradients(rng, make):
    initial, gradients = gradients_of(rng), gradients_of_steps(rng)
    told = 'not known to work with moments="local".*adds_updates = True.*moments="after"'
    with pytest.warns(UserWarning, match=told):
        weights, optimizer = trained(make, Exact(), initial, gradients)
    expected, _ = trained(make, FullPrecision(), initial, gradients)
    for mine, value in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(mine, value)
    assert optimizer.gradient_exchange.moments == "after"


def momentum():
    return keras.optimizers.SGD(0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("exchange", "make", "moments"),
    [
        (tf_onebit.OneBit(), momentum, "local"),
        (tf_onebit.OneBit(), lambda: keras.optimizers.SGD(0.1), "after"),
        *nightly_rows((tf_onebit.OneBit(moments="after"), momentum, "after")),
        (tf_onebit.OneBit(transforms=[Momentum(0.9)]), momentum, "after"),
        *nightly_rows((tf_onebit.OneBit(local_transforms=[Momentum(0.9)]), momentum, "after")),
        (tf_onebit.Threshold(), momentum, "local"),
        (tf_onebit.Threshold(tau=1.0), momentum, "after"),
        *nightly_rows(
            (tf_onebit.Delayed(tf_onebit.Threshold(target_density=0.1)), momentum, "local")
        ),
        (FullPrecision(), momentum, "after"),
    ],
    ids=[
        "one_bit",
        "without_momentum",
        "as_said",
        "transforms",
        "local_transforms",
        "threshold",
        "fixed_tau",
        "delayed",
        "full_precision",
    ],
)
def test_moments_are_local_by_default_where_updates_are_compressed(rng, exchange, make, moments):
    initial, gradients = gradients_of(rng), gradients_of_steps(rng)[:1]
    _, optimizer = trained(make, exchange, initial, gradients)
    assert optimizer.gradient_exchange.moments == moments


@pytest.mark.nightly
@pytest.mark.parametrize(
    "exchange", [tf_onebit.OneBit(min_size=0), tf_onebit.Threshold()], ids=["one_bit", "threshold"]
)
def test_the_default_trains_as_what_it_stands_for(rng, exchange):
    initial, gradients = gradients_of(rng), gradients_of_steps(rng)
    weights, _ = trained(momentum, exchange, initial, gradients)
    said = type(exchange).from_config(exchange.get_config() | {"moments": "local"})
    expected, _ = trained(momentum, said, initial, gradients)
    for mine, value in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(mine, value)


@pytest.mark.parametrize(
    ("cls", "how"),
    [
        (TwiceChanging, "more than once"),
        (Assigning, "by self.assign"),
        (Bypassing, "of the variable"),
    ],
)
def test_updates_that_are_not_what_an_optimizer_says_are_an_error(rng, cls, how):
    with pytest.raises(ValueError, match=f"{cls.__name__}.update_step must.*{how}. Rewrite it"):
        trained(
            lambda: cls(0.1, momentum=0.9), Exact(), gradients_of(rng), gradients_of_steps(rng)[:1]
        )


def test_without_moments_bits_are_the_same(rng):
    initial, gradients = gradients_of(rng), gradients_of_steps(rng)
    exchange = tf_onebit.OneBit(moments="local", min_size=0)
    weights, optimizer = trained(lambda: keras.optimizers.SGD(0.1), exchange, initial, gradients)
    plain = tf_onebit.OneBit(min_size=0)
    expected, _ = trained(lambda: keras.optimizers.SGD(0.1), plain, initial, gradients)
    for mine, value in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(mine, value)
    assert optimizer.gradient_exchange.moments == "after"


def fit(exchange, devices, directory, epochs):
    """Trains, or goes on where an earlier call has ended. Returns the model's optimizer."""
    with tf_onebit.distribute.MirroredStrategy(exchange, devices).scope():
        model = keras.Sequential([keras.Input([6]), keras.layers.Dense(5)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss=loss)
    backup = BackupAndRestore(directory, delete_checkpoint=False)
    model.fit(X, LABELS, batch_size=6, epochs=epochs, verbose=0, callbacks=[backup])
    return model.optimizer


def velocities(optimizer):
    """Returns the velocities of all workers: a list of arrays per variable."""
    return [[c.numpy() for c in copies_of(variable)] for variable in optimizer.momentums]


@pytest.mark.parametrize("moments", ["local", "after"])
def test_other_workers_go_on_with_the_mean_of_the_moments(tmp_path, moments):
    before = velocities(fit(tf_onebit.OneBit(moments="local"), DEVICES, tmp_path, epochs=1))
    assert not np.array_equal(*before[0])
    told = "Training goes on with moments='local', with which it began"
    is_told = pytest.warns(match=told) if moments == "after" else contextlib.nullcontext()
    with is_told:
        resumed = fit(tf_onebit.OneBit(moments=moments), [*DEVICES, "CPU:2"], tmp_path, epochs=1)
    assert resumed.gradient_exchange.moments == "local"
    for mine, of_workers in zip(velocities(resumed), before, strict=True):
        mean = np.mean(of_workers, axis=0, dtype=np.float64).astype(np.float32)
        np.testing.assert_array_equal(mine, 3 * [mean])


def test_moments_of_exchanged_gradients_go_on(tmp_path):
    fit(tf_onebit.OneBit(moments="after"), DEVICES, tmp_path, epochs=1)
    with pytest.warns(match="Training goes on with moments='after', with which it began"):
        resumed = fit(tf_onebit.OneBit(moments="local"), DEVICES, tmp_path, epochs=2)
    for of_workers in velocities(resumed):
        np.testing.assert_array_equal(*of_workers)
