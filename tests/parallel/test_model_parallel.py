"""Model parallelism: groups of processes hold one model together."""

import collections
import functools
import gc
import pathlib
import warnings
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.reference import adagrad as reference
from tests.support.model_parallel import (
    BATCH_SIZE,
    CLASSES,
    MODELS,
    cnn,
    compiled,
    data_of,
    difference,
    fit,
    mlp,
    plain_model,
)
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import (
    assert_same_bits_on_all_ranks,
    digest,
    from_first,
    gather,
    rank,
    request_bytes,
)
from tf_onebit import model_parallel
from tf_onebit._shares import is_part, share_of
from tf_onebit.callbacks import BackupAndRestore, BlockMomentum
from tf_onebit.collectives.requests import tap_requests
from tf_onebit.transforms import NormalizedAdaGrad


@functools.cache
def groups_of(members):
    return model_parallel.Groups(members)


def split(name, members=2):
    model = cnn(hvd.SyncBatchNormalization) if name == "cnn" else MODELS[name]()
    return model_parallel.split(model, groups_of(members), min_size=0)


def fit_group(model, name, **settings):
    """Trains a split model on the data of its group."""
    groups = model.division.groups
    return fit(model, name, groups.number, groups.count, **settings)


def trained(name, members, optimizer, exchange=None, settings=None, **arguments):
    """Returns a split model after training."""
    model = compiled(
        split(name, members), hvd.DistributedOptimizer(optimizer(), exchange), **(settings or {})
    )
    fit_group(model, name, **arguments)
    return model


def momentum():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def adam():
    return tf_onebit.optimizers.Adam(0.01)


def clipped_adam():
    return keras.optimizers.Adam(0.01, global_clipnorm=0.5, weight_decay=0.01)


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


@pytest.mark.nightly
@pytest.mark.workers(4)
def test_a_member_holds_its_part_of_weights_gradients_state_and_residuals(world_size):
    held = []
    for members in (1, 2):
        model = trained("mlp", members, clipped_adam, tf_onebit.OneBit(min_size=0), epochs=1)
        residuals = [v for e in model.optimizer.gradient_exchange.built for v in e.variables]
        kinds = model.weights, model.trainable_weights, model.optimizer.variables, residuals
        held.append([sum(np.size(v) for v in variables) for variables in kinds])
    whole, half = held
    assert all(part <= 0.6 * all_of_it for part, all_of_it in zip(half, whole, strict=True)), held


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


def distance(arrays, others):
    """Returns the root of the sum of squares of the differences of two lists of arrays."""
    pairs = zip(arrays, others, strict=True)
    return np.sqrt(sum(np.square(one - other).sum() for one, other in pairs))


def scaled_momentum(initial_scale=2.0**10):
    return keras.optimizers.LossScaleOptimizer(momentum(), initial_scale=initial_scale)


@pytest.mark.nightly
@pytest.mark.workers(2, 4)
@pytest.mark.parametrize(
    "policy, optimizer", [("mixed_bfloat16", momentum), ("mixed_float16", scaled_momentum)]
)
@pytest.mark.parametrize("name", MODELS)
def test_mixed_precision_is_that_of_the_unsplit_model(name, policy, optimizer, world_size):
    """They differ by rounding: about as much as unsplit models of both types, and of that one."""

    def references():
        mixed = plain_model(name, optimizer, epochs=1).get_weights()
        keras.config.set_dtype_policy("float32")
        before = MODELS[name]().get_weights()
        return mixed, plain_model(name, momentum, epochs=1).get_weights(), before

    keras.config.set_dtype_policy(policy)
    try:
        model = compiled(split(name), hvd.DistributedOptimizer(optimizer()))
        fit_group(model, name, epochs=1)
        expected, in_float32, before = from_first(references)
    finally:
        keras.config.set_dtype_policy("float32")
    weights = model.get_weights()
    assert distance(weights, expected) < 2 * distance(in_float32, expected)
    assert distance(weights, expected) < 0.1 * distance(before, expected)


