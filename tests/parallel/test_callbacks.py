"""Callbacks in `model.fit`."""

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.nightly import nightly
from tests.support.ranks import (
    assert_same_bits_on_all_ranks,
    count_bytes,
    digest,
    gather,
    rank,
)
from tests.support.scalars import scalars_in, scalars_named
from tests.support.training import (
    INPUTS,
    compiled,
    fit_part,
    make_data,
    make_model,
)
from tests.support.two_optimizers import TwoOptimizers
from tf_onebit import FullPrecision, OneBit, WarmStart
from tf_onebit.callbacks import BackupAndRestore, Monitor
from tf_onebit.collectives import horovod
from tf_onebit.exchanges import Bucketed, GradientSpec


class AfterFirstBatch(keras.callbacks.Callback):
    """A callback that keeps the bits of weights and optimizer after one batch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            variables = self.model.weights + self.model.optimizer.variables
            self.digest = digest(variables)


@pytest.mark.workers(3)
def test_broadcast_of_weights_and_optimizer_state(world_size):
    model = make_model(seed=rank())
    root = world_size - 1
    roots_weights = gather(model.get_weights())[root]
    adam, exchange = keras.optimizers.Adam(0.01 * (1 + rank())), OneBit(moments="after")
    optimizer = hvd.DistributedOptimizer(adam, exchange)
    compiled(model, optimizer)
    optimizer.build(model.trainable_variables)
    for variable in optimizer.variables:
        variable.assign(tf.ones_like(variable) * (rank() + variable.numpy()))
    roots_state = gather([variable.numpy() for variable in optimizer.variables])[root]

    callback = hvd.BroadcastGlobalVariablesCallback(root)
    callback.set_model(model)
    callback.on_train_begin()
    assert digest(model.get_weights()) == digest(roots_weights)
    assert digest(optimizer.variables) == digest(roots_state)
    fit_part(model, 2, world_size)
    assert_same_bits_on_all_ranks([*model.get_weights(), *optimizer.variables])


@pytest.mark.workers(2)
@pytest.mark.parametrize("wrapper", [keras.optimizers.LossScaleOptimizer, *nightly(lambda o: o)])
def test_broadcast_within_fit(wrapper, world_size):
    adam, exchange = wrapper(keras.optimizers.Adam(0.01)), OneBit(moments="after")
    optimizer = hvd.DistributedOptimizer(adam, exchange)
    model = compiled(make_model(seed=rank()), optimizer)
    fit_part(model, 3, world_size, callbacks=[hvd.BroadcastGlobalVariablesCallback(0)])
    assert_same_bits_on_all_ranks([*model.get_weights(), *model.optimizer.variables])


class Unbuilt(keras.Model):
    """A model that makes its variables in its first call."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(64, activation="relu")
        self.last = keras.layers.Dense(10)

    def call(self, x):
        return self.last(self.hidden(x))


@pytest.mark.workers(2)
@pytest.mark.parametrize("run_eagerly", [False, *nightly(True)], ids=["graph", "eager"])
def test_broadcast_of_a_model_that_is_not_built(run_eagerly, world_size):
    keras.utils.set_random_seed(rank())
    adam, exchange = keras.optimizers.Adam(0.01), OneBit(moments="after")
    optimizer = hvd.DistributedOptimizer(adam, exchange)
    model = compiled(Unbuilt(), optimizer, run_eagerly=run_eagerly)
    first = AfterFirstBatch()
    fit_part(model, 3, world_size, callbacks=[hvd.BroadcastGlobalVariablesCallback(0), first])
    assert len(set(gather(first.digest))) == 1
    assert_same_bits_on_all_ranks([*model.get_weights(), *model.optimizer.variables])


