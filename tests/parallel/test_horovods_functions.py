"""Functions of Horovod's, other than optimizers, tapes and callbacks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.nightly import nightly
from tests.support.ranks import assert_same_bits_on_all_ranks, digest, gather, pair, rank
from tests.support.training import (
    compiled,
    fit_part,
    fit_whole,
    make_model,
    reference,
    with_layer,
)
from tf_onebit import OneBit


@pytest.mark.workers(2)
def test_variables_of_keras_and_tensorflow_are_broadcast(world_size):
    layer = keras.layers.Dense(3)
    layer.build([2])
    seed = keras.random.SeedGenerator(rank())  # Horovod itself does not carry its type
    variables = [*layer.weights, seed.state, tf.Variable([rank()], dtype=tf.bfloat16)]
    for variable in variables:
        variable.assign(tf.ones_like(variable) * tf.cast(rank() + 1, variable.dtype))
    hvd.broadcast_variables(variables, root_rank=1)
    for variable in variables:
        np.testing.assert_array_equal(np.array(variable, np.float32), np.full(variable.shape, 2.0))

    @tf.function
    def broadcast():
        hvd.broadcast_variables(layer.weights, root_rank=0)
        hvd.broadcast_variables(iter([seed.state]), root_rank=0, inplace=True)

    for variable in variables:
        variable.assign(tf.ones_like(variable) * tf.cast(rank() + 1, variable.dtype))
    for _ in range(2):
        broadcast()
    assert float(layer.kernel[0, 0]) == 1.0 and int(seed.state[0]) == 1


@pytest.mark.workers(2)
def test_variables_that_differ_are_an_error_on_all_workers(world_size):
    with pytest.raises(ValueError, match=r"variable 0 = \(1,\) float32 .*, rank 1 has .* \(2,\)"):
        hvd.broadcast_variables([tf.Variable(tf.zeros([rank() + 1]))], root_rank=0)
    with pytest.raises(ValueError, match="Received: 3 of type int"):
        hvd.broadcast_variables([3], root_rank=0)
    with pytest.raises(ValueError, match="one of the ranks .* Received: root_rank=2"):
        hvd.broadcast_variables([tf.Variable(1.0)], root_rank=2)


@pytest.mark.workers(3)
def test_variables_are_broadcast_in_a_process_set(world_size):
    variable = tf.Variable(float(rank()))
    if pair().included():
        hvd.broadcast_variables([variable], root_rank=2, process_set=pair())
        assert hvd.allgather_object(rank(), process_set=pair()) == [0, 2]
    else:
        with pytest.raises(ValueError, match="must contain this worker"):
            hvd.broadcast_variables([variable], root_rank=2, process_set=pair())
    assert gather(float(variable)) == [2.0, 1.0, 2.0]


@pytest.mark.workers(2)
def test_objects_may_be_of_other_types_on_other_workers(world_size):
    settings = {"units": [1, 2]} if rank() == 1 else None
    assert hvd.broadcast_object(settings, root_rank=1) == {"units": [1, 2]}
    assert hvd.allgather_object([0, "a"][rank()]) == [0, "a"]


@pytest.mark.workers(2)
def test_models_are_loaded_with_distributed_optimizers(world_size, tmp_path):
    model = compiled(make_model(), keras.optimizers.Adam(0.01))
    fit_part(model, 2, world_size)
    path = str(tmp_path / f"{rank()}.keras")
    model.save(path)
    loaded = hvd.load_model(path, compression=hvd.Compression.onebit)
    assert isinstance(loaded.optimizer.gradient_exchange.template, OneBit)
    assert digest(loaded.optimizer.variables) == digest(model.optimizer.variables)
    hvd.broadcast_variables([*loaded.weights, *loaded.optimizer.variables], root_rank=0)
    fit_part(loaded, 2, world_size)
    assert_same_bits_on_all_ranks(loaded.get_weights())


class Halving(keras.optimizers.SGD):
    """An optimizer of a program's own."""