@pytest.mark.nightly
@pytest.mark.workers(4)
def test_all_members_of_all_groups_skip_a_step_if_the_scaled_loss_overflows(world_size):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = compiled(split("mlp"), hvd.DistributedOptimizer(scaled_momentum(2.0**20)))
    finally:
        keras.config.set_dtype_policy("float32")
    fit_group(model, "mlp", epochs=1)
    optimizer = model.optimizer
    told = gather([float(optimizer.dynamic_scale), int(optimizer.inner_optimizer.iterations)])
    assert told == told[:1] * world_size
    scale, steps = told[0]
    assert 10 < steps < 20 and scale == 2.0**steps  # each of 20 steps halves it, or updates weights
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert_same_bits_on_all_ranks([v for v in model.trainable_weights if not is_part(v)])


@pytest.mark.workers(2, *nightly(4))
def test_norms_of_local_updates_are_those_of_whole_weights(world_size):
    """A single group exchanges nothing, so its updates are those of the unsplit model."""
    exchange = tf_onebit.FullPrecision()
    exchange.moments = "local"
    weights = trained("mlp", world_size, clipped_adam, exchange, epochs=1).get_weights()
    expected = from_first(lambda: plain_model("mlp", clipped_adam, epochs=1).get_weights())
    assert difference(weights[:4], expected[:4]) < 1e-6


@pytest.mark.workers(2)
def test_a_file_is_that_of_a_plain_model_and_training_goes_on_from_it(world_size, tmp_path):
    path = f"{gather(str(tmp_path))[0]}/model.keras"
    model = trained("mlp", 2, clipped_adam, epochs=1)
    model.save(path)
    # Only the first process exports, and computes penalties for that.
    model.export(path.removesuffix(".keras"), verbose=False)

    def plain():
        loaded = keras.models.load_model(path)
        assert loaded.layers[0].__class__ is keras.layers.Dense
        exported = tf.saved_model.load(path.removesuffix(".keras"))
        x, _, _ = data_of("mlp")
        assert difference([exported.serve(x[:8])], [loaded(x[:8])]) < 1e-6
        before = loaded.get_weights(), [np.array(v) for v in loaded.optimizer.variables]
        fit(loaded, "mlp", epochs=1)
        return *before, loaded.get_weights()

    saved, slots, expected = from_first(plain)
    np.testing.assert_array_equal(difference(model.get_weights(), saved), 0)
    loaded = hvd.load_model(path)
    loaded = model_parallel.split(loaded, groups_of(2), min_size=0)
    fit_group(loaded, "mlp", epochs=1)
    assert difference(loaded.get_weights(), expected) < 1e-6
    model.load_weights(path)
    assert difference(model.get_weights(), saved) == 0
    merged = model_parallel.merge(model)
    assert merged is model and type(model) is keras.Sequential
    assert difference(merged.get_weights(), saved) == 0
    assert difference([v for v in merged.optimizer.variables], slots) == 0
    x, _, _ = data_of("mlp")
    assert difference([merged.predict(x[:8], verbose=0)], [merged(x[:8])]) < 1e-6


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


@pytest.mark.workers(2, *nightly(4))
def test_a_resumed_run_has_the_same_bits(world_size, tmp_path):
    directory = pathlib.Path(gather(str(tmp_path))[0])

    def run(name, epochs):
        optimizer = hvd.DistributedOptimizer(clipped_adam(), tf_onebit.OneBit(min_size=0))
        model = compiled(MODELS["mlp"](), optimizer)
        optimizer.build(model.trainable_variables)  # as in a model that is loaded
        model_parallel.split(model, groups_of(2), min_size=0)
        backup = BackupAndRestore(directory / name, delete_checkpoint=False)
        fit_group(model, "mlp", epochs=epochs, callbacks=[backup])
        return [np.array(v) for v in (*model.weights, *model.optimizer.variables)]

    run("interrupted", 1)
    assert difference(run("interrupted", 2), run("whole", 2)) == 0


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


@pytest.mark.workers(2, *nightly(4))
def test_members_hold_no_more_than_their_parts_and_copies(world_size):
    model = MODELS["transformer"]()
    kernel = weakref.ref(model.hidden.kernel.value)
    model_parallel.split(model, groups_of(world_size), min_size=0)
    compiled(model, hvd.DistributedOptimizer(clipped_adam()))
    fit_group(model, "transformer", epochs=1)
    gc.collect()
    assert kernel() is None
    whole = sum(np.size(w) for w in MODELS["transformer"]().get_weights())
    copied = sum(np.size(v) for v in model.weights if not is_part(v))
    sizes = [np.size(v) for v in model.weights]
    assert sum(sizes) == (whole - copied) / world_size + copied
    slots = [np.size(v) for v in model.optimizer.variables if np.size(v) > 1]
    assert sum(slots) == 2 * sum(sizes)


