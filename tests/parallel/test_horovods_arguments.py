"""Horovod's arguments of `DistributedOptimizer` and `DistributedGradientTape`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import assert_same_bits_on_all_ranks, digest, gather, pair, rank
from tests.support.training import (
    INPUTS,
    compiled,
    embedding_model,
    fit_part,
    make_model,
    reference,
)
from tf_onebit import Delayed, FullPrecision, OneBit, WarmStart


def trained(optimizer, world_size, make=make_model, steps=4):
    model = compiled(make(), optimizer)
    fit_part(model, steps, world_size)
    return model


@pytest.mark.workers(2)
@pytest.mark.parametrize("averaged", [False, *nightly(True)])
def test_passes_are_added_up_before_an_update(averaged, world_size):
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1),
        backward_passes_per_step=2,
        average_aggregated_gradients=averaged,
    )
    rate = 0.1 if averaged else 0.2  # the gradient of a mean over two passes
    reference = keras.optimizers.SGD(rate, gradient_accumulation_steps=2)
    weights = trained(optimizer, world_size).get_weights()
    expected = trained(hvd.DistributedOptimizer(reference), world_size).get_weights()
    for array, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(array, other, atol=1e-6)
    assert_same_bits_on_all_ranks(weights)


@pytest.mark.workers(2)
def test_arguments_without_effect_change_no_bit(world_size):
    plain = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model = make_model()
    others = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1),
        name="others",
        num_groups=2,
        groups=[model.trainable_variables[:2]],
        device_dense="/cpu:0",
        device_sparse="/cpu:0",
        gradient_predivide_factor=2.0,
        average_aggregated_gradients=True,
        process_set=hvd.global_process_set,
        op=hvd.Average,
        use_locking=True,
    )
    assert others.name == "others"
    digests = {
        digest(trained(optimizer, world_size).get_weights()) for optimizer in (plain, others)
    }
    assert len(digests) == 1


@pytest.mark.workers(2)
def test_gradients_are_divided_before_sums_in_float16(world_size):
    variable = tf.Variable([0.0])

    def gradient(factor):
        with tf.GradientTape() as tape:
            loss = variable * 50_000.0
        tape = hvd.DistributedGradientTape(
            tape, compression=hvd.Compression.fp16, gradient_predivide_factor=factor
        )
        return float(tape.gradient(loss, variable)[0])

    with pytest.raises(tf.errors.InvalidArgumentError):
        gradient(1.0)
    assert gradient(2.0) == pytest.approx(50_000.0, rel=1e-3)


@pytest.mark.workers(2)
def test_sparse_gradients_become_dense(world_size):
    # Adam moves rows without a gradient if they are passed to it.
    moved = {}
    for as_dense in (False, True):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), sparse_as_dense=as_dense)
        model = embedding_model()
        (exchanged,) = (trained(optimizer, world_size, lambda model=model: model),)
        specs = exchanged.optimizer.gradient_exchange.built[0].specs
        moved[as_dense] = [spec.sparse for spec in specs]
    assert any(moved[False]) and not any(moved[True])
    table = tf.Variable(tf.zeros([4, 2]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [rank()]))
    gradient = hvd.DistributedGradientTape(tape, sparse_as_dense=True).gradient(loss, table)
    np.testing.assert_array_equal(gradient, [[0.5, 0.5]] * 2 + [[0, 0]] * 2)


@pytest.mark.workers(2)
@pytest.mark.parametrize(
    ("exchange", "scaled"), [(FullPrecision(), True), *nightly_rows((OneBit(), False))]
)
def test_layers_stay_local(exchange, scaled, world_size):
    model = make_model()
    local, *others = model.layers
    before = local.get_weights()
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1),
        exchange=exchange,
        local_layers=local,
        scale_local_gradients=scaled,
    )
    trained(optimizer, world_size, lambda: model, steps=1)
    assert_same_bits_on_all_ranks([w for layer in others for w in layer.get_weights()])
    assert len(set(gather(digest(local.get_weights())))) == world_size

    alone = make_model()
    fit_part(reference(alone, keras.optimizers.SGD(0.1)), 1, world_size)
    share = 1 / world_size if scaled else 1.0
    for now, then, own in zip(
        local.get_weights(), before, alone.layers[0].get_weights(), strict=True
    ):
        np.testing.assert_allclose(now - then, share * (own - then), atol=1e-6)


@pytest.mark.workers(2)
def test_a_variable_stays_local_under_a_loss_scale(world_size):
    model = make_model()
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
    optimizer = hvd.DistributedOptimizer(scaled)
    optimizer.register_local_var(model.layers[0].kernel)
    trained(optimizer, world_size, lambda: model)
    assert len(set(gather(digest([model.layers[0].kernel])))) == world_size
    assert_same_bits_on_all_ranks(model.get_weights()[1:])


@pytest.mark.workers(2)
def test_local_variables_beside_updates_are_those_of_a_plain_optimizer(world_size):
    exchange = WarmStart(OneBit(min_size=0), steps=2)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), exchange)
    plain = keras.optimizers.Adam(0.01)
    local, shared, alone = (keras.Variable(np.zeros((64, 64), np.float32)) for _ in range(3))
    optimizer.register_local_var(local)
    rng = np.random.default_rng(rank())
    for _ in range(5):
        gradient = tf.constant(rng.normal(size=(64, 64)), tf.float32)
        optimizer.apply([gradient, gradient], [local, shared])
        plain.apply([gradient / world_size], [alone])
    np.testing.assert_array_equal(local, alone)
    assert_same_bits_on_all_ranks([shared.numpy()])


@pytest.mark.workers(2)
def test_tape_gives_local_gradients(world_size):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2), keras.layers.Dense(1)])
    x = tf.ones([1, 4]) * (rank() + 1.0)

    @tf.function
    def pairs():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=model.layers[:1])
        return [
            [gradient for _, gradient in part]
            for part in tape.get_local_and_global_gradients(loss, model.trainable_variables)
        ]

    for weight in model.trainable_variables:
        weight.assign(tf.ones_like(weight))
    local, exchanged = pairs()
    assert [len(local), len(exchanged)] == [2, 2]
    np.testing.assert_allclose(local[0], np.full([4, 2], (rank() + 1.0) / world_size))
    np.testing.assert_allclose(exchanged[0], np.full([2, 1], (5 + 9) / 2))


@pytest.mark.workers(3)
def test_a_process_set_trains_without_the_others(world_size):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), OneBit(), process_set=pair())
    model = trained(optimizer, world_size)
    first, alone, last = gather(digest(model.get_weights()))
    assert first == last != alone
    plain = trained(keras.optimizers.SGD(0.1), world_size)
    trains_alone = digest(plain.get_weights()) == digest(model.get_weights())
    assert trains_alone == (not pair().included())

    variable = tf.Variable([1.0])
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = variable * (rank() + 1.0)
        gradient = hvd.DistributedGradientTape(tape, process_set=pair()).gradient(loss, variable)
        assert float(gradient[0]) == 2.0  # the mean of 1 and 3, and the value of rank 1
    # Workers outside have taken no part, and still count alike.
    everybody = trained(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), OneBit()), world_size)
    assert_same_bits_on_all_ranks(everybody.get_weights())


ERRORS = {
    "a name": (lambda o: (o, "Distributed"), {}, "If that is Horovod's second argument"),
    "a device": (lambda o: (o, None, "/cpu:0"), {}, "Horovod's arguments by their names"),
    "Adasum": (lambda o: (o,), {"op": hvd.Adasum}, "op must be .* Received: op=Adasum"),
    "two devices": (lambda o: (o,), {"device_sparse": "/cpu:0"}, "Pass device_dense alone"),
    "no passes": (lambda o: (o,), {"backward_passes_per_step": 0}, "positive number of steps"),
    "no factor": (lambda o: (o,), {"gradient_predivide_factor": 0}, "must be positive"),
    "a sum": (lambda o: (o,), {"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "with op=Sum"),
    "no set": (lambda o: (o,), {"process_set": [0, 1]}, "must be a ProcessSet"),
    "unknown set": (lambda o: (o,), {"process_set": hvd.ProcessSet([0])}, "be registered with"),
}


@pytest.mark.workers(2)
@pytest.mark.parametrize("name", ERRORS)
def test_errors_say_what_to_write(name, world_size):
    arguments, named, message = ERRORS[name]
    optimizer = keras.optimizers.SGD(0.1)
    with pytest.raises(ValueError, match=message):
        hvd.DistributedOptimizer(*arguments(optimizer), **named)
    assert type(optimizer) is keras.optimizers.SGD
    assert optimizer.gradient_accumulation_steps is None
    if "backward_passes_per_step" not in named:
        with pytest.raises(ValueError, match=message):
            hvd.DistributedGradientTape(*arguments(tf.GradientTape()), **named)


@pytest.mark.workers(2)
def test_optimizers_within_a_multi_optimizer_would_train_apart(world_size):
    optimizer = keras.optimizers.MultiOptimizer(lambda variable: keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="would exchange nothing.* each of which"):
        hvd.DistributedOptimizer(optimizer)


@pytest.mark.workers(2)
def test_passes_and_local_variables_have_their_limits(world_size):
    accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
    with pytest.raises(ValueError, match="two ways to say the same thing"):
        hvd.DistributedOptimizer(accumulating, backward_passes_per_step=2)
    built = keras.optimizers.SGD(0.1)
    built.build(make_model().trainable_variables)
    with pytest.raises(ValueError, match="Make a new one with gradient_accumulation_steps=2"):
        hvd.DistributedOptimizer(built, backward_passes_per_step=2)
    delayed = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), Delayed(OneBit()))
    with pytest.raises(ValueError, match="Leave Delayed out"):
        delayed.register_local_var(tf.Variable(1.0))
    clipping = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=0.5))
    with pytest.raises(ValueError, match="global_clipnorm=0.5. Use clipnorm"):
        clipping.register_local_var(tf.Variable(1.0))
    with pytest.raises(ValueError, match="which has no variables yet. Build the layer"):
        hvd.PartialDistributedOptimizer(built, local_layers=[keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="local_layers must be Keras layers"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[INPUTS])