@pytest.mark.workers(2)
def test_models_are_loaded_with_optimizers_and_losses_of_their_own(world_size, tmp_path):
    def loss(y, predictions):
        return keras.ops.mean(predictions)

    model = make_model()
    model.compile(Halving(0.1), loss)
    path = str(tmp_path / f"{rank()}.keras")
    model.save(path)
    loaded = hvd.load_model(path, custom_optimizers=[Halving], custom_objects={"loss": loss})
    assert isinstance(loaded.optimizer, Halving) and loaded.loss is loss
    assert hasattr(loaded.optimizer, "gradient_exchange")
    with pytest.raises(ValueError, match="Received: legacy_opts=True. Leave it out"):
        hvd.load_model(path, legacy_opts=True)


@pytest.mark.workers(2)
@pytest.mark.parametrize("eagerly", [False, *nightly(True)], ids=["graph", "eager"])
def test_batches_are_normalized_over_all_workers(eagerly, world_size):
    make = with_layer(hvd.SyncBatchNormalization)
    if rank() == 1:
        hvd.SyncBatchNormalization()  # so that its next one has another name
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model = compiled(make(), optimizer, run_eagerly=eagerly)
    fit_part(model, 3, world_size)
    assert_same_bits_on_all_ranks(model.get_weights())

    alone = reference(with_layer(keras.layers.BatchNormalization)(), keras.optimizers.SGD(0.1))
    fit_whole(alone, 3, world_size)
    for array, other in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(array, other, atol=1e-5)


@pytest.mark.workers(2)
def test_statistics_keep_their_digits_where_a_mean_is_large(world_size):
    values = 1000 + 0.2 * (np.arange(8) % 2) + 0.01 * np.arange(8)
    values = values.astype(np.float32)[:, None]
    output = hvd.SyncBatchNormalization(epsilon=1e-6)(values[rank() :: 2], training=True)
    expected = (values - values.mean()) / values.std()
    np.testing.assert_allclose(output, expected[rank() :: 2], atol=0.01)


@pytest.mark.workers(2)
def test_layers_that_synchronize_are_saved_and_have_no_fused_kernel(world_size):
    layer = hvd.SyncBatchNormalization(momentum=0.5, name="normalization")
    again = keras.layers.deserialize(keras.layers.serialize(layer))
    assert isinstance(again, hvd.SyncBatchNormalization) and again.momentum == 0.5
    with pytest.raises(ValueError, match="Received: fused=True. Leave it out"):
        hvd.SyncBatchNormalization(fused=True)


@pytest.mark.workers(2)
def test_collectives_take_numbers_arrays_and_variables(world_size):
    assert float(hvd.allreduce(rank() + 1.0)) == 1.5
    assert float(hvd.allreduce(value=float(rank()), name="by_name", op=hvd.Max)) == 1.0
    variable = keras.Variable([rank() + 1.0])
    np.testing.assert_array_equal(hvd.allgather(variable), [1.0, 2.0])
    np.testing.assert_array_equal(hvd.broadcast(np.array([rank()]), 1), [1])
    np.testing.assert_array_equal(hvd.reducescatter([1.0, 2.0], op=hvd.Sum), [2.0 * (rank() + 1)])
    np.testing.assert_array_equal(hvd.alltoall([rank(), rank()]), [0, 1])
    sums = hvd.grouped_allreduce([tf.ones([2]), tf.ones([3])], op=hvd.Sum)
    np.testing.assert_array_equal(sums[1], [2.0] * 3)
    for collective in (hvd.allreduce, hvd.reducescatter):
        with pytest.raises(ValueError, match="Received: 'loss'. Pass it as name= or"):
            collective([1.0], "loss")


@pytest.mark.workers(2)
def test_workers_that_exchange_cannot_join(world_size):
    variable = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = variable * 2.0
    hvd.DistributedGradientTape(tape).gradient(loss, variable)
    with pytest.raises(RuntimeError, match="Leave join out, and give every worker the same"):
        hvd.join()