@pytest.mark.workers(2)
@pytest.mark.parametrize("policy", ["float32", *nightly("mixed_bfloat16")])
def test_members_exchange_each_activation_once_forward_and_once_backward(policy, world_size):
    """Members send each value to each other, in the type of the computation, and get it back."""
    keras.config.set_dtype_policy(policy)
    try:
        model = MODELS["transformer"]()
    finally:
        keras.config.set_dtype_policy("float32")
    groups = model_parallel.Groups(2)
    model = model_parallel.split(model, groups, min_size=0)
    sent, run = collections.Counter(), groups.within.run

    def recording(generators):
        def note(request):
            sent[request.name.rpartition("/")[2]] += request_bytes(request, world_size)

        return run([tap_requests(generator, note) for generator in generators])

    groups.within.run = recording
    compiled(model, hvd.DistributedOptimizer(momentum()), run_eagerly=True)
    x, y, _ = data_of("transformer")
    model.train_on_batch(x[:4], y[:4])
    tokens, size = 4 * 6, 2 if policy == "mixed_bfloat16" else 4  # bytes
    # Positions have no batch. Hidden values and last ones follow.
    values = 6 * 8 + tokens * (32 + 8)
    logits = tokens * CLASSES * 4  # Keras computes them in the type of the embeddings
    assert sent["gather"] == sent["scatter"] == (values * size + logits) / 2
    # The rows of tied embeddings and the output of attention are added up: 2 (M - 1) / M.
    assert sent["sum"] == sent["sum_of_gradients"] == 2 * tokens * 8 * size
    copies = sum(np.size(v) for v in model.trainable_weights if not is_part(v))
    assert sent["copies"] == copies * 4
    others = {"gather", "scatter", "sum", "sum_of_gradients", "copies"}
    assert sum(count for name, count in sent.items() if name not in others) < 100


class Doubled(keras.layers.Dense):
    """A class that no plan knows."""


def various():
    layers = keras.layers
    inputs = keras.Input((6, 8))
    layer = layers.Dense(8, name="twice")
    x = layer(layer(inputs))
    x = layers.Dense(7, name="odd")(x)
    x = Doubled(8, name="unknown")(x)
    x = layers.TimeDistributed(layers.Dense(8, name="inner"))(x)
    x = layers.Dense(8, name="unit_norm", kernel_constraint="unit_norm")(x)
    x = layers.Dense(8, name="rows", kernel_constraint=keras.constraints.MaxNorm(1, axis=1))(x)
    x = layers.Dense(8, name="orthogonal", kernel_regularizer="orthogonal_regularizer")(x)
    x = layers.Conv1D(8, 3, padding="causal", name="causal")(x)
    x = layers.Conv1D(8, 3, groups=2, name="grouped")(x)
    x = layers.Dense(8, name="lora", lora_rank=1)(x)
    x = layers.EinsumDense("abc,cd->abd", (None, 8), bias_axes="d", name="einsum")(x)
    attention = layers.MultiHeadAttention(2, 4, use_gate=True)
    return keras.Model(inputs, attention(x, x, return_attention_scores=True))


@pytest.mark.workers(2)
def test_layers_that_cannot_be_split_are_left_whole_for_a_reason(world_size):
    keras.utils.set_random_seed(0)
    plain, model = various(), various()
    model.set_weights(plain.get_weights())
    model_parallel.split(model, groups_of(2), min_size=0)
    lines = dict(line.split(": ", 1) for line in model_parallel.describe(model).splitlines())
    for name, reason in {
        "odd": "2 members do not divide its 7 units",
        "unknown": "Doubled is not among the classes",
        "inner": "it belongs to a TimeDistributed",
        "rows": "its MaxNorm concerns several parts",
        "orthogonal": "its OrthogonalRegularizer may be no sum over weights",
        "grouped": "it convolves 2 groups of channels separately",
        "lora": "it has LoRA weights",
    }.items():
        assert reason in lines.pop(name)
    of_attention = {"query", "key", "value", "gate", "attention_output"}
    assert set(lines) == {"twice", "unit_norm", "causal", "einsum", *of_attention}
    assert not any(":" in line for line in lines.values())  # no reason
    x = np.random.default_rng(0).normal(size=(4, 6, 8)).astype("float32")
    assert difference(model(x), plain(x)) < 1e-6


