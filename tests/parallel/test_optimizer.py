"""`DistributedOptimizer` in `model.fit`."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import assert_same_bits_on_all_ranks, digest, from_first, gather, rank
from tests.support.training import (
    compiled,
    fit_part,
    fit_whole,
    make_data,
    make_model,
    reference,
    with_layer,
)
from tf_onebit import Delayed, FullPrecision, OneBit, Threshold, WarmStart

STEPS = 6


def sgd(**arguments):
    return keras.optimizers.SGD(0.1, **arguments)


def adam(**arguments):
    return keras.optimizers.Adam(0.01, **arguments)


def trained(optimizer, world_size, steps=STEPS, **arguments):
    """Returns the final weights and optimizer variables after a fit on all workers."""
    model = compiled(make_model(), optimizer, **arguments)
    fit_part(model, steps, world_size)
    return arrays_of(model)


def arrays_of(model):
    return [np.array(v) for v in (*model.variables, *model.optimizer.variables)]


def weights_of(arrays):
    """Returns the part of `arrays_of` that all workers have alike, not the moments of each."""
    return arrays[: len(make_model().variables)]


def expected_of(optimizer, world_size):
    """Returns the same as `trained`, from one process on the batches of all workers together."""

    def train():
        model = reference(make_model(), optimizer)
        fit_whole(model, STEPS, world_size)
        return arrays_of(model)

    return from_first(train)


def assert_close(arrays, others, tolerance=1e-5):
    for array, other in zip(arrays, others, strict=True):
        np.testing.assert_allclose(array, other, rtol=tolerance, atol=tolerance)


EXCHANGES = {
    "one_bit_sgd": lambda: (sgd(momentum=0.9, nesterov=True), OneBit()),
    "one_bit_adam": lambda: (adam(), OneBit(bucket_bytes=4096)),
    "warm_start_adam": lambda: (adam(), WarmStart(OneBit(), steps=3)),
    "full_precision_adam": lambda: (adam(), FullPrecision()),
}


@pytest.mark.workers(3)
@pytest.mark.parametrize("name", ["warm_start_adam", *nightly("one_bit_sgd", "one_bit_adam")])
def test_ranks_end_bitwise_equal_and_runs_repeat(name, world_size):
    first, second = (
        trained(hvd.DistributedOptimizer(optimizer, exchange), world_size)
        for optimizer, exchange in (EXCHANGES[name](), EXCHANGES[name]())
    )
    assert_same_bits_on_all_ranks(weights_of(first))
    assert digest(first) == digest(second)


class CountsTraces(keras.layers.Layer):
    """An identity layer that counts its traces."""

    traces = 0

    def call(self, x):
        self.traces += 1
        return x


LATE = {
    "one_bit": lambda: hvd.DistributedOptimizer(sgd(momentum=0.9), OneBit()),
    "one_bit_adam": lambda: hvd.DistributedOptimizer(adam(), OneBit()),
    "delayed": lambda: hvd.DistributedOptimizer(sgd(momentum=0.9), Delayed(OneBit())),
    "skipping": lambda: hvd.DistributedOptimizer(sgd(), OneBit(), on_nonfinite="skip"),
    "asynchronous": lambda: hvd.AsynchronousOptimizer(sgd(), Threshold(0.1)),
}


@pytest.mark.workers(2)
@pytest.mark.parametrize(
    "name", ["one_bit_adam", *nightly("delayed", "one_bit", "skipping", "asynchronous")]
)
def test_a_step_is_traced_once_though_its_state_is_made_in_it(name, world_size):
    layer = CountsTraces()
    model = compiled(with_layer(lambda: layer)(), LATE[name]())
    layer.traces = 0
    fit_part(model, STEPS, world_size)
    assert layer.traces == 1


@pytest.mark.nightly
@pytest.mark.workers(2)
def test_one_bit_differs_from_full_precision_and_learns(world_size):
    losses = {}
    for name in ("one_bit_adam", "full_precision_adam"):
        optimizer, exchange = EXCHANGES[name]()
        model = compiled(make_model(), hvd.DistributedOptimizer(optimizer, exchange))
        losses[name] = fit_part(model, STEPS, world_size, epochs=8).history["loss"]
    assert losses["one_bit_adam"] != losses["full_precision_adam"]
    assert losses["one_bit_adam"][-1] < 0.5 * losses["one_bit_adam"][0]


REFERENCES = {
    "sgd": lambda: sgd(momentum=0.9, clipvalue=0.004),
    "adam": adam,
    "global_clipnorm": lambda: sgd(global_clipnorm=0.1, weight_decay=0.1),
    "accumulation": lambda: sgd(gradient_accumulation_steps=2, clipnorm=0.05),
    "ema": lambda: sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=4),
}


@pytest.mark.workers(2)
@pytest.mark.parametrize(
    "name", ["global_clipnorm", "accumulation", *nightly("ema", "sgd", "adam")]
)
def test_full_precision_equals_one_process_on_the_whole_batch(name, world_size):
    optimizer = hvd.DistributedOptimizer(REFERENCES[name](), FullPrecision())
    result = trained(optimizer, world_size)
    assert_close(result, expected_of(REFERENCES[name](), world_size))
    assert_same_bits_on_all_ranks(result)


@pytest.mark.nightly
@pytest.mark.workers(3)
def test_full_precision_equals_one_process_with_three_workers(world_size):
    result = trained(hvd.DistributedOptimizer(sgd(momentum=0.9)), world_size)
    assert_close(result, expected_of(sgd(momentum=0.9), world_size))


@pytest.mark.workers(2)
@pytest.mark.parametrize(
    "exchange, run_eagerly",
    [(OneBit(), False), *nightly_rows((FullPrecision(), True))],
    ids=["one_bit", "full"],
)
def test_sum_is_the_average_times_the_workers(exchange, run_eagerly, world_size):
    mean = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), exchange, op=hvd.Average)
    total = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), exchange, op=hvd.Sum)
    weights, others = (
        compiled(make_model(), optimizer, run_eagerly=run_eagerly) for optimizer in (mean, total)
    )
    fit_part(weights, STEPS, world_size)
    fit_part(others, STEPS, world_size)
    assert_close(weights.get_weights(), others.get_weights(), 1e-6)


class Counted(FullPrecision):
    """An exchange that counts the exchanges of all its clones."""

    def encode(self, gradients):
        EXCHANGES_COUNT.assign_add(1)
        return super().encode(gradients)


EXCHANGES_COUNT = tf.Variable(0)


@pytest.mark.workers(2)
def test_accumulated_gradients_are_exchanged_once_per_update(world_size):
    EXCHANGES_COUNT.assign(0)
    trained(hvd.DistributedOptimizer(sgd(gradient_accumulation_steps=3), Counted()), world_size)
    assert int(EXCHANGES_COUNT) == STEPS // 3


@pytest.mark.workers(2)
def test_steps_per_execution_changes_no_bit(world_size):
    digests = set()
    for steps_per_execution in (1, 3):
        optimizer, exchange = EXCHANGES["warm_start_adam"]()
        distributed = hvd.DistributedOptimizer(optimizer, exchange)
        arrays = trained(distributed, world_size, steps_per_execution=steps_per_execution)
        digests.add(digest(arrays))
    assert len(digests) == 1


@pytest.mark.workers(2)
def test_run_eagerly_computes_the_same(world_size):
    results = []
    for run_eagerly in (False, True):
        optimizer = hvd.DistributedOptimizer(sgd(momentum=0.9), FullPrecision())
        results.append(trained(optimizer, world_size, run_eagerly=run_eagerly))
    assert_close(*results)


@pytest.mark.nightly
@pytest.mark.workers(2)
@pytest.mark.parametrize("name", ["warm_start_adam", *nightly("one_bit_sgd")])
def test_run_eagerly_exchanges_one_bit(name, world_size):
    optimizer, exchange = EXCHANGES[name]()
    arrays = trained(hvd.DistributedOptimizer(optimizer, exchange), world_size, run_eagerly=True)
    assert_same_bits_on_all_ranks(weights_of(arrays))


@pytest.mark.workers(2)
def test_frozen_layers_stay_and_the_rest_is_trained(world_size):
    model = make_model()
    model.get_layer("second").trainable = False
    before = model.get_weights()
    fit_part(compiled(model, hvd.DistributedOptimizer(adam(), OneBit())), STEPS, world_size)
    changed = [not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)]
    assert changed == [True, False, True]
    assert_same_bits_on_all_ranks(model.get_weights())


@pytest.mark.workers(2)
@pytest.mark.parametrize("on_nonfinite", ["skip", *nightly("error")])
def test_variables_without_gradients_are_left_alone(on_nonfinite, world_size):
    body = make_model()
    unused = keras.layers.Dense(64, name="unused")(body.inputs[0])
    model = keras.Model(body.inputs, [body.outputs[0], unused])
    before = model.get_layer("unused").get_weights()
    model.compile(
        hvd.DistributedOptimizer(adam(), OneBit(), on_nonfinite=on_nonfinite),
        [keras.losses.SparseCategoricalCrossentropy(from_logits=True), None],
    )
    x, labels = make_data(1, world_size)
    for _ in range(2):
        model.train_on_batch(x[0, rank()], [labels[0, rank()], None])
    after = model.get_layer("unused").get_weights()
    assert digest(before) == digest(after)
    assert_same_bits_on_all_ranks(model.get_weights())
    assert int(model.optimizer.iterations) == 2


@pytest.mark.workers(2)
def test_embeddings_equal_the_dense_reference(world_size):
    words, steps = 40, 4
    rng = np.random.default_rng(0)
    # Few words, so that each comes several times on one worker and on both.
    tokens = rng.integers(0, words // 2, (steps, world_size, 8, 5))
    targets = rng.standard_normal((steps, world_size, 8, 5, 3)).astype(np.float32)
    table = rng.standard_normal((words, 3)).astype(np.float32)

    embedding = keras.Sequential([keras.Input((5,)), keras.layers.Embedding(words, 3)])
    embedding.set_weights([table])
    embedding.compile(hvd.DistributedOptimizer(adam(), OneBit()), "mse")
    dense = keras.Sequential(
        [keras.Input((5, words)), keras.layers.Dense(3, use_bias=False)],
    )
    dense.set_weights([table])
    dense.compile(adam(), "mse", run_eagerly=True)
    one_hot = np.eye(words, dtype=np.float32)[tokens]
    for step in range(steps):
        embedding.train_on_batch(tokens[step, rank()], targets[step, rank()])
        dense.train_on_batch(one_hot[step].reshape(-1, 5, words), targets[step].reshape(-1, 5, 3))
    assert_close(embedding.get_weights(), dense.get_weights())
    assert_same_bits_on_all_ranks(embedding.get_weights())


@pytest.fixture
def mixed_float16():
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


@pytest.mark.workers(2)
@pytest.mark.parametrize("on_nonfinite", ["skip", *nightly("error")])
def test_all_ranks_skip_a_step_that_overflows_on_one(mixed_float16, on_nonfinite, world_size):
    scaled = keras.optimizers.LossScaleOptimizer(adam(), initial_scale=1024)
    optimizer = hvd.DistributedOptimizer(scaled, OneBit(), on_nonfinite=on_nonfinite)
    model = compiled(make_model(), optimizer)
    x, labels = (array[:, rank()] for array in make_data(STEPS, world_size))
    digests, scales = [], []
    for step in range(STEPS):
        overflow = 1e30 if (step, rank()) == (2, 1) else 1.0
        model.train_on_batch(overflow * x[step], labels[step])
        digests.append(digest(model.get_weights()))
        scales.append(float(optimizer.dynamic_scale))
    assert scales == [1024, 1024, 512, 512, 512, 512]
    assert digests[2] == digests[1]
    assert len(set(digests)) == STEPS - 1
    assert int(optimizer.iterations) == STEPS - 1
    assert_same_bits_on_all_ranks(model.get_weights())


@pytest.mark.workers(2)
def test_xla_is_refused_where_gradients_are_exchanged(world_size):
    model = compiled(make_model(), hvd.DistributedOptimizer(sgd(), OneBit()), jit_compile=True)
    with pytest.raises(ValueError, match="Compile it with jit_compile=False"):
        fit_part(model, 1, world_size)


@pytest.mark.workers(2)
def test_mixed_float16_needs_a_loss_scale_optimizer(request, world_size):
    made_before = hvd.DistributedOptimizer(adam(), OneBit())
    request.getfixturevalue("mixed_float16")
    message = r"DistributedOptimizer\(keras.optimizers.LossScale"
    with pytest.raises(ValueError, match=message):
        hvd.DistributedOptimizer(adam(), OneBit())
    with pytest.raises(ValueError, match=message):
        fit_part(compiled(make_model(), made_before), 1, world_size)


@pytest.mark.workers(2)
@pytest.mark.parametrize(
    "policy, name",
    [
        ("bfloat16", "warm_start_adam"),
        *nightly_rows(("mixed_bfloat16", "one_bit_adam"), ("bfloat16", "full_precision_adam")),
    ],
)
def test_bfloat16(policy, name, world_size):
    keras.config.set_dtype_policy(policy)
    try:
        optimizer, exchange = EXCHANGES[name]()
        model = compiled(make_model(), hvd.DistributedOptimizer(optimizer, exchange))
        callbacks = [hvd.BroadcastGlobalVariablesCallback()]
        losses = fit_part(model, STEPS, world_size, epochs=4, callbacks=callbacks).history["loss"]
    finally:
        keras.config.set_dtype_policy("float32")
    assert losses[-1] < losses[0]
    assert_same_bits_on_all_ranks([weight.astype(np.float32) for weight in model.get_weights()])


@pytest.mark.workers(2)
@pytest.mark.parametrize("name", ["onebit", *nightly("none")])
def test_compression_is_another_name_for_an_exchange(name, world_size):
    exchange = {"none": FullPrecision(), "onebit": OneBit()}[name]
    compression = getattr(hvd.Compression, name)
    by_name, by_exchange = (
        trained(optimizer, world_size, run_eagerly=True)
        for optimizer in (
            hvd.DistributedOptimizer(adam(), compression=compression),
            hvd.DistributedOptimizer(adam(), exchange),
        )
    )
    assert digest(by_name) == digest(by_exchange)


@pytest.mark.workers(2)
def test_horovods_fp16_sends_half_the_bytes(world_size):
    import horovod.tensorflow as stock

    optimizers = [
        hvd.DistributedOptimizer(sgd(), compression=compression)
        for compression in (stock.Compression.fp16, hvd.Compression.none)
    ]
    half, full = (trained(optimizer, world_size) for optimizer in optimizers)
    assert_same_bits_on_all_ranks(half)
    assert digest(half) != digest(full)
    assert_close(half, full, tolerance=1e-3)
    half_bytes, full_bytes = (
        sum(exchange.bytes_sent() for exchange in optimizer.gradient_exchange.built)
        for optimizer in optimizers
    )
    assert half_bytes == pytest.approx(full_bytes / 2, rel=0.01)


@pytest.mark.workers(2)
@pytest.mark.parametrize("make", [adam, *nightly(lambda: sgd(momentum=0.9))], ids=["adam", "sgd"])
def test_a_built_optimizer_keeps_its_state(make, world_size):
    model = reference(make_model(), make())
    fit_whole(model, STEPS, world_size)
    arrays = arrays_of(model)
    compiled(model, hvd.DistributedOptimizer(model.optimizer, FullPrecision()))
    assert digest(arrays_of(model)) == digest(arrays)
    fit_part(model, STEPS, world_size)

    def train_twice_as_long():
        expected = reference(make_model(), make())
        fit_whole(expected, STEPS, world_size, epochs=2)
        return arrays_of(expected)

    assert_close(arrays_of(model), from_first(train_twice_as_long), 1e-4)


LOAD_WITHOUT_THIS_PACKAGE = """
import sys
sys.modules["tf_onebit"] = sys.modules["horovod"] = None
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
arrays = {str(i): v for i, v in enumerate([*model.variables, *model.optimizer.variables])}
np.savez(sys.argv[2], **arrays)
model.fit(np.ones([8, 64]), np.zeros(8), verbose=0)
print(type(model.optimizer).__module__, type(model.optimizer).__name__)
"""


@pytest.mark.workers(2)
def test_a_saved_model_loads_without_this_package(tmp_path, world_size):
    optimizer = hvd.DistributedOptimizer(adam(clipnorm=1.0), OneBit())
    model = compiled(make_model(), optimizer)
    fit_part(model, STEPS, world_size)
    if rank() == 0:
        model.save(tmp_path / "model.keras")
        loader = subprocess.run(
            [sys.executable, "-c", LOAD_WITHOUT_THIS_PACKAGE, "model.keras", "arrays.npz"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert loader.returncode == 0, loader.stderr
        assert loader.stdout.split()[-1] == "Adam"
        assert loader.stdout.split()[-2].startswith("keras.")
        with np.load(tmp_path / "arrays.npz") as loaded:
            assert digest(loaded.values()) == digest(arrays_of(model))
    gather("saved")


@pytest.mark.workers(2)
def test_an_optimizer_made_on_one_rank_only_does_no_harm(world_size):
    if rank() == 0:
        hvd.DistributedOptimizer(adam(), OneBit())
    trained(hvd.DistributedOptimizer(adam(), OneBit()), world_size, steps=2)


def two_losses(variables, optimizer, x):
    """Returns two gradients of the same variables, which do not depend on each other."""
    gradients = [[tf.fill(v.shape, tf.reduce_mean(x) * k) for v in variables] for k in (1.0, 3.0)]
    first, second = gradients
    return lambda: optimizer.apply(first, variables), lambda: optimizer.apply(second, variables)


WAYS_TO_APPLY_TWICE = {
    "one_after_another": lambda first, second, x: (first(), second()),
    "in_branches": lambda first, second, x: tf.cond(
        tf.reduce_sum(x) > -1.0, lambda: (first(), second(), True)[-1], lambda: False
    ),
}


@pytest.mark.workers(2)
@pytest.mark.parametrize("way", ["in_branches", *nightly("one_after_another")])
def test_an_optimizer_applies_twice_in_one_step(way, world_size):
    """Horovod takes a name for one collective at a time, and both have the same names."""
    variables = [keras.Variable(np.zeros([64, 32], np.float32)) for _ in range(6)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), FullPrecision())
    optimizer.build(variables)

    @tf.function
    def step(x):
        WAYS_TO_APPLY_TWICE[way](*two_losses(variables, optimizer, x), x)

    for _ in range(20):
        step(tf.fill([4], float(rank())))
    assert optimizer.iterations.numpy() == 40
    for variable in variables:
        np.testing.assert_allclose(variable.numpy(), -20 * (1 + 3) * 0.5)
