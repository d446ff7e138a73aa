"""`DistributedGradientTape` in custom training loops."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.nightly import nightly
from tests.support.ranks import assert_same_bits_on_all_ranks, digest, rank
from tf_onebit import FullPrecision, OneBit, WarmStart
from tf_onebit.collectives import lockstep
from tf_onebit.exchanges import Bucketed, GradientSpec

MODES = {"eager": lambda function: function, "graph": tf.function}
in_graphs_first = pytest.mark.parametrize("mode", ["graph", *nightly("eager")], indirect=True)
SHAPES = [(64, 32), (32,), (32, 40)]


@pytest.fixture
def mode(request):
    """Returns a function that compiles another one, or leaves it as it is."""
    return MODES[request.param]


def coefficients(step, rank, shapes=SHAPES):
    rng = np.random.default_rng([step, rank])
    return [tf.constant(rng.standard_normal(shape), tf.float32) for shape in shapes]


def linear(variables, coefficients):
    """Returns a loss with `coefficients` as its gradients."""
    return tf.add_n([tf.reduce_sum(v * c) for v, c in zip(variables, coefficients, strict=True)])


def lockstep_means(template, world_size, steps, shapes=SHAPES):
    """Returns the result of each of several exchanges of the coefficients."""
    specs = [GradientSpec(str(i), shape, "float32") for i, shape in enumerate(shapes)]
    exchanges = [Bucketed(template) for _ in range(world_size)]
    for k, exchange in enumerate(exchanges):
        exchange.build(specs, k, world_size, "lockstep")
    for step in range(steps):
        received = lockstep.run(
            [
                exchange.run(coefficients(step, k, shapes), 1 / world_size)
                for k, exchange in enumerate(exchanges)
            ]
        )
        yield received[0][0]


def assert_equal(tensors, others):
    for tensor, other in zip(tensors, others, strict=True):
        np.testing.assert_array_equal(tensor, other)


@pytest.mark.workers(2)
@pytest.mark.parametrize(
    "template",
    [WarmStart(OneBit(), steps=2), *nightly(FullPrecision(), OneBit())],
    ids=["warm_start", "full_precision", "one_bit"],
)
@pytest.mark.parametrize("mode", ["graph", "eager"], indirect=True)
def test_residuals_are_kept_from_tape_to_tape(mode, template, world_size):
    variables = [tf.Variable(tf.zeros(shape), name=f"v{i}") for i, shape in enumerate(SHAPES)]
    exchange = template.clone()

    @mode
    def gradients_of(*coefficients):
        with tf.GradientTape() as tape:
            loss = linear(variables, coefficients)
        return hvd.DistributedGradientTape(tape, exchange).gradient(loss, variables)

    for step, expected in enumerate(lockstep_means(template, world_size, steps=4)):
        received = gradients_of(*coefficients(step, rank()))
        assert_equal(received, expected)
        assert_same_bits_on_all_ranks(received)


@pytest.mark.workers(2)
@pytest.mark.parametrize("named_alike", [True, *nightly(False)], ids=["named_alike", "named"])
@in_graphs_first
def test_two_models_with_one_exchange_have_residuals_of_their_own(mode, named_alike, world_size):
    shapes = [(64, 32)]
    names = ["variable"] * 2 if named_alike else ["generator", "discriminator"]
    models = [[tf.Variable(tf.zeros(shapes[0]), name=name)] for name in names]
    exchange = OneBit()

    def train(model, coefficient):
        with hvd.DistributedGradientTape(tf.GradientTape(), exchange) as tape:
            loss = linear(model, [coefficient])
        return tape.gradient(loss, model)

    @mode
    def step_of_both(coefficient):
        return [train(model, coefficient) for model in models]

    for step, expected in enumerate(lockstep_means(OneBit(), world_size, 4, shapes)):
        for received in step_of_both(*coefficients(step, rank(), shapes)):
            assert_equal(received, expected)


@pytest.mark.workers(2)
@in_graphs_first
def test_keras_models_train_alternately(mode, world_size):
    """A GAN does this: two tapes per step, each for a model of its own."""
    keras.utils.set_random_seed(0)
    generator, discriminator = (
        keras.Sequential([keras.Input((32,)), keras.layers.Dense(64), keras.layers.Dense(32)])
        for _ in range(2)
    )
    exchange = OneBit()
    optimizers = [keras.optimizers.SGD(0.01), keras.optimizers.SGD(0.01)]
    for optimizer, model in zip(optimizers, (generator, discriminator), strict=True):
        optimizer.build(model.trainable_variables)

    @mode
    def train(noise, real):
        with tf.GradientTape() as generator_tape, tf.GradientTape() as discriminator_tape:
            fake_score = discriminator(generator(noise))
            generator_loss = -tf.reduce_mean(fake_score)
            loss = tf.reduce_mean(fake_score) - tf.reduce_mean(discriminator(real))
            discriminator_loss = loss
        tapes = generator_tape, discriminator_tape
        losses = generator_loss, discriminator_loss
        models = generator, discriminator
        for tape, loss, model, optimizer in zip(tapes, losses, models, optimizers, strict=True):
            distributed = hvd.DistributedGradientTape(tape, exchange)
            gradients = distributed.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)

    before = digest([*generator.get_weights(), *discriminator.get_weights()])
    for step in range(3):
        train(*coefficients(step, rank(), [(8, 32), (8, 32)]))
    after = [*generator.get_weights(), *discriminator.get_weights()]
    assert digest(after) != before
    assert_same_bits_on_all_ranks(after)


@pytest.mark.workers(2)
@in_graphs_first
def test_structure_of_sources_is_kept(mode, world_size):
    a, b, c = (tf.Variable(tf.ones([2]) * i, name=f"v{i}") for i in range(3))
    sources = {"first": a, "rest": [b, (c,)]}

    @mode
    def gradients_of():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((rank() + 1.0) * (a + 2 * b))
        distributed = hvd.DistributedGradientTape(tape, FullPrecision())
        return distributed.gradient(loss, sources)

    gradients = gradients_of()
    mean = (1 + world_size) / 2
    np.testing.assert_allclose(gradients["first"], [mean, mean])
    np.testing.assert_allclose(gradients["rest"][0], [2 * mean, 2 * mean])
    assert gradients["rest"][1] == (None,)


@pytest.mark.workers(2)
def test_one_source_and_options_of_the_tape(world_size):
    x, y = tf.Variable(3.0), tf.Variable(5.0)
    with tf.GradientTape(persistent=True) as tape:
        loss = (rank() + 1.0) * x * x
    distributed = hvd.DistributedGradientTape(tape)
    assert float(distributed.gradient(loss, x)) == 9.0
    zero = distributed.gradient(loss, y, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert float(zero) == 0.0
    total = hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, x)
    assert float(total) == 18.0
    assert [v.ref() for v in distributed.watched_variables()] == [x.ref()]


@pytest.mark.workers(2)
@in_graphs_first
def test_indexed_slices_are_exact(mode, world_size):
    table = tf.Variable(tf.zeros([6, 3]), name="table")
    kernel = tf.Variable(tf.zeros([64, 32]), name="kernel")
    exchange = OneBit()
    rows = tf.constant([rank(), rank(), 5])

    @mode
    def gradients_of():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows)) + tf.reduce_sum(kernel)
        return hvd.DistributedGradientTape(tape, exchange).gradient(loss, [table, kernel])

    for _ in range(2):
        sparse, dense = gradients_of()
        assert isinstance(sparse, tf.IndexedSlices)
        expected = np.zeros([6, 3])
        expected[:world_size] = 2 / world_size
        expected[5] = 1
        np.testing.assert_allclose(tf.convert_to_tensor(sparse), expected)
        np.testing.assert_allclose(dense, np.ones([64, 32]))


@pytest.mark.workers(2)
@pytest.mark.parametrize("compression", ["fp16", "onebit", *nightly("none")])
@in_graphs_first
def test_compression(mode, compression, world_size):
    variables = [tf.Variable(tf.zeros(shape), name=f"v{i}") for i, shape in enumerate(SHAPES)]

    @mode
    def gradients_of(*coefficients):
        with tf.GradientTape() as tape:
            loss = linear(variables, coefficients)
        distributed = hvd.DistributedGradientTape(
            tape, compression=getattr(hvd.Compression, compression)
        )
        return distributed.gradient(loss, variables)

    template = OneBit() if compression == "onebit" else FullPrecision()
    for step, expected in enumerate(lockstep_means(template, world_size, steps=3)):
        received = gradients_of(*coefficients(step, rank()))
        for tensor, other in zip(received, expected, strict=True):
            np.testing.assert_allclose(tensor, other, atol=5e-3 if compression == "fp16" else 0)


@pytest.mark.workers(2)
@in_graphs_first
def test_not_finite_gradient_is_an_error_on_all_ranks(mode, world_size):
    variable = tf.Variable(tf.zeros([64, 32]), name="kernel")
    poison = np.nan if rank() == 1 else 1.0
    exchange = OneBit()

    @mode
    def gradients_of():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * poison)
        return hvd.DistributedGradientTape(tape, exchange).gradient(loss, [variable])

    with pytest.raises(tf.errors.InvalidArgumentError, match="Rank 1 .*'kernel"):
        gradients_of()


@pytest.mark.workers(2)
def test_every_tape_may_have_other_sources(world_size):
    """The sources of a step may differ from those of the step before."""
    variables = [tf.Variable(tf.zeros([64, 32]), name=f"v{i}") for i in range(3)]
    exchange = OneBit()
    for chosen in itertools.combinations(variables, 2):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum((rank() + 1.0) * variable) for variable in chosen])
        gradients = hvd.DistributedGradientTape(tape, exchange).gradient(loss, chosen)
        mean = (1 + world_size) / 2
        assert_equal(gradients, [np.full([64, 32], mean)] * 2)