@pytest.mark.workers(2)
def test_a_warning_says_that_no_layer_could_be_split(world_size):
    def warnings_of(*sizes, members=2, **settings):
        layers = [keras.layers.Dense(size, name=f"of_{size}") for size in sizes]
        model = keras.Sequential([keras.Input((32,)), *layers])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model_parallel.split(model, groups_of(members), **settings)
        return [str(one.message) for one in caught]

    told = warnings_of(7, 5, min_size=0)
    assert len(told) == (rank() == 0)  # once per job
    for text in told:
        assert "Each of the 2 members of a group holds all of it, and all do the same work" in text
        assert "of_7: 2 members do not divide its 7 units; of_5: 2 members do not" in text
        assert "Choose numbers of units that the members divide, or a smaller min_size" in text
    told = warnings_of(8, 9, 10, 11)
    assert all("fewer than min_size=65536; and 1 more." in text for text in told)
    assert not warnings_of(7, 8, min_size=0)
    assert not warnings_of(7, 5, members=1, min_size=0)


@pytest.mark.workers(2)
def test_errors_say_what_to_do(world_size):
    groups = groups_of(2)
    for members in (0, 2.0, "host"):
        with pytest.raises(ValueError, match='members must be "node" or a positive whole number'):
            model_parallel.Groups(members)
    with pytest.raises(ValueError, match="Received: 2 workers, in groups of 2, 3"):
        model_parallel.Groups(3)
    with pytest.raises(ValueError, match="Call it on a batch first"):
        model_parallel.split(keras.Sequential([keras.layers.Dense(4)]), groups)
    with pytest.raises(ValueError, match=r"Pass for example Groups\(2\)"):
        model_parallel.split(MODELS["mlp"](), 2)
    with pytest.raises(ValueError, match="Use 0 to split every layer"):
        model_parallel.split(MODELS["mlp"](), groups, min_size=-1)
    with pytest.raises(ValueError, match="must be one that tf_onebit.model_parallel.split has"):
        model_parallel.merge(MODELS["mlp"]())
    with pytest.raises(ValueError, match=r"rank 0 has min_size = 0, rank 1 has min_size = 1"):
        model_parallel.split(MODELS["mlp"](), groups, min_size=rank())
    model = split("mlp")
    with pytest.raises(ValueError, match="is split already"):
        model_parallel.split(model, groups)
    x, y, size = data_of("mlp")
    for optimizer, message in {
        keras.optimizers.SGD(0.1): "Compile the model with .*DistributedOptimizer",
        hvd.DistributedOptimizer(keras.optimizers.Lamb()): "depend on the whole weight",
        hvd.DistributedOptimizer(keras.optimizers.SGD(), "auto"): "decides by times that differ",
        hvd.AsynchronousOptimizer(keras.optimizers.SGD()): "Compile the model with",
    }.items():
        with pytest.raises(ValueError, match=message):
            compiled(model, optimizer).train_on_batch(x[:size], y[:size])
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(), tf_onebit.Local()))
    for blocks, message in {
        BlockMomentum(groups="node"): "Each group of a split model is one worker .*Leave groups",
        BlockMomentum(exchange="auto"): "Received: BlockMomentum with exchange=",
        BlockMomentum(): "rank 0 has number of batches in an epoch = 4, rank 1 has .* = 5",
    }.items():
        samples = size * (4 + rank())
        with pytest.raises(ValueError, match=message):
            model.fit(x[:samples], y[:samples], size, verbose=0, callbacks=[blocks])


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