@pytest.mark.workers(2)
def test_dropout_differs_between_ranks_after_the_broadcast(world_size):
    keras.utils.set_random_seed(rank())
    dropout = keras.layers.Dropout(0.5, seed=rank())
    model = keras.Sequential([keras.Input((INPUTS,)), keras.layers.Dense(64), dropout])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), OneBit()), "mse")
    callback = hvd.BroadcastGlobalVariablesCallback(0)
    callback.set_model(model)
    callback.on_train_begin()
    assert_same_bits_on_all_ranks(model.get_weights())
    masks = gather(digest([dropout(np.ones([4, 64], np.float32), training=True)]))
    assert len(set(masks)) == world_size


class Constant(keras.metrics.Metric):
    """A metric with another value on each rank."""

    def __init__(self):
        super().__init__(name="constant")

    def update_state(self, *arguments, **options):
        pass

    def result(self):
        return 10.0 * rank()


@pytest.mark.workers(2)
def test_metrics_that_differ_are_an_error_on_every_rank(world_size):
    callback = hvd.MetricAverageCallback()
    with pytest.raises(ValueError, match="rank 0 has metric 0 = loss, rank 1 has metric 0 = val_"):
        callback.on_epoch_end(0, {"loss" if rank() == 0 else "val_loss": 1.0})


@pytest.mark.workers(3)
def test_metrics_are_averaged_for_the_callbacks_that_follow(world_size):
    seen = []
    after = keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: seen.append(dict(logs)))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), FullPrecision())
    model = compiled(make_model(), optimizer, metrics=[Constant()])
    x, labels = (array[0, rank()] for array in make_data(1, world_size))
    history = fit_part(
        model,
        2,
        world_size,
        epochs=2,
        validation_data=(x, labels),
        callbacks=[hvd.MetricAverageCallback(), after],
    ).history
    mean = 10.0 * (world_size - 1) / 2
    assert [logs["constant"] for logs in seen] == [mean, mean]
    assert history["val_constant"] == [mean, mean]
    assert len({str(h) for h in gather(history)}) == 1


class LogsOfBatches(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(dict(logs))


def expected_bytes(template, model, world_size):
    """Returns the bytes of one exchange of the model's gradients, counted in the messages."""
    specs = [GradientSpec(v.path, tuple(v.shape), "float32") for v in model.trainable_variables]
    exchange = Bucketed(template)
    exchange.build(specs, rank(), world_size, "expected_bytes")
    gradients = [tf.ones(spec.shape) for spec in specs]
    sent_bytes = []
    horovod.run(count_bytes(exchange.run(gradients), world_size, sent_bytes))
    return sum(sent_bytes)


def residual_norm(optimizer):
    residuals = [
        np.asarray(residual, np.float64)
        for exchange in optimizer.gradient_exchange.built
        for one_bit in exchange.submodules
        if isinstance(one_bit, OneBit) and hasattr(one_bit, "worker_residual")
        for residual in (one_bit.worker_residual, one_bit.shard_residual)
    ]
    return math.sqrt(sum(np.sum(residual**2) for residual in residuals))


@pytest.mark.workers(3)
def test_monitor_shows_what_was_sent_and_what_was_not(world_size, tmp_path):
    batches = LogsOfBatches()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), OneBit(bucket_bytes=8192))
    model = compiled(make_model(), optimizer)
    monitor = Monitor(update_freq=1, log_dir=tmp_path)
    history = fit_part(model, 4, world_size, epochs=2, callbacks=[monitor, batches]).history

    of_updates = OneBit(bucket_bytes=8192, moments="local")
    bytes_sent = expected_bytes(of_updates, model, world_size)
    assert [logs["bytes_sent"] for logs in batches.logs] == [bytes_sent] * 8
    assert history["bytes_sent"] == [bytes_sent] * 2
    full_bytes = 2 * (world_size - 1) * 4 * model.count_params() // world_size
    assert history["compression_ratio"] == [pytest.approx(full_bytes / bytes_sent)] * 2
    assert history["residual_norm"][-1] == pytest.approx(residual_norm(optimizer), rel=1e-4)
    assert history["residual_norm"][-1] > 0
    assert {"loss", *monitor._latest} <= set(batches.logs[0])

    folder = tmp_path / str(rank())
    written = [scalar for scalar in scalars_in(folder) if scalar[1] == "exchange/bytes_sent"]
    assert written == [(step, "exchange/bytes_sent", bytes_sent) for step in range(1, 9)]
    last_norm = scalars_named("exchange/residual_norm", folder)[-1]
    assert last_norm == pytest.approx(history["residual_norm"][-1])
    assert len(scalars_named("exchange/compression_ratio", folder)) == 8


