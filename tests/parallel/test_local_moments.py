"""Optimizers whose moments are each worker's own: workers exchange updates."""

import pathlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.apart import Apart
from tests.support.both_engines import batches, model_with
from tests.support.gradients import Exact
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import assert_same_bits_on_all_ranks, from_first, gather
from tests.support.training import INPUTS, embedding_model, make_model
from tf_onebit import Auto, Delayed, FullPrecision, OneBit, Threshold, WarmStart
from tf_onebit.callbacks import BackupAndRestore

STEPS = 5

over_horovod = pytest.mark.workers(2, engines=["horovod", *nightly("tensorflow")])
in_a_strategy = pytest.mark.workers(2, engines=["tensorflow", *nightly("horovod")])


def adam(**arguments):
    return lambda: keras.optimizers.Adam(0.01, **arguments)


def momentum(**arguments):
    return lambda: keras.optimizers.SGD(0.1, momentum=0.9, **arguments)


def adamw():
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5), weight_decay=0.1
    )
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


CASES = {
    "adam": (adam(amsgrad=True, clipnorm=0.1), {}, {}),
    "adamw": (adamw, {}, {}),
    "embeddings": (adam(), {"make": embedding_model}, {}),
    "delayed_embeddings": (momentum(nesterov=True), {"make": embedding_model, "delay": 1}, {}),
    # So large that it changes nothing: Keras would make the gradients dense.
    "clipped_embeddings": (adam(global_clipnorm=1e6), {"make": embedding_model}, {}),
    "nadam_embeddings": (lambda: keras.optimizers.Nadam(0.01), {"make": embedding_model}, {}),
    "delayed_in_a_loop": (adam(), {"delay": 2}, {"steps_per_execution": 2}),
    "delayed_sums": (adam(gradient_accumulation_steps=2), {"delay": 1}, {}),
}

USUAL = [("horovod", 2, "delayed_sums"), ("tensorflow", 2, "adam")]
OTHERS = [
    case for e in ("horovod", "tensorflow") for name in CASES if (case := (e, 2, name)) not in USUAL
]


@pytest.mark.workers(jobs=[*USUAL, *nightly_rows(*OTHERS)], also=["name"])
def test_weights_move_by_the_mean_of_the_workers_own_updates(name, world_size):
    require_the_mean_of_own_updates(Exact(), world_size, *CASES[name])


WARM = {
    "adam": (adam(clipnorm=0.1), make_model, {}),
    "momentum": (momentum(), make_model, {"steps_per_execution": 2}),
    "embeddings": (adam(), embedding_model, {}),
    "sums": (adam(gradient_accumulation_steps=2), make_model, {}),
    "nadam": (lambda: keras.optimizers.Nadam(0.01), make_model, {}),
}


@pytest.mark.workers(
    jobs=[
        ("tensorflow", 2, "adam"),
        ("horovod", 2, "embeddings"),
        *nightly_rows(*((e, 2, name) for e in ("horovod", "tensorflow") for name in WARM)),
    ],
    also=["name"],
)
def test_a_warm_start_has_the_bits_of_full_precision(name, world_size):
    optimizer, make, arguments = WARM[name]
    warm = WarmStart(OneBit(min_size=0, exclude=["bias"]), steps=100)
    exchanges = [FullPrecision(), warm, Auto(WarmStart(Delayed(Threshold()), steps=100))]
    trained = []
    for exchange in exchanges:
        model = model_with(exchange, optimizer, make, **arguments)
        model.fit(batches(world_size), epochs=2, verbose=0)
        trained.append([v.numpy() for v in (*model.weights, *model.optimizer.variables)])
    plain, *others = trained
    for other in others:
        for mine, expected in zip(other, plain, strict=True):
            np.testing.assert_array_equal(mine, expected)


class Noted(OneBit):
    """Notes when an owner has received the messages of a bucket."""

    received = threading.Event()

    def aggregate(self, message):
        message = yield from super().aggregate(message)
        with tf.control_dependencies(message):
            noted = tf.py_function(lambda: self.received.set() or 0, [], tf.int32)
        with tf.control_dependencies([noted]):
            return [tf.identity(tensor) for tensor in message]


class Waiting(keras.layers.Dense):
    """Computes no gradient of its kernel before a message has been received, for a minute."""

    def call(self, x):
        return x @ waiting(tf.convert_to_tensor(self.kernel)) + self.bias


@tf.custom_gradient
def waiting(kernel):
    def gradient(upstream):
        def wait(values):
            assert Noted.received.wait(60)
            return values

        waited = tf.py_function(wait, [upstream], tf.float32)
        return tf.ensure_shape(waited, kernel.shape)

    return tf.identity(kernel), gradient


def model_that_waits():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((INPUTS,)), Waiting(64, "relu"), *map(keras.layers.Dense, (64, 64, 10))]
    )


