"""`MultiWorkerMirroredStrategy` in `model.fit` and in custom loops."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
from tests.support.in_scope import STEPS, arrays_of, in_scope, samples, sgd, workers
from tests.support.nightly import nightly
from tests.support.ranks import assert_same_bits_on_all_ranks, digest, from_first, gather, rank
from tests.support.scalars import scalars_in, scalars_named
from tests.support.training import (
    BATCH_SIZE,
    INPUTS,
    compiled,
    embedding_model,
    make_data,
    make_model,
    reference,
    with_layer,
)
from tf_onebit import Delayed, FullPrecision, Local, OneBit, WarmStart
from tf_onebit.distribute import MultiWorkerMirroredStrategy


def adam(**arguments):
    return lambda: keras.optimizers.Adam(0.01, **arguments)


def fit(model, world_size, **arguments):
    """Fits on the samples of all workers. Each takes its part of every batch."""
    x, labels = samples(world_size)
    return model.fit(x, labels, BATCH_SIZE * world_size, shuffle=False, verbose=0, **arguments)


REFERENCES = {
    "sgd": {"optimizer": sgd(momentum=0.9)},
    "adam_in_a_loop": {"optimizer": adam(), "steps_per_execution": 4},
    "accumulation": {"optimizer": sgd(gradient_accumulation_steps=2, clipnorm=0.05)},
    "run_eagerly": {"run_eagerly": True},
    "synchronized_batch_normalization_in_a_loop": {
        "make": with_layer(lambda: keras.layers.BatchNormalization(synchronized=True)),
        "steps_per_execution": 3,
    },
    # Adam is left out: Keras' own is wrong if a row comes twice.
    "embeddings": {"make": embedding_model},
}


@workers
@pytest.mark.parametrize(
    "name",
    [
        *("accumulation", "synchronized_batch_normalization_in_a_loop"),
        *nightly("adam_in_a_loop", "sgd", "run_eagerly", "embeddings"),
    ],
)
def test_full_precision_equals_one_process_on_the_whole_batch(name, world_size):
    settings = {"make": make_model, "optimizer": sgd(), **REFERENCES[name]}
    model = in_scope(FullPrecision(), metrics=["accuracy"], **settings)
    history = fit(model, world_size).history
    assert_same_bits_on_all_ranks(arrays_of(model))

    def train():
        alone = reference(settings["make"](), settings["optimizer"](), metrics=["accuracy"])
        return fit(alone, world_size).history, arrays_of(alone)

    expected, arrays = from_first(train)
    for array, other in zip(arrays_of(model), arrays, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5)
    for metric, values in expected.items():
        np.testing.assert_allclose(history[metric], values, rtol=1e-5)


@pytest.mark.workers(2, *nightly(3), engines=["tensorflow"])
def test_one_bit_repeats_and_learns(world_size):
    models = [in_scope(OneBit(bucket_bytes=4096), optimizer=adam()) for _ in range(2)]
    losses = [fit(model, world_size, epochs=2).history["loss"] for model in models]
    first, second = map(arrays_of, models)
    assert digest(first) == digest(second)
    losses[0] += fit(models[0], world_size, epochs=6).history["loss"]
    assert_same_bits_on_all_ranks(models[0].get_weights())
    assert losses[0][-1] < 0.5 * losses[0][0]


@workers
def test_plain_batch_normalization_averages_nothing(world_size):
    model = in_scope(OneBit(), with_layer(keras.layers.BatchNormalization))
    fit(model, world_size)
    assert_same_bits_on_all_ranks([np.array(v) for v in model.trainable_variables])
    statistics = digest([np.array(v) for v in model.non_trainable_variables])
    assert len(set(gather(statistics))) == world_size


@pytest.mark.nightly
@workers
def test_mixed_precision_learns(world_size):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = in_scope(OneBit(), optimizer=adam())
    finally:
        keras.config.set_dtype_policy(before)
    losses = fit(model, world_size, epochs=6).history["loss"]
    assert_same_bits_on_all_ranks(model.get_weights())
    assert losses[-1] < 0.6 * losses[0]


@workers
def test_all_workers_skip_a_step_in_which_one_is_not_finite(world_size):
    strategy = MultiWorkerMirroredStrategy(OneBit())
    with strategy.scope():
        variable = keras.Variable(np.ones([64, 32], np.float32))
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
        optimizer.build([variable])

    @tf.function
    def step(gradient):
        strategy.run(lambda: optimizer.apply([gradient], [variable]))

    poison = np.inf if rank() == 1 else 1.0
    scale = optimizer.dynamic_scale.numpy()
    step(tf.fill([64, 32], poison))
    assert np.all(variable.numpy() == 1.0)
    assert optimizer.dynamic_scale.numpy() == scale / 2
    step(tf.fill([64, 32], scale / 2))
    np.testing.assert_allclose(variable.numpy(), 1.0 - world_size)


@workers
def test_evaluate_predict_and_single_batches(world_size):
    model = in_scope(OneBit(), metrics=["accuracy"])
    x, labels = samples(world_size)
    history = model.fit(x, labels, 32, validation_data=(x, labels), verbose=0).history
    alone = reference(make_model(), sgd()(), metrics=["accuracy"])
    alone.set_weights(model.get_weights())
    expected = alone.evaluate(x, labels, 32, verbose=0)
    np.testing.assert_allclose(model.evaluate(x, labels, 32, verbose=0), expected, rtol=1e-5)
    validated = [history["val_loss"][-1], history["val_accuracy"][-1]]
    np.testing.assert_allclose(validated, expected, rtol=1e-5)
    predictions = model.predict(x, 32, verbose=0)
    expected = alone.predict(x, 32, verbose=0)
    np.testing.assert_allclose(predictions, expected, rtol=1e-4, atol=1e-5)
    mine = slice(rank() * BATCH_SIZE, (rank() + 1) * BATCH_SIZE)
    assert np.isfinite(model.train_on_batch(x[mine], labels[mine])).all()
    assert_same_bits_on_all_ranks(arrays_of(model))


class TwoOptimizers(keras.Model):
    """A model that trains each layer with an optimizer of its own, in its own train step."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(0)
        self.layers_of = [keras.layers.Dense(32), keras.layers.Dense(10)]

    def call(self, x):
        return self.layers_of[1](tf.nn.relu(self.layers_of[0](x)))

    def train_step(self, data):
        x, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, labels, self(x, training=True))
        parts = [layer.trainable_variables for layer in self.layers_of]
        optimizers = self.optimizer, self.other
        for part, gradients, optimizer in zip(
            parts, tape.gradient(loss, parts), optimizers, strict=True
        ):
            optimizer.apply(gradients, part)
        return {"own": loss}