@pytest.mark.workers(2)
def test_monitor_times_the_exchange_and_changes_no_bit(world_size, tmp_path):
    monitor = Monitor(2, tmp_path / "logs", timeline=tmp_path / "trace.json")
    weights = []
    for callbacks in ([], [monitor]):
        exchange = WarmStart(OneBit(bucket_bytes=8192), steps=2)
        model = compiled(
            make_model(), hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), exchange)
        )
        fit_part(model, 9, world_size, callbacks=callbacks)
        weights.append(digest(model.get_weights()))
    assert len(set(weights)) == 1

    scalars = {name: value for _, name, value in scalars_in(tmp_path / "logs" / str(rank()))}
    assert 0 < scalars["exchange/work_seconds"] < scalars["exchange/seconds"]
    assert 0 <= scalars["exchange/hidden_share"] < 1
    assert scalars["exchange/seconds"] < scalars["step/seconds"]
    norms = {name: value for name, value in scalars.items() if name.startswith("variables/")}
    first, second, _ = model.trainable_variables  # the last kernel is small
    assert set(norms) == {f"variables/residual_norm/{kernel.path}" for kernel in (first, second)}
    assert math.hypot(*norms.values()) == pytest.approx(residual_norm(model.optimizer), rel=1e-4)

    events = json.loads((tmp_path / f"trace.{rank()}.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {rank()}
    steps = [event for event in spans if event["name"] == "STEP"]
    buckets = len(model.optimizer.gradient_exchange.built[0].buckets)
    assert len(steps) == 8 and buckets > 1
    for step in steps:
        begin, end = step["ts"], step["ts"] + step["dur"]
        inside = [e for e in spans if begin <= e["ts"] and e["ts"] + e["dur"] <= end]
        names = [event["name"] for event in inside]
        assert names.count("ENCODE") == names.count("DECODE") == buckets
        assert names.count("ALLTOALL") == (0 if step is steps[0] else buckets)


@pytest.mark.workers(2)
def test_monitor_counts_what_all_optimizers_of_a_model_send(world_size):
    model = TwoOptimizers([keras.Input([64]), keras.layers.Dense(64)])
    model.compile(
        *(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), OneBit(min_size=0)) for _ in range(2))
    )
    data = tf.data.Dataset.from_tensors((tf.ones([4, 64]), tf.zeros([4, 64]))).repeat(4)
    history = model.fit(data, verbose=0, callbacks=[Monitor(update_freq=1)]).history
    sent = [optimizer.gradient_exchange.built[0].bytes_sent() for optimizer in model.optimizers]
    assert min(sent) > 0 and history["bytes_sent"] == [sum(sent)]
    assert history["residual_norm"][0] > 0


@pytest.mark.workers(2)
def test_monitor_shows_the_warm_start(world_size):
    batches = LogsOfBatches()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), WarmStart(OneBit(), steps=3))
    model = compiled(make_model(), optimizer)
    fit_part(model, 5, world_size, callbacks=[Monitor(update_freq=1), batches])
    warm, cold = (expected_bytes(e, model, world_size) for e in (FullPrecision(), OneBit()))
    assert [logs["bytes_sent"] for logs in batches.logs] == [warm] * 3 + [cold] * 2
    norms = [logs["residual_norm"] for logs in batches.logs]
    assert norms[:3] == [0.0] * 3
    assert min(norms[3:]) > 0