@pytest.mark.workers(2, engines=["horovod", *nightly("tensorflow")])
def test_updates_are_sent_while_other_gradients_are_computed(world_size):
    exchange = WarmStart(Noted(min_size=0, bucket_bytes=1), steps=2)
    model = model_with(exchange, adam(), model_that_waits)
    Noted.received.set()  # in the warm start, nobody receives anything before the last gradient
    model.fit(batches(world_size, 2), verbose=0)
    Noted.received.clear()
    model.fit(batches(world_size, 1), verbose=0)
    assert_same_bits_on_all_ranks(model.get_weights())


@pytest.mark.workers(2)
def test_no_warm_start_begins_where_moments_differ():
    """Each list of variables has a warm start of its own, and they may have variables in common."""
    exchange = WarmStart(OneBit(min_size=0), steps=2)
    optimizer = hvd.DistributedOptimizer(momentum()(), exchange)
    variables = [keras.Variable(np.zeros((64, 64), np.float32)) for _ in range(3)]
    optimizer.build(variables)
    rng = np.random.default_rng(hvd.rank())
    for chosen in [variables[:2]] * 4 + [variables] * 3 + [variables[1:]] * 3:
        gradients = [tf.constant(rng.normal(size=(64, 64)), tf.float32) for _ in chosen]
        optimizer.apply(gradients, chosen)
        assert_same_bits_on_all_ranks([variable.numpy() for variable in variables])


@pytest.mark.nightly
@pytest.mark.workers(2)
def test_a_gradient_that_is_not_finite_ends_a_warm_start_on_all_workers(world_size):
    model = model_with(WarmStart(OneBit(), steps=100), adam())
    model.fit(batches(world_size), verbose=0)
    learned = [*model.weights, *model.optimizer.variables[2:]]  # not the count of steps
    before = [v.numpy() for v in learned]
    with pytest.raises(Exception, match="Rank 1 met an infinity or NaN in the gradient of"):
        model.fit(batches(world_size, 1, spoil=0), verbose=0)
    for variable, value in zip(learned, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def require_the_mean_of_own_updates(exchange, world_size, optimizer, settings, arguments):
    if "delay" in settings:
        exchange = Delayed(exchange, settings["delay"])
    make = settings.get("make", make_model)
    model = model_with(exchange, optimizer, make, **arguments)
    model.fit(batches(world_size).filter(lambda *_: True), epochs=2, verbose=0)
    assert_same_bits_on_all_ranks(model.get_weights())

    def reference():
        delay = settings.get("delay", 0)
        return Apart(optimizer, world_size, make, delay).fit(STEPS, epochs=2)

    expected = from_first(reference)
    for weights, other in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(weights, other, rtol=1e-4, atol=1e-5)
    steps = model.optimizer.gradient_accumulation_steps or 1
    assert int(model.optimizer.iterations.numpy()) == 2 * STEPS // steps


@pytest.mark.nightly
@over_horovod
def test_a_resumed_run_has_the_same_bits(world_size, tmp_path):
    directory = pathlib.Path(gather(str(tmp_path))[0])

    def fit(name, epochs, warm=STEPS):
        """Trains, or goes on where an earlier call with the same name has ended."""
        exchange = WarmStart(OneBit(moments="local", min_size=0), steps=warm)
        model = model_with(exchange, adam())
        backup = BackupAndRestore(directory / name, delete_checkpoint=False)
        model.fit(batches(world_size), epochs=epochs, verbose=0, callbacks=[backup])
        return [np.array(v) for v in (*model.weights, *model.optimizer.variables)]

    fit("interrupted", epochs=2)
    # A warm start that has ended does not begin again, also if it would take longer now.
    resumed = fit("interrupted", epochs=3, warm=100 * STEPS)
    expected = fit("whole", epochs=3)
    for mine, theirs in zip(resumed, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.workers(2)
def test_velocities_begin_again_where_values_are_sent():
    exchange = WarmStart(Threshold(target_density=0.1), steps=1)
    optimizer = hvd.DistributedOptimizer(momentum()(), exchange)
    variable = keras.Variable(np.zeros(1000, np.float32))
    rng = np.random.default_rng(hvd.rank())
    for _ in range(20):
        optimizer.apply([tf.constant(rng.normal(size=1000), tf.float32)], [variable])
    begun_again = np.mean(gather(np.mean(optimizer.momentums[0].numpy() == 0)))
    assert begun_again == pytest.approx(optimizer.gradient_exchange.metrics()["density"], rel=0.01)
    assert 0.03 < begun_again < 0.3


@pytest.mark.nightly
@in_a_strategy
def test_one_bit_updates_learn(world_size):
    """Scales are learned in the warm start, and the same on all workers."""
    exchange = WarmStart(Delayed(OneBit(moments="local", min_size=0)), steps=2 * STEPS)
    model = model_with(exchange, momentum())
    losses = model.fit(batches(world_size), epochs=8, verbose=0).history["loss"]
    assert_same_bits_on_all_ranks(model.get_weights())
    assert losses[-1] < 0.4 * losses[0]
    states = [
        state for states in model.optimizer.gradient_exchange.carried.states() for state in states
    ]
    scales = [array for state in states for name, array in state.items() if "scales/" in name]
    assert scales and all(map(np.any, scales))
    assert_same_bits_on_all_ranks(scales)