@workers
def test_custom_train_step_with_two_optimizers_of_one_name(world_size):
    strategy = MultiWorkerMirroredStrategy(FullPrecision())
    with strategy.scope():
        model = compiled(TwoOptimizers(), keras.optimizers.SGD(0.1, name="same"))
        model.other = keras.optimizers.SGD(0.1, name="same")
    fit(model, world_size)

    def train():
        alone = reference(TwoOptimizers(), keras.optimizers.SGD(0.1))
        alone.other = keras.optimizers.SGD(0.1)
        fit(alone, world_size)
        return alone.get_weights()

    for weight, other in zip(model.get_weights(), from_first(train), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-5)
    assert_same_bits_on_all_ranks(arrays_of(model))


@workers
def test_custom_loop(world_size):
    strategy = MultiWorkerMirroredStrategy(FullPrecision())
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.SGD(0.1, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    x, labels = samples(world_size)
    dataset = tf.data.Dataset.from_tensor_slices((x, labels)).batch(BATCH_SIZE * world_size)

    def replica_step(batch, labels):
        with tf.GradientTape() as tape:
            losses = loss_of(labels, model(batch, training=True))
            loss = tf.reduce_sum(losses) / (BATCH_SIZE * world_size)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    @tf.function
    def step(iterator):
        loss = strategy.run(replica_step, args=next(iterator))
        return strategy.reduce("SUM", loss, axis=None)

    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    losses = [float(step(iterator)) for _ in range(STEPS)]
    assert len(set(gather(tuple(losses)))) == 1

    def train():
        alone = reference(make_model(), sgd(momentum=0.9)())
        fit(alone, world_size)
        return alone.get_weights()

    for weight, other in zip(model.get_weights(), from_first(train), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-5)


@workers
def test_local_trains_every_worker_on_its_own_part(world_size):
    x, labels = make_data(STEPS, world_size)
    mine = x[:, rank()].reshape(-1, INPUTS), labels[:, rank()].reshape(-1)
    dataset = tf.data.Dataset.from_tensor_slices(mine).batch(BATCH_SIZE)
    strategy = MultiWorkerMirroredStrategy(Local())
    model = in_scope(strategy=strategy, make=embedding_model, optimizer=adam())
    model.fit(strategy.distribute_datasets_from_function(lambda _: dataset), verbose=0)
    alone = reference(embedding_model(), adam()())
    alone.fit(dataset, verbose=0)
    for weight, other in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-6)
    assert len(set(gather(digest(model.get_weights())))) == world_size