@pytest.mark.nightly
@pytest.mark.workers(2)
def test_monitor_reads_every_nth_batch(world_size):
    batches = LogsOfBatches()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), OneBit())
    model = compiled(make_model(), optimizer)
    fit_part(model, 6, world_size, callbacks=[Monitor(update_freq=3), batches])
    norms = [logs["residual_norm"] for logs in batches.logs]
    assert len(set(norms[:3])) == len(set(norms[3:])) == 1
    assert norms[0] != norms[3]


@pytest.mark.workers(2)
def test_monitor_counts_the_rows_of_embeddings(world_size):
    batches = LogsOfBatches()
    model = keras.Sequential([keras.Input((5,)), keras.layers.Embedding(100, 4)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), OneBit()), "mse")
    x = np.array([[0, 1, 2, 3, 3], [4, 5, 6, 6, 6]] * 2)
    callbacks = [Monitor(update_freq=1), batches]
    y = np.zeros([4, 5, 4])
    model.fit(x, y, batch_size=2, verbose=0, callbacks=callbacks, shuffle=False)
    rows, value_bytes, index_bytes, flag_bytes = 7, 4 * 4, 4, 4
    sent = (world_size - 1) * (rows * (value_bytes + index_bytes) + flag_bytes)
    assert [logs["bytes_sent"] for logs in batches.logs] == [sent, sent]


@pytest.mark.workers(2)
def test_monitor_needs_an_optimizer_that_exchanges(world_size):
    model = compiled(make_model(), keras.optimizers.SGD(0.01))
    with pytest.raises(ValueError, match="Monitor needs an optimizer that exchanges gradients"):
        fit_part(model, 1, world_size, callbacks=[Monitor()])


@pytest.mark.workers(2)
def test_directory_that_is_not_shared_is_refused(tmp_path, world_size):
    model = compiled(make_model(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    directory = tmp_path / str(rank())
    message = f"All workers must use the same directory.*Received: directory='.*/{rank()}'"
    with pytest.raises(ValueError, match=message):
        fit_part(model, 2, world_size, callbacks=[BackupAndRestore(directory, save_freq=1)])


@pytest.mark.workers(2)
def test_workers_that_no_optimizer_connects_are_refused(tmp_path, world_size):
    model = compiled(make_model(), keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="Received: 2 workers of Horovod, and a model whose"):
        fit_part(model, 1, world_size, callbacks=[BackupAndRestore(tmp_path)])


@pytest.mark.workers(2)
def test_broadcast_of_all_optimizers_of_a_model(world_size):
    keras.utils.set_random_seed(rank())
    model = TwoOptimizers([keras.Input([8]), keras.layers.Dense(4)])
    model.compile(
        *(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), FullPrecision()) for _ in range(2))
    )
    for optimizer, variable in zip(model.optimizers, model.trainable_variables, strict=True):
        optimizer.build([variable])
        for state in optimizer.variables:  # as a checkpoint would, on one worker
            state.assign(tf.ones_like(state) * (1 + rank()))
    data = tf.data.Dataset.from_tensors((tf.ones([4, 8]), tf.zeros([4, 4]))).repeat(2)
    model.fit(data, verbose=0, callbacks=[hvd.BroadcastGlobalVariablesCallback(0)])
    states = [v for optimizer in model.optimizers for v in optimizer.variables]
    assert [int(o.iterations.numpy()) for o in model.optimizers] == [3, 3]
    assert_same_bits_on_all_ranks([*model.get_weights(), *map(np.array, states)])


@pytest.mark.workers(2)
def test_broadcast_of_a_model_without_optimizer(world_size):
    keras.utils.set_random_seed(rank())
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
    model.compile(optimizer=None, loss="mse")
    callback = hvd.BroadcastGlobalVariablesCallback(0)
    callback.set_model(model)
    callback.on_train_begin()
    assert_same_bits_on_all_ranks(model.get_weights())
