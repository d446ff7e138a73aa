"""Reductions and assignments of `MultiWorkerMirroredStrategy` agree with `tf.distribute`."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.in_scope import workers
from tests.support.nightly import nightly
from tests.support.ranks import rank
from tf_onebit.distribute import MultiWorkerMirroredStrategy

in_modes = pytest.mark.parametrize("in_mode", [lambda f: f, tf.function], ids=["eager", "graph"])
in_graphs_first = pytest.mark.parametrize(
    "in_mode", [tf.function, *nightly(lambda f: f)], ids=["graph", "eager"]
)


def of_replica():
    return tf.distribute.get_replica_context()


# The value of each of two workers, their sum, and their mean.
REDUCED = {
    "number": (lambda: 5.0, np.float32(10.0), np.float32(5.0)),
    "int64": (lambda: tf.constant(1 + rank(), tf.int64), np.int64(3), np.float64(1.5)),
    "float16": (lambda: tf.constant(1 + rank(), tf.float16), np.float16(3.0), np.float16(1.5)),
}


@workers
@in_graphs_first
@pytest.mark.parametrize("name", REDUCED)
def test_sums_and_means(name, in_mode, world_size):
    strategy = MultiWorkerMirroredStrategy()
    make, *expected = REDUCED[name]

    def both(reduce_op):
        one = tf.identity(make())
        on_replica = strategy.run(lambda: of_replica().all_reduce(reduce_op, one))
        return strategy.reduce(reduce_op, make(), axis=None), on_replica

    for reduce_op, value in zip(("SUM", "MEAN"), expected, strict=True):
        for total in in_mode(both)(reduce_op):
            assert (total.dtype, total.numpy()) == (value.dtype, value)


@workers
@in_modes
def test_a_variable_has_its_mean_and_no_sum(in_mode, world_size):
    strategy = MultiWorkerMirroredStrategy()
    with strategy.scope():
        variable = tf.Variable(2.0)
    assert in_mode(lambda: strategy.reduce("MEAN", variable, axis=None))().numpy() == 2.0
    with pytest.raises(AssertionError):
        in_mode(lambda: strategy.reduce("SUM", variable, axis=None))()


@workers
def test_what_takes_all_workers_is_not_exported(tmp_path, world_size):
    with MultiWorkerMirroredStrategy().scope():
        variable = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
    update = tf.function(lambda: variable.assign(2.0)).get_concrete_function()
    with pytest.raises(ValueError, match="f_with_input_signature"):
        tf.saved_model.save(variable, str(tmp_path), signatures=update)


@workers
def test_graphs_of_tensorflow_1_are_refused(world_size):
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="must be made in eager mode"):
        MultiWorkerMirroredStrategy()


@workers
@in_modes
@pytest.mark.parametrize("aggregation, expected", [("MEAN", [5.0, 0.5]), ("SUM", [10.0, 1.0])])
def test_assignments_are_aggregated(aggregation, expected, in_mode, world_size):
    strategy = MultiWorkerMirroredStrategy()
    with strategy.scope():
        variable = tf.Variable(1.0, aggregation=getattr(tf.VariableAggregation, aggregation))
    strategy.run(in_mode(lambda: variable.assign(5.0)))
    assert variable.numpy() == expected[0]
    strategy.run(in_mode(lambda: variable.assign(float(rank()))))
    assert variable.numpy() == expected[1]


@workers
@pytest.mark.parametrize("shapes", [[[1], [2]], [[2], [1, 2]]], ids=["length", "rank"])
def test_shapes_that_differ_are_an_error_after_which_all_go_on(shapes, world_size):
    strategy = MultiWorkerMirroredStrategy()
    with pytest.raises(ValueError, match="must have the same shape and type on all replicas"):
        strategy.reduce("SUM", tf.ones(shapes[rank()]), axis=None)
    assert strategy.reduce("SUM", 1.0, axis=None).numpy() == world_size


@workers
@in_modes
def test_only_keras_gets_a_mean_of_scalars_along_an_axis(in_mode, world_size):
    strategy = MultiWorkerMirroredStrategy()
    with pytest.raises(ValueError, match="Invalid reduction dimension 0"):
        in_mode(lambda: strategy.reduce("MEAN", tf.constant(1.0), axis=0))()


def collectives_of(function):
    """Returns the types of all collectives of a graph and of the functions that it calls."""
    graph = function.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return sorted(node.op for node in nodes if node.op.startswith("Collective"))


@workers
def test_metrics_of_a_step_take_no_collectives(world_size):
    seen = []
    for metrics in ([], ["mae", "mse"]):
        with MultiWorkerMirroredStrategy().scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", metrics=metrics)
        x = tf.ones([2, 4])
        model.train_on_batch(x, x[:, :1])
        step = functools.partial(model.train_function, [(x, x[:, :1])])
        seen.append(collectives_of(tf.function(step, autograph=False)))
    assert seen[0] == seen[1] != []


@workers
def test_a_function_that_ends_with_an_empty_batch_on_one_worker(world_size):
    strategy = MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
    data = tf.data.Dataset.from_tensor_slices(tf.ones([5, 2])).batch(2)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    batches = strategy.distribute_datasets_from_function(lambda _: data.take(2 + rank()))
    for x in batches:
        strategy.run(step, (x,))
    assert np.isfinite(model.get_weights()[0]).all()
    assert optimizer.iterations.numpy() == 3