@pytest.mark.nightly
@workers
def test_rank_0_alone_writes_checkpoints_and_logs_for_tensorboard(tmp_path, world_size):
    model = in_scope(OneBit(), with_layer(keras.layers.BatchNormalization), metrics=["accuracy"])
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras"),
        keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, update_freq=1),
    ]
    validation_data = samples(world_size, 1)
    history = fit(
        model,
        world_size,
        epochs=2,
        validation_data=validation_data,
        callbacks=callbacks if rank() == 0 else [],
    ).history
    if rank() == 0:
        assert (tmp_path / "1.keras").exists() and (tmp_path / "2.keras").exists()
        assert scalars_named("epoch_loss", tmp_path / "train") == history["loss"]
        assert scalars_named("epoch_accuracy", tmp_path / "validation") == history["val_accuracy"]
        assert len(scalars_named("batch_loss", tmp_path / "train")) == 2 * STEPS


@workers
def test_checkpoint_is_plain_keras_and_loads_into_a_scope(tmp_path, world_size):
    model = in_scope(OneBit(), optimizer=adam())
    path = tmp_path / "model.keras"
    fit(model, world_size, callbacks=[keras.callbacks.ModelCheckpoint(path)])
    loaded = keras.models.load_model(path)
    assert loaded.optimizer.__class__ is keras.optimizers.Adam
    assert digest(loaded.get_weights()) == digest(model.get_weights())
    with MultiWorkerMirroredStrategy(OneBit()).scope():
        again = keras.models.load_model(path)
    fit(again, world_size)
    assert_same_bits_on_all_ranks(again.get_weights())
    assert again.optimizer.gradient_exchange.built


@workers
def test_monitor_shows_the_exchange(tmp_path, world_size):
    model = in_scope(OneBit(), optimizer=adam())
    monitor = tf_onebit.callbacks.Monitor(1, tmp_path, timeline=tmp_path / "trace.json")
    history = fit(model, world_size, callbacks=[monitor]).history
    assert history["compression_ratio"][-1] > 4
    assert history["residual_norm"][-1] > 0
    folder = tmp_path / str(rank())
    rates = [scalar for scalar in scalars_in(folder) if scalar[1] == "step/learning_rate"]
    assert rates == [(s, "step/learning_rate", pytest.approx(0.01)) for s in range(1, STEPS + 1)]
    sizes = scalars_named("step/global_batch_size", folder)
    assert sizes == [BATCH_SIZE * world_size] * STEPS
    (seconds,) = scalars_named("step/seconds", folder)
    assert 0 < scalars_named("exchange/seconds", folder)[0] < seconds
    events = json.loads((tmp_path / f"trace.{rank()}.json").read_text())["traceEvents"]
    assert [event["name"] for event in events].count("STEP") == STEPS - 1


@pytest.mark.nightly
@workers
def test_monitor_times_steps_that_are_executed_together(world_size):
    weights = []
    monitor = tf_onebit.callbacks.Monitor(update_freq=1)
    for callbacks in ([], [monitor]):
        exchange = WarmStart(Delayed(OneBit(bucket_bytes=8192)), steps=2)
        model = in_scope(exchange, steps_per_execution=3)
        fit(model, world_size, epochs=2, callbacks=callbacks)
        weights.append(digest(arrays_of(model)))
    assert len(set(weights)) == 1
    times = monitor._times.read(batches_per_update=1)
    assert 0 < times["exchange/work_seconds"] < times["exchange/seconds"] < times["step/seconds"]
    assert 0 < times["exchange/hidden_share"] <= 1


