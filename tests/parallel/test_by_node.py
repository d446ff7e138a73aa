"""Workers of a node share the exchange with other nodes: real jobs of two nodes."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.gradients import Exact
from tests.support.groups import groups_of
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import (
    assert_same_bits_on_all_ranks,
    digest,
    engine,
    from_first,
    rank,
)
from tests.support.training import (
    compiled,
    embedding_model,
    fit_part,
    fit_whole,
    gradients_of,
    make_data,
    make_model,
    reference,
)
from tf_onebit import (
    Delayed,
    Local,
    OneBit,
    Threshold,
    WarmStart,
    model_parallel,
)
from tf_onebit.callbacks import BackupAndRestore, BlockMomentum
from tf_onebit.collectives import lockstep
from tf_onebit.exchanges import GradientSpec
from tf_onebit.exchanges.hierarchical import Hierarchical
from tf_onebit.transforms import Momentum

STEPS, PER_NODE = 4, 2
SHAPES = [(64, 48), (48,), (3, 3, 8, 24), (), (33, 100), (1, 200)]
EXCHANGES = {
    "one_bit": WarmStart(OneBit(min_size=0, bucket_bytes=8192), steps=1),
    "threshold": Threshold(target_density=0.05),
    "delayed": Delayed(OneBit(min_size=0)),
}

on_two_nodes = pytest.mark.workers(4, engines=["nodes"])


def random_gradients(step, rank):
    rng = np.random.default_rng([step, rank])
    return [tf.constant(rng.standard_normal(shape), tf.float32) for shape in SHAPES]


def built_exchange(template, rank):
    exchange = Hierarchical(template, place=rank % PER_NODE, per_node=PER_NODE)
    specs = [GradientSpec(f"{i}/kernel", shape, "float32") for i, shape in enumerate(SHAPES)]
    exchange.build(specs, rank // PER_NODE, 2, "by_node")
    return exchange


@on_two_nodes
@pytest.mark.parametrize("name", EXCHANGES)
def test_same_bits_as_in_lockstep(name, world_size):
    mine = built_exchange(EXCHANGES[name], rank())
    simulated = [built_exchange(EXCHANGES[name], k) for k in range(world_size)]
    between = engine().between_nodes()

    def run(exchange, gradients):
        if not exchange.delay:
            return exchange.run(gradients, 0.25)
        return held(exchange, gradients)

    def held(exchange, gradients):  # nothing arrives in the first step
        yield from exchange.hold(gradients)
        return (yield from exchange.release(1, [tf.zeros_like(g) for g in gradients], 0.25))

    @tf.function
    def exchange(*gradients):
        return between.run([run(mine, list(gradients))])[0]

    for step in range(STEPS):
        received, _ = exchange(*random_gradients(step, rank()))
        expected, _ = lockstep.run(
            [run(one, random_gradients(step, k)) for k, one in enumerate(simulated)],
            per_node=PER_NODE,
        )[rank()]
        assert_same_bits_on_all_ranks(received)
        for tensor, other in zip(received, expected, strict=True):
            np.testing.assert_array_equal(tensor, other)
    assert digest(mine.variables) == digest(simulated[rank()].variables)


def adam(**arguments):
    return lambda: keras.optimizers.Adam(0.01, **arguments)


def momentum(**arguments):
    return lambda: keras.optimizers.SGD(0.05, momentum=0.9, **arguments)


# Each equals training of one process on all samples.
FITS = {
    "adam": (adam(clipnorm=0.1), None, make_model, {}),
    "sgd": (lambda: keras.optimizers.SGD(0.1), None, make_model, {"op": hvd.Average}),
    "embeddings": (momentum(), None, embedding_model, {}),
    "local moments": (momentum(), Exact(), make_model, {}),
    "local moments, embeddings": (momentum(), Exact(), embedding_model, {}),
    "local moments, warm": (momentum(), WarmStart(Exact(), steps=2), make_model, {}),
    "skip": (adam(), None, make_model, {"on_nonfinite": "skip"}),
}


@pytest.mark.workers(
    jobs=[
        *(("nodes", 4, name) for name in ("sgd", "adam", "local moments, embeddings")),
        *(("nodes", 4, "local moments, warm"),),
        *nightly_rows(*(("nodes", 4, name) for name in ("embeddings", "local moments", "skip"))),
    ],
    also=["name"],
)
def test_training_in_full_precision_is_that_on_all_samples(name, world_size):
    optimizer, exchange, make, arguments = FITS[name]
    wrapped = hvd.DistributedOptimizer(optimizer(), exchange, groups="node", **arguments)
    model = compiled(make(), wrapped)
    fit_part(model, STEPS, world_size)

    def alone():
        whole = reference(make(), optimizer())
        fit_whole(whole, STEPS, world_size)
        return [v.numpy() for v in whole.trainable_variables]

    assert_same_bits_on_all_ranks([v.numpy() for v in model.trainable_variables])
    for mine, expected in zip(model.trainable_variables, from_first(alone), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)


@on_two_nodes
def test_sum_is_over_all_workers(world_size):
    gradients = {}
    for groups in ("node", None):
        x = tf.Variable(tf.reshape(tf.range(6.0), [2, 3]))
        with tf.GradientTape() as tape:
            loss = (rank() + 1.0) * tf.reduce_sum(x * x)
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, groups=groups)
        gradients[groups] = tape.gradient(loss, x)
    np.testing.assert_allclose(gradients["node"], gradients[None], rtol=1e-6)
    np.testing.assert_allclose(gradients["node"], 20.0 * x, rtol=1e-6)


@on_two_nodes
@pytest.mark.parametrize("place", [0, *nightly(1)])
def test_nobody_waits_if_a_gradient_is_not_finite(place, world_size):
    """Only two of the four workers have the slice with that value."""
    model = compiled(
        make_model(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), OneBit(), groups="node")
    )
    fit_part(model, 1, world_size)
    before = [v.numpy() for v in model.trainable_variables]
    x, labels = (array[0, 0] for array in make_data(1, 1))
    gradients = [g.numpy() for g in gradients_of(model, x, labels)]
    if rank() == 2:
        gradients[0][-1 if place else 0] = np.inf
    with pytest.raises(tf.errors.InvalidArgumentError, match="Node 1 met an infinity or NaN"):
        model.optimizer.apply(list(map(tf.constant, gradients)), model.trainable_variables)
    for variable, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


@on_two_nodes
@pytest.mark.parametrize(
    "exchange", [OneBit(min_size=0), Threshold(target_density=0.1)], ids=["1-bit", "threshold"]
)
def test_resumed_training_has_the_same_bits(exchange, world_size, tmp_path_factory):
    directory = from_first(lambda: tmp_path_factory.mktemp("backup"))
    ends = []
    for epochs in ([3], [1, 3]):
        for count in epochs:
            optimizer = hvd.DistributedOptimizer(adam()(), exchange, groups="node")
            model = compiled(make_model(), optimizer)
            callbacks = [BackupAndRestore(directory, delete_checkpoint=False)]
            fit_part(
                model, STEPS, world_size, epochs=count, callbacks=callbacks * (len(epochs) > 1)
            )
        ends.append([v.numpy() for v in model.trainable_variables])
    for mine, expected in zip(*ends, strict=True):
        np.testing.assert_array_equal(mine, expected)


@on_two_nodes
def test_what_groups_do_not_work_with(world_size):
    def wrapped(exchange, **arguments):
        return hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1), exchange, groups="node", **arguments
        )

    for exchange, message in {
        "auto": 'With groups="node" all workers must exchange in the same way',
        Local(): "exchange gradients in every step. Received: the exchange Local",
        OneBit(transforms=[Momentum(0.9)]): "transforms need whole ones",
    }.items():
        with pytest.raises(ValueError, match=message):
            wrapped(exchange)
    with pytest.raises(ValueError, match="a process_set of the ranks \\[0, 2\\]. Leave one"):
        wrapped(OneBit(), process_set=hvd.ProcessSet([0, 2]))
    split = model_parallel.split(make_model(), groups_of("node"), min_size=0)
    with pytest.raises(ValueError, match='SGD with a split model and groups="node". Leave groups'):
        fit_part(compiled(split, wrapped(OneBit())), 1, world_size)
    with pytest.raises(ValueError, match='groups must be "node", or one of Horovod'):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), groups="nodes")
    model = compiled(make_model(), wrapped(OneBit()))
    with pytest.raises(ValueError, match="BlockMomentum needs workers that exchange no gradients"):
        fit_part(model, 1, world_size, callbacks=[BlockMomentum(2, groups="node")])


@pytest.mark.workers(2)
def test_all_workers_on_one_node_exchange_in_full_precision(world_size):
    exchange, gradients = OneBit(min_size=0), {}
    for groups in ("node", None):
        x = tf.Variable(tf.reshape(tf.range(200.0), [2, 100]))
        with tf.GradientTape() as tape:
            loss = (rank() + 1.0) * tf.reduce_sum(x * x)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            tape = hvd.DistributedGradientTape(tape, exchange, groups=groups)
        gradients[groups] = tape.gradient(loss, x)
        texts = [str(one.message) for one in told]
        is_told = any("all are on one node. Received: 2 workers with OneBit" in t for t in texts)
        assert is_told == (groups == "node" and rank() == 0)
    np.testing.assert_allclose(gradients["node"], 3.0 * x, rtol=1e-6)
    assert np.abs(gradients[None] - 3.0 * x).max() > 1  # by one bit


@on_two_nodes
def test_a_worker_without_groups_is_an_error_on_all(world_size):
    groups = "node" if rank() else None
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), OneBit(), groups=groups)
    model = compiled(make_model(), optimizer)
    with pytest.raises(ValueError, match="rank 0 has groups = none, rank 1 has groups = node"):
        fit_part(model, 1, world_size)
