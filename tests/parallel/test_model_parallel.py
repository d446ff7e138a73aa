"""Model parallelism: groups of processes hold one model together."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.reference import adagrad as reference
from tests.support.groups import clipped_adam, fit_group, momentum, split, trained
from tests.support.model_parallel import (
    BATCH_SIZE,
    MODELS,
    compiled,
    data_of,
    difference,
    mlp,
    plain_model,
)
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import assert_same_bits_on_all_ranks, digest, from_first, gather, rank
from tf_onebit._shares import is_part, share_of
from tf_onebit.callbacks import BlockMomentum
from tf_onebit.transforms import NormalizedAdaGrad


@pytest.mark.workers(
    jobs=[
        *(("horovod", 4, "transformer", 2), ("horovod", 4, "mlp", "node")),
        *nightly_rows(("horovod", 2, "transformer", 2), ("horovod", 2, "mlp", "node")),
        *nightly_rows(*(("horovod", n, name, 2) for n in (2, 4) for name in ("mlp", "cnn"))),
        *nightly_rows(*(("horovod", 4, name, 4) for name in ("cnn", "transformer"))),
        *nightly_rows(*(("horovod", 8, name, 4) for name in MODELS)),
    ],
    also=["name", "members"],
)
def test_weights_are_those_of_the_unsplit_model(name, members, world_size):
    weights = trained(name, members, momentum).get_weights()
    expected = from_first(lambda: plain_model(name, momentum).get_weights())
    assert difference(weights, expected) < 1e-6


COMPRESSED = {
    "bits": tf_onebit.OneBit(min_size=0),
    "tau": tf_onebit.Threshold(target_density=0.02),
}


@pytest.mark.workers(
    jobs=[
        ("horovod", 4, "bits", 2),
        *nightly_rows(("horovod", 4, "tau", 2), ("horovod", 8, "bits", 4)),
    ],
    also=["exchange", "members"],
)
def test_peers_hold_the_same_bits(exchange, members, world_size):
    model = trained("transformer", members, clipped_adam, COMPRESSED[exchange], epochs=1)
    of_ranks = gather(digest(v for v in model.trainable_weights if is_part(v)))
    assert of_ranks[:members] == of_ranks[members:] and len(set(of_ranks)) == members
    assert_same_bits_on_all_ranks([v for v in model.trainable_weights if not is_part(v)])


SETTINGS = {
    "global_clipnorm": (clipped_adam, {}),
    "clipnorm": (lambda: keras.optimizers.SGD(0.05, clipnorm=0.1), {"steps_per_execution": 4}),
    "accumulation": (
        lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2, use_ema=True),
        {"run_eagerly": True},
    ),
}


@pytest.mark.workers(4)
@pytest.mark.nightly
@pytest.mark.parametrize("name", SETTINGS)
def test_optimizers_update_parts_as_they_update_whole_weights(name, world_size):
    optimizer, settings = SETTINGS[name]
    weights = trained("mlp", 2, optimizer, settings=settings, epochs=1).get_weights()
    expected = from_first(lambda: plain_model("mlp", optimizer, epochs=1).get_weights())
    assert difference(weights, expected) < 1e-6


@pytest.mark.nightly
@pytest.mark.workers(4)
@pytest.mark.parametrize("where", ["transforms", "local_transforms"])
def test_normalized_adagrad_divides_by_means_over_parts(where, world_size):
    """A part is a matrix of its own: see docs/adagrad.md."""
    time_constant, epsilon = 200, 0.1
    adagrad = NormalizedAdaGrad(time_constant, BATCH_SIZE, epsilon)
    exchange = tf_onebit.OneBit(min_size=2**20, **{where: [adagrad]})  # all in full precision
    model = trained("mlp", 2, lambda: keras.optimizers.SGD(0.05), exchange, epochs=1)
    axes = [share_of(variable).axis for variable in model.trainable_variables]

    def by_definition():
        plain, loss_of = mlp(), keras.losses.SparseCategoricalCrossentropy(True)
        batches = [data_of("mlp", *of) for of in ([(0, 1)], [(0, 2), (1, 2)])[where[0] == "l"]]
        normalized = [reference.NormalizedAdaGrad(time_constant, epsilon) for _ in batches]
        for step in range(len(batches[0][0]) // batches[0][2]):
            changes = []
            for (x, y, size), one in zip(batches, normalized, strict=True):
                here = slice(step * size, (step + 1) * size)
                with tf.GradientTape() as tape:
                    loss = loss_of(y[here], plain(x[here])) + tf.add_n(plain.losses)
                gradients = tape.gradient(loss, plain.trainable_variables)
                parts = [
                    [gradient.numpy()] if axis is None else np.split(gradient, 2, axis)
                    for gradient, axis in zip(gradients, axes, strict=True)
                ]
                matrices = iter(one.step([part for of in parts for part in of], BATCH_SIZE))
                changes.append(
                    [
                        np.concatenate([next(matrices) for _ in of], axis or 0)
                        for of, axis in zip(parts, axes, strict=True)
                    ]
                )
            for variable, *change in zip(plain.trainable_variables, *changes, strict=True):
                variable.assign_sub((0.05 * np.mean(change, axis=0)).astype("float32"))
        return plain.get_weights()

    assert difference(model.get_weights(), from_first(by_definition)) < 1e-6


def adam():
    return tf_onebit.optimizers.Adam(0.01)


@pytest.mark.nightly
@pytest.mark.workers(4)
@pytest.mark.parametrize("in_blocks", [False, True])
def test_metrics_are_averaged_over_groups(in_blocks, world_size):
    own = []
    callbacks = [
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: own.append(logs["loss"])),
        hvd.MetricAverageCallback(),
    ]
    exchange = None
    if in_blocks:
        exchange = tf_onebit.Local()
        callbacks.insert(0, BlockMomentum(8))
    model = compiled(split("mlp"), hvd.DistributedOptimizer(adam(), exchange))
    losses = fit_group(model, "mlp", epochs=2, callbacks=callbacks).history["loss"]
    of_ranks = np.array(gather(own))
    np.testing.assert_array_equal(of_ranks[::2], of_ranks[1::2])  # those of members
    assert (of_ranks[0] != of_ranks[2]).all()
    np.testing.assert_allclose(losses, of_ranks.mean(axis=0), rtol=1e-6)


@pytest.mark.workers(2, *nightly(4))
def test_norms_of_local_updates_are_those_of_whole_weights(world_size):
    """A single group exchanges nothing, so its updates are those of the unsplit model."""
    exchange = tf_onebit.FullPrecision()
    exchange.moments = "local"
    weights = trained("mlp", world_size, clipped_adam, exchange, epochs=1).get_weights()
    expected = from_first(lambda: plain_model("mlp", clipped_adam, epochs=1).get_weights())
    assert difference(weights[:4], expected[:4]) < 1e-6


@pytest.mark.workers(2)
def test_evaluation_and_prediction_are_those_of_the_whole_model(world_size):
    model = compiled(split("cnn"), hvd.DistributedOptimizer(momentum()))
    x, y, size = data_of("cnn")
    plain = compiled(MODELS["cnn"](), momentum())
    assert model.evaluate(x, y, size, verbose=0) == pytest.approx(
        plain.evaluate(x, y, size, verbose=0), rel=1e-6
    )
    predicted = plain.predict(x, size, verbose=0)
    assert difference([model.predict(x, size, verbose=0)], [predicted]) < 1e-6


@pytest.mark.workers(4)
def test_a_broadcast_leaves_members_their_parts(world_size):
    model = compiled(split("transformer"), hvd.DistributedOptimizer(clipped_adam()))
    expected = from_first(lambda: MODELS["transformer"]().get_weights())
    model.set_weights([weight + rank() // 2 for weight in expected])  # groups differ
    callback = hvd.BroadcastGlobalVariablesCallback(1)
    callback.set_model(model)
    callback.on_train_begin()
    assert difference(model.get_weights(), expected) == 0


@pytest.mark.workers(4)
def test_members_skip_a_step_together(world_size):
    """The gradient of one member's part overflows."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), on_nonfinite="skip")
    model = compiled(split("mlp"), optimizer)
    before = [np.array(v) for v in model.trainable_weights]
    gradients = [tf.ones(v.shape) for v in model.trainable_variables]
    if rank() == 1:
        gradients[0] *= np.inf
    optimizer.apply(gradients, model.trainable_variables)
    assert difference(model.trainable_weights, before) == 0