@workers
def test_template_is_cloned(world_size):
    exchange = OneBit()
    strategy = MultiWorkerMirroredStrategy(exchange)
    models = [in_scope(strategy=strategy) for _ in range(2)]
    for model in models:
        fit(model, world_size)
    assert not hasattr(exchange, "worker_residual")
    first, second = (arrays_of(model) for model in models)
    assert digest(first) == digest(second)  # no residual of one has reached the other


@workers
def test_numbers_are_reduced(world_size):
    strategy = MultiWorkerMirroredStrategy()
    assert strategy.reduce("SUM", 1.5, axis=None).numpy() == 1.5 * world_size


@workers
def test_values_are_gathered_in_the_order_of_ranks(world_size):
    strategy = MultiWorkerMirroredStrategy()
    mine = tf.fill([2, 1 + rank()], rank())
    expected = np.hstack([np.full([2, 1 + other], other) for other in range(world_size)])
    np.testing.assert_array_equal(strategy.gather(mine, axis=1), expected)
    gathered = tf.function(lambda: strategy.gather(tf.transpose(mine), axis=0))()
    np.testing.assert_array_equal(gathered, expected.T)
    with pytest.raises(ValueError, match="axis=0 for 0 dimensions. Give a scalar an axis"):
        strategy.gather(tf.constant(1.0), axis=0)


def without_scope_of_optimizer():
    optimizer = keras.optimizers.SGD(0.1)
    return in_scope(OneBit(), optimizer=lambda: optimizer)


def without_scope_of_model():
    model = make_model()
    return in_scope(OneBit(), make=lambda: model)


def with_xla():
    return in_scope(OneBit(), jit_compile=True)


ERRORS = {
    without_scope_of_optimizer: "was made outside of the scope of the MultiWorkerMirrored",
    without_scope_of_model: "Make model and optimizer in the same `with strategy.scope",
    with_xla: "Compile it with jit_compile=False",
}


@workers
@pytest.mark.parametrize("make", ERRORS, ids=lambda make: make.__name__)
def test_what_cannot_work_is_refused(make, world_size):
    model = make()
    with pytest.raises(ValueError, match=ERRORS[make]):
        fit(model, world_size)


@workers
def test_optimizer_from_outside_is_refused_in_a_custom_loop(world_size):
    strategy = MultiWorkerMirroredStrategy(OneBit())
    with strategy.scope():
        variable = keras.Variable(np.ones([4], np.float32))
    optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply([tf.ones([4])], [variable]))

    with pytest.raises(ValueError, match="was made outside of the scope"):
        step()


def unnamed_model():
    return keras.Sequential([keras.Input((INPUTS,)), keras.layers.Dense(10)])


@pytest.mark.nightly
@workers
def test_a_worker_may_have_made_another_model_before(world_size):
    if rank() == 1:
        keras.layers.Dense(3)  # so that its next layers have other names
    model = in_scope(OneBit(), unnamed_model, adam())
    assert len(set(gather(model.layers[0].name))) == 2
    fit(model, world_size)
    assert_same_bits_on_all_ranks(model.get_weights())


@workers
def test_workers_with_different_exchanges_are_told(world_size):
    model = in_scope(OneBit())
    model.optimizer.gradient_exchange.template = OneBit(min_size=1024 + rank())
    with pytest.raises(ValueError, match="rank 0 has min_size of the exchange = 1024, rank 1"):
        fit(model, world_size)


@workers
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"exchange": "one_bit"}, "exchange must be a tf_onebit.Exchange.*'one_bit'"),
        ({"uneven_data": "wait"}, "uneven_data must be.*'wait'"),
    ],
)
def test_arguments_are_checked(arguments, message, world_size):
    with pytest.raises(ValueError, match=message):
        MultiWorkerMirroredStrategy(**arguments)
