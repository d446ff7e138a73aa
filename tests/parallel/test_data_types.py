"""A strategy trains on the same types of data and variables as one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.in_scope import arrays_of, sgd, workers
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import assert_same_bits_on_all_ranks, from_first, gather, rank
from tests.support.training import compiled, reference
from tf_onebit import FullPrecision, OneBit
from tf_onebit.distribute import MultiWorkerMirroredStrategy

SAMPLES, WIDTH, CLASSES, BATCH = 32, 12, 10, 8
WORDS = np.array(["red", "green", "blue", "black"])


def network(*inputs):
    """Returns a classifier behind some first layers, of which the first is an input."""
    x = first = inputs[0]
    for layer in inputs[1:]:
        x = layer(x)
    return keras.Model(first, keras.layers.Dense(CLASSES)(x))


def of_numbers():
    """Three inputs at once."""
    dtypes = ("uint8", "int16", "bool")

    def make():
        inputs = {name: keras.Input((WIDTH,), dtype=name, name=name) for name in dtypes}
        scaled = keras.layers.Rescaling(1 / 127, dtype="float32")
        return network(
            inputs,
            lambda inputs: [scaled(one) for one in inputs.values()],
            keras.layers.Concatenate(),
        )

    rng = np.random.default_rng(0)
    return make, {name: rng.integers(0, 100, (SAMPLES, WIDTH)).astype(name) for name in dtypes}


def of_strings():
    def make():
        return network(
            keras.Input((WIDTH,), dtype="string"),
            keras.layers.StringLookup(vocabulary=WORDS),
            keras.layers.Embedding(6, 4),
            keras.layers.Flatten(),
        )

    return make, WORDS[np.random.default_rng(0).integers(0, 4, (SAMPLES, WIDTH))]


def of_sparse():
    def make():
        return network(keras.Input((WIDTH,), sparse=True))

    dense = np.random.default_rng(0).normal(size=(SAMPLES, WIDTH)).astype("float32")
    # Batches of samples without values: on one worker, and on both.
    dense[BATCH : BATCH + BATCH // 2] = dense[3 * BATCH :] = 0
    return make, dense


def of_ragged():
    def make():
        return network(
            keras.Input((None,), dtype="int32", ragged=True),
            keras.layers.Lambda(lambda x: tf.reduce_mean(tf.cast(x, tf.float32), 1)[:, None]),
        )

    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 9, rng.integers(1, 6)).tolist() for _ in range(SAMPLES)]
    return make, tf.ragged.constant(rows, dtype=tf.int32)


DATA = {
    "numbers": of_numbers,
    "string": of_strings,
    "sparse": of_sparse,
    "ragged": of_ragged,
}


def dataset_of(x, form):
    labels = (np.arange(SAMPLES) % CLASSES).astype("uint8")
    dataset = tf.data.Dataset.from_tensor_slices((x, labels)).batch(BATCH)
    if form == "sparse":
        dataset = dataset.map(lambda x, y: (tf.sparse.from_dense(x), y))
    return dataset


@workers
@pytest.mark.parametrize("name", ["sparse", *nightly("string", "numbers", "ragged")])
def test_data_of_any_type_train_as_in_one_process(name):
    make, x = DATA[name]()

    def made(compiled=compiled):
        keras.utils.set_random_seed(0)
        return compiled(make(), keras.optimizers.SGD(0.1), metrics=["accuracy"])

    with MultiWorkerMirroredStrategy(FullPrecision()).scope():
        model = made()
    history = model.fit(dataset_of(x, name), epochs=2, verbose=0).history
    assert_same_bits_on_all_ranks(arrays_of(model))

    def train():
        alone = made(reference)
        history = alone.fit(dataset_of(x, name), epochs=2, verbose=0).history
        return history, arrays_of(alone)

    expected, arrays = from_first(train)
    for array, other in zip(arrays_of(model), arrays, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-4)
    assert history["accuracy"] == expected["accuracy"]


@workers
@pytest.mark.parametrize("form", ["sparse", *nightly("ragged", "without_width")])
def test_samples_without_values_are_data(form):
    """On one worker the batch has samples, but no values."""
    strategy = MultiWorkerMirroredStrategy(FullPrecision())
    with strategy.scope():
        variable = keras.Variable(np.zeros([64], np.float32))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([variable])

    def step(batch):
        optimizer.apply([tf.fill([64], float(1 + rank()))], [variable])

    rows = {"sparse": tf.zeros([6, 4]), "without_width": tf.zeros([6, 0])}.get(form)
    if form == "ragged":
        rows = tf.ragged.constant([[]] * 6, dtype=tf.float32, ragged_rank=1)
    data = tf.data.Dataset.from_tensor_slices(rows).batch(3)
    if form == "sparse":
        data = data.map(tf.sparse.from_dense)
    data = strategy.distribute_datasets_from_function(lambda _, data=data: data)

    @tf.function
    def train(iterator):
        strategy.run(step, (next(iterator),))

    iterator = iter(data)
    for _ in range(2):
        train(iterator)
    # Both workers' gradients count in both steps: 1 and 2.
    np.testing.assert_allclose(variable.numpy(), -6.0)


VARIABLES = ["bfloat16", "int8", "uint8", "int16", "bool", "uint32", "float16", "complex64"]


@workers
def test_variables_of_any_type_begin_as_those_of_the_chief(world_size):
    values = {name: np.array([rank(), 1, 0, 1]) for name in VARIABLES}
    with MultiWorkerMirroredStrategy().scope():
        variables = [tf.Variable(tf.cast(values[name], name)) for name in VARIABLES]
        drawn = tf.Variable(lambda: tf.cast(tf.random.uniform([64]) * 100, tf.int8))
    for variable in variables:
        assert tf.cast(variable, tf.int32).numpy().tolist() == [0, 1, 0, 1]
    assert_same_bits_on_all_ranks([drawn.numpy()])


@workers
def test_weights_of_16_bits_and_quantized_ones_train(world_size):
    x = np.random.default_rng(0).normal(size=(32, 64)).astype("float32")
    keras.config.set_dtype_policy("bfloat16")
    try:
        with MultiWorkerMirroredStrategy(OneBit(min_size=0)).scope():
            model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32)])
            model.compile("sgd", "mse")
    finally:
        keras.config.set_dtype_policy("float32")
    before = arrays_of(model)[0]
    model.fit(x, x[:, :32], batch_size=16, verbose=0)
    assert not np.array_equal(before.view(np.uint16), arrays_of(model)[0].view(np.uint16))
    assert_same_bits_on_all_ranks(arrays_of(model))

    with MultiWorkerMirroredStrategy(OneBit(min_size=0)).scope():
        adapted = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32)])
        adapted.layers[0].enable_lora(4)
        adapted.quantize("int8")
        adapted.compile("sgd", "mse")
    kernel = adapted.layers[0]._kernel.numpy()
    adapted.fit(x, x[:, :32], batch_size=16, verbose=0)
    assert kernel.dtype == np.int8
    assert np.array_equal(kernel, adapted.layers[0]._kernel.numpy())
    trained = [v.numpy() for v in adapted.trainable_variables]
    assert any(np.abs(array).sum() for array in trained)
    assert_same_bits_on_all_ranks(trained)


@workers
def test_values_of_any_type_are_gathered(world_size):
    strategy = MultiWorkerMirroredStrategy()
    for name in ("uint8", "bool", "int16", "bfloat16"):
        mine = tf.cast([rank(), 1], name)
        everyones = strategy.gather(mine, axis=0)
        assert everyones.dtype == mine.dtype
        assert tf.cast(everyones, tf.int32).numpy().tolist() == [0, 1, 1, 1]
    assert gather(rank()) == [0, 1]


class OwnStep(keras.Model):
    """A model with a train step of its own and no `call`, like a GAN."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.tracker = inner, keras.metrics.Mean("own")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, self.inner(x))
        weights = self.inner.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.tracker.update_state(1.0)
        return {"own": self.tracker.result()}


@workers
@pytest.mark.parametrize("built, loss", [(False, None), *nightly_rows((True, "mse"))])
def test_a_model_without_call_trains_as_in_one_process(built, loss):
    def make(**arguments):
        keras.utils.set_random_seed(0)
        first = [keras.Input((64,))] if built else []
        model = OwnStep(keras.Sequential([*first, keras.layers.Dense(32)]))
        model.compile(sgd()(), loss, **arguments)
        return model

    x = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
    with MultiWorkerMirroredStrategy(FullPrecision()).scope():
        model = make()
    history = model.fit(x, x[:, :32], batch_size=16, shuffle=False, verbose=0).history

    def train():
        alone = make(run_eagerly=True)
        alone.fit(x, x[:, :32], batch_size=16, shuffle=False, verbose=0)
        return alone.inner.get_weights()

    assert history["own"] == [1.0]
    assert len(model.inner.weights) == 2
    for mine, other in zip(model.inner.get_weights(), from_first(train), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