@pytest.mark.nightly
@pytest.mark.workers(4)
def test_a_split_model_trains_within_another(world_size, tmp_path):
    def model_around(inner, optimizer):
        keras.utils.set_random_seed(1)
        layers = [keras.Input((32,)), inner, keras.layers.Dense(CLASSES)]
        return compiled(keras.Sequential(layers), optimizer)

    inner = split("mlp")
    groups = inner.division.groups
    outer = model_around(inner, hvd.DistributedOptimizer(momentum()))
    fit(outer, "mlp", groups.number, groups.count, epochs=1)
    expected = model_around(MODELS["mlp"](), momentum())
    fit(expected, "mlp", epochs=1)
    assert difference(inner.get_weights(), expected.layers[0].get_weights()) < 1e-6
    assert difference(outer.layers[1].get_weights(), expected.layers[1].get_weights()) < 1e-6
    with pytest.raises(ValueError, match="is saved by that model"):
        outer.save_weights(tmp_path / "outer.weights.h5")
    clone = keras.models.clone_model(inner)
    assert [w.shape for w in clone.weights] == [w.shape for w in MODELS["mlp"]().weights]


@pytest.mark.workers(2)
def test_members_drop_the_same_units(world_size):
    def model():
        layers = [keras.Input((32,)), keras.layers.Dropout(0.5), keras.layers.Dense(CLASSES)]
        return keras.Sequential(layers)

    keras.utils.set_random_seed(rank())
    drops = model_parallel.split(model(), groups_of(2), min_size=0)
    compiled(drops, hvd.DistributedOptimizer(momentum()))
    fit_group(drops, "mlp", epochs=1)
    keras.utils.set_random_seed(0)
    expected = compiled(model(), momentum())
    fit(expected, "mlp", epochs=1)
    assert difference(drops.get_weights(), expected.get_weights()) < 1e-6


@pytest.mark.workers(2)
def test_members_add_up_the_second_of_two_layers_if_they_send_less(world_size):
    """Only while their model is called, each member has its part of the values in between."""

    def model():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((32,))
        hidden = keras.layers.Dense(64, name="hidden")(inputs)
        x = keras.layers.Dense(8, activation="tanh", name="second")(keras.layers.ReLU()(hidden))
        wide = keras.layers.Dense(64)(x)
        dropped = keras.layers.Dropout(0.0)(wide)
        return keras.Model(inputs, keras.layers.Dense(CLASSES)(dropped))

    whole, pair = model(), model()
    groups = model_parallel.Groups(2)
    names, run = [], groups.within.run

    def recording(generators):
        return run([tap_requests(one, lambda r: names.append(r.name)) for one in generators])

    model_parallel.split(pair, groups, min_size=0)
    groups.within.run = recording
    x, y, size = data_of("mlp")
    np.testing.assert_allclose(pair(x), whole(x), atol=1e-6)
    assert [name.rpartition("/")[2] for name in names] == ["sum", "gather", "gather"]
    compiled(pair, hvd.DistributedOptimizer(momentum()))
    compiled(whole, momentum())
    for one in (pair, whole):
        fit(one, "mlp", epochs=1)
    assert difference(pair.get_weights(), whole.get_weights()) < 1e-6
    # Other models get whole outputs of the first, and give whole inputs to the second.
    for part in (lambda m: m.get_layer("hidden").output, lambda m: m.get_layer("second").output):
        ends = [keras.Model(one.inputs, part(one))(x) for one in (pair, whole)]
        np.testing.assert_allclose(*ends, atol=1e-6)
    inputs, values = keras.Input((64,)), np.repeat(x[:, :1], 64, axis=1)
    starts = [keras.Model(inputs, m.get_layer("second")(inputs)) for m in (pair, whole)]
    np.testing.assert_allclose(*(start(values) for start in starts), atol=1e-6)


class Tied(keras.Model):
    """A model that reads the weights of an embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(12, 8)

    def call(self, tokens):
        x = self.embedding(tokens)
        return keras.ops.matmul(x, keras.ops.transpose(self.embedding.embeddings))


@pytest.mark.workers(2)
def test_code_that_reads_a_weight_in_a_call_gets_all_of_it(world_size):
    def model():
        keras.utils.set_random_seed(0)
        model = Tied()
        model(tf.zeros([1, 6], tf.int32))
        return model

    tied, whole = model(), compiled(model(), momentum())
    model_parallel.split(tied, groups_of(2), min_size=0)
    assert tied.embedding.embeddings.shape == (12, 4)
    fit_group(compiled(tied, hvd.DistributedOptimizer(momentum())), "transformer", epochs=1)
    fit(whole, "transformer", epochs=1)
    assert difference(tied.get_weights(), whole.get_weights()) < 1e-6