@pytest.mark.nightly
@pytest.mark.workers(4)
def test_delayed_messages_of_peers_arrive_in_both(world_size):
    exchange = tf_onebit.WarmStart(tf_onebit.Delayed(tf_onebit.OneBit(min_size=0)), steps=5)
    x, y, _ = data_of("mlp")
    model = trained("mlp", 2, clipped_adam, exchange, epochs=1, validation_data=(x[:16], y[:16]))
    of_ranks = gather(digest(model.trainable_weights))
    assert of_ranks[:2] == of_ranks[2:] and of_ranks[0] != of_ranks[1]


@pytest.mark.workers(4)
def test_a_tape_returns_gradients_as_of_the_whole_model(world_size):
    model, whole = split("mlp"), MODELS["mlp"]()
    number, count = model.division.groups.number, model.division.groups.count
    loss_of = keras.losses.SparseCategoricalCrossentropy(True)

    def updated(model, tape, x, y, size):
        with tape:
            loss = loss_of(y[:size], model(x[:size])) + tf.add_n(model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        keras.optimizers.SGD(1.0).apply(gradients, model.trainable_variables)
        return model.get_weights()

    tape = hvd.DistributedGradientTape(tf.GradientTape())
    weights = updated(model, tape, *data_of("mlp", number, count))
    expected = updated(whole, tf.GradientTape(), *data_of("mlp"))
    assert difference(weights, expected) < 1e-6
