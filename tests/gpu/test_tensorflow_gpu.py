"""Ops, exchanges and training give the same on a GPU that TensorFlow sees as on the CPU."""

import contextlib

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import keras  # noqa: E402

import tf_onebit  # noqa: E402
from tests.support.gradients import SHAPES, build_workers, exchange, flat, gradients_of, specs_of  # noqa: E402
from tf_onebit import ops  # noqa: E402
from tf_onebit._layout import Layout  # noqa: E402

pytestmark = pytest.mark.skipif(
    not tf.config.list_physical_devices("GPU"), reason="TensorFlow sees no GPU"
)
DEVICES = ["CPU:0", "GPU:0"]
EXCHANGES = {
    "one_bit": tf_onebit.OneBit(min_size=64),
    "transforms": tf_onebit.OneBit(
        min_size=64,
        transforms=[
            tf_onebit.transforms.NormalizedAdaGrad(1000, 64),
            tf_onebit.transforms.Momentum(0.9),
        ],
    ),
    "threshold": tf_onebit.Threshold(target_density=0.1),
    "golomb_rice": tf_onebit.Threshold(tau=0.5, coding="golomb_rice"),
    "full_precision": tf_onebit.FullPrecision(),
}


def results_on(device, run):
    """Returns the results of a function of random numbers on a device: list of NumPy arrays."""
    with tf.device(device):
        return [np.asarray(result) for result in run(np.random.default_rng(1))]


def assert_same_bits(run):
    on_cpu, on_gpu = (results_on(device, run) for device in DEVICES)
    for cpu, gpu in zip(on_cpu, on_gpu, strict=True):
        np.testing.assert_array_equal(gpu, cpu)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("levels", ["mean", "symmetric"])
def test_one_bit_messages_have_the_bits_of_the_cpu(dtype, levels):
    layout = Layout([(100 * 70, 70, 64)], world_size=2)

    def run(rng):
        gradients = gradients_of(rng, [(100, 70)], dtype)
        residual, shard_residual = (
            tf.Variable(tf.zeros([n])) for n in (layout.size, layout.shard_sizes[0])
        )
        messages, squares = ops.one_bit_encode(gradients, residual, layout, levels)
        received = tf.stack([messages[0], messages[0]])
        shard, *rest = ops.one_bit_aggregate(received, shard_residual, layout, 0, levels, bits=2)
        return [messages, squares, residual, shard, shard_residual, *rest]

    assert_same_bits(run)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_scaled_one_bit_messages_have_the_bits_of_the_cpu(dtype):
    layout = Layout([(100 * 70, 70, 64)], world_size=2)

    def run(rng):
        gradients = gradients_of(rng, [(100, 70)], dtype)
        residual, learned = (tf.Variable(tf.zeros([layout.size])) for _ in range(2))
        ops.one_bit_learn_scales(gradients, learned, layout)
        scales = tf.constant(rng.uniform(0.01, 2.0, layout.size), tf.float32)
        messages, squares = ops.one_bit_encode(gradients, residual, layout, value_scales=scales)
        decoded = ops.one_bit_decode(
            messages, tf.zeros([0]), gradients, layout, value_scales=scales
        )
        return [learned, messages, squares, residual, tf.cast(decoded[0], tf.float32)]

    assert_same_bits(run)


def test_threshold_messages_have_the_bits_of_the_cpu():
    sizes = [33, 9000]

    def run(rng):
        gradients = gradients_of(rng, [(33,), (9000,)])
        residual = tf.Variable(tf.zeros([sum(sizes)]))
        message = ops.threshold_encode(gradients, residual, 0.5, 0.5, 3000, sizes)
        sums = ops.threshold_decode_sum(tf.stack([message, message]), gradients, sizes)
        return [message, residual, *sums]

    assert_same_bits(run)


def test_block_updates_have_the_bits_of_the_cpu():
    def run(rng):
        mean = tf.constant(rng.normal(size=5000), tf.float32)
        variable, model, delta = (
            tf.Variable(rng.normal(size=5000).astype(np.float32)) for _ in range(3)
        )
        ops.block_update([mean], [variable], [model], [delta], 0.9, 1.0, 0.9, True, False)
        return [variable, model, delta]

    assert_same_bits(run)


def test_what_is_sent_stays_on_the_gpu():
    with tf.device("GPU:0"):
        workers = build_workers(tf_onebit.OneBit(min_size=64), specs_of(SHAPES), 2)
        message, _ = workers[0].encode(gradients_of(np.random.default_rng(1), SHAPES))
    assert workers[0].worker_residual.device.endswith("GPU:0")
    assert message.device.endswith("GPU:0")


@pytest.mark.parametrize("name", EXCHANGES)
def test_an_exchange_gives_what_it_gives_on_the_cpu(name):
    def run(rng):
        workers = build_workers(EXCHANGES[name], specs_of(SHAPES), 2)
        for _ in range(3):
            exchanged, flags = exchange(workers, [gradients_of(rng, SHAPES) for _ in workers])
        return [flat(exchanged[0]), flags[0]]

    on_cpu, on_gpu = (results_on(device, run) for device in DEVICES)
    np.testing.assert_allclose(on_gpu[0], on_cpu[0], rtol=1e-5, atol=1e-6)
    assert not on_gpu[1].any()


def losses(optimizer, scope=None):
    """Returns the losses of the first and the last epoch of a small model."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(1).normal(size=(256, 64)).astype(np.float32)
    with scope or contextlib.nullcontext():
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss, jit_compile=False)
    history = model.fit(x, x[:, :10].argmax(1), batch_size=32, epochs=5, verbose=0).history
    return history["loss"][0], history["loss"][-1]


@pytest.mark.parametrize("name", [*EXCHANGES, "delayed"])
def test_fit_learns_in_a_strategy(name):
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    # All GPUs, or the only GPU and the CPU.
    devices = gpus if len(gpus) > 1 else [*gpus, "CPU:0"]
    template = EXCHANGES.get(name, tf_onebit.Delayed(tf_onebit.OneBit(min_size=64)))
    strategy = tf_onebit.distribute.MirroredStrategy(template, devices=devices)
    first, last = losses(lambda: keras.optimizers.SGD(0.1), strategy.scope())
    assert last < 0.9 * first


@pytest.mark.parametrize("name", EXCHANGES)
def test_fit_learns_over_horovod(name):
    hvd = pytest.importorskip("tf_onebit.horovod", reason="Horovod is not installed")
    hvd.init()
    first, last = losses(
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), exchange=EXCHANGES[name])
    )
    assert last < 0.9 * first
