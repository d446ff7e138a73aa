"""Fragments of a model that synchronize in turn while real workers train on."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.parallel.test_block_momentum import ETA, Worker, assert_close, batches_of
from tests.support.bits import assert_same_bits
from tests.support.blocks import Lockstep
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import assert_same_bits_on_all_ranks, gather, rank
from tests.support.training import make_model, with_layer
from tf_onebit import FullPrecision, OneBit, Threshold
from tf_onebit.callbacks import BlockMomentum, Monitor

PERIOD, FRAGMENTS, OVERLAP = 4, 2, 1

normalized_model = with_layer(lambda: keras.layers.BatchNormalization(momentum=0.5))


def sgd():
    return keras.optimizers.SGD(0.05)


def momentum():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def blocks(fragments=FRAGMENTS, overlap=OVERLAP, **arguments):
    return BlockMomentum(PERIOD, ETA, fragments=fragments, overlap=overlap, **arguments)


def trained_in_lockstep(make, optimizer, batches, epochs=1, **arguments):
    reference = Lockstep(make, optimizer, len(batches), sync_period=PERIOD, **arguments)
    for _ in range(epochs):
        arrays = reference.epoch_of_fragments(batches, PERIOD)
    return arrays


@pytest.mark.workers(2, *nightly(3), engines=["horovod", "tensorflow"])
@pytest.mark.parametrize(
    "make, optimizer, fragments, overlap",
    [
        (normalized_model, keras.optimizers.Adam, FRAGMENTS, PERIOD - 1),
        *nightly_rows(
            (make_model, sgd, 3, 0), (make_model, momentum, 1, 4), (make_model, sgd, 2, 1)
        ),
    ],
)
def test_workers_train_as_in_one_process(make, optimizer, fragments, overlap, engine, world_size):
    """The data of the last worker end first, while the others have fragments under way."""
    counts = [11] * (world_size - 1) + [6]
    if engine == "tensorflow":
        counts[-1] = 10  # see `test_data.py` for uneven data in a strategy
    batches = batches_of(*counts)
    worker = Worker(engine, make, optimizer)
    worker.fit(batches, block_momentum=blocks(fragments, overlap), epochs=2)
    assert_same_bits_on_all_ranks(worker.arrays)
    options = {"fragments": fragments, "overlap": overlap}
    assert_close(worker.arrays, trained_in_lockstep(make, optimizer, batches, 2, **options))


def model_in_float64():
    model = make_model()
    return keras.models.clone_model(
        model,
        clone_function=lambda layer: layer.from_config(layer.get_config() | {"dtype": "float64"}),
    )


@pytest.mark.workers(2, engines=["horovod", *nightly("tensorflow")])
@pytest.mark.parametrize("make", [model_in_float64, *nightly(make_model)])
def test_two_workers_have_the_bits_of_one_process(make, engine, world_size):
    batches, overlap = batches_of(11, 10), PERIOD - 1
    worker = Worker(engine, make, keras.optimizers.Adam)
    worker.fit(batches, block_momentum=blocks(overlap=overlap), epochs=2)
    options = {"fragments": FRAGMENTS, "overlap": overlap}
    expected = trained_in_lockstep(make, keras.optimizers.Adam, batches, 2, **options)
    assert_same_bits(worker.arrays, expected)


EXCHANGES = [
    Threshold(target_density=0.05, selection="top_k", residual_decay=0.95),
    OneBit(min_size=1),
    Threshold(target_density=0.05),
    FullPrecision(),
]


@pytest.mark.workers(2)
@pytest.mark.parametrize("exchange", [EXCHANGES[0], *nightly(*EXCHANGES[1:])])
def test_fragments_under_way_are_exchanged_with_any_exchange(exchange, world_size):
    batches, monitor = batches_of(8, 8), Monitor()
    worker = Worker("horovod", make_model, sgd)
    late = blocks(exchange=exchange)
    history = worker.fit(batches, [monitor], block_momentum=late, epochs=3)
    assert_same_bits_on_all_ranks(worker.arrays)
    options = {"fragments": FRAGMENTS, "overlap": OVERLAP, "exchange": exchange}
    assert_close(worker.arrays, trained_in_lockstep(make_model, sgd, batches, 3, **options))
    # A weight is sent two or three times in an epoch of eight steps.
    full = 4 * 3 * worker.model.count_params() / 8
    assert history["bytes_sent"][-1] < (1.01 if exchange is EXCHANGES[-1] else 0.5) * full
    if exchange is EXCHANGES[0]:  # which sends what it is asked to
        assert history["density"][-1] == pytest.approx(exchange.target_density, rel=0.05)
    assert 0 < monitor._times.read(batches_per_update=1)["exchange/synchronization_seconds"] < 10


@pytest.mark.workers(2)
@pytest.mark.parametrize("batches_of_second", [8, 1])
def test_what_is_not_finite_while_workers_train_on_is_an_error_on_every_rank(
    batches_of_second, world_size
):
    """A second fragment is then under way, but not yet on a worker without data."""
    worker = Worker("horovod", make_model, sgd)

    def spoil(batch, logs):
        if rank() == 0 and batch == 1:
            kernel = worker.model.layers[0].kernel
            kernel.assign(np.full(kernel.shape, np.nan))

    spoiling = keras.callbacks.LambdaCallback(on_train_batch_end=spoil)
    late = blocks(overlap=PERIOD)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Rank 0 met .*first/kernel"):
        worker.fit(batches_of(8, batches_of_second), before=[spoiling], block_momentum=late)
    assert_same_bits_on_all_ranks(worker.arrays)
    worker.fit(batches_of(8, 8), block_momentum=late)
    assert_same_bits_on_all_ranks(worker.arrays)
    assert all(np.isfinite(array).all() for array in worker.arrays)


@pytest.mark.workers(2)
def test_fit_goes_on_after_workers_were_interrupted_at_different_steps(world_size):
    """One of them has then begun more fragments than the other."""
    worker, late = Worker("horovod", make_model, sgd), blocks(overlap=PERIOD)

    def interrupt(batch, logs):
        if batch == 3 + 2 * rank():
            raise KeyboardInterrupt

    interrupting = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        worker.fit(batches_of(8, 8), [interrupting], block_momentum=late)
    worker.fit(batches_of(8, 8), block_momentum=late)
    assert_same_bits_on_all_ranks(worker.arrays)


@pytest.mark.workers(2)
def test_weights_assigned_on_some_workers_are_an_error_while_others_train_on(world_size):
    """The data of the second worker have ended when the first begins to end a block."""
    worker = Worker("horovod", make_model, sgd)

    def assign(epoch, logs):
        if rank() == 0:
            kernel = worker.model.layers[0].kernel
            kernel.assign(np.ones(kernel.shape))

    assigning = keras.callbacks.LambdaCallback(on_epoch_end=assign)
    batches = batches_of(8, 2)
    with pytest.raises(ValueError, match="must be assigned on all of them or on none"):
        worker.fit(batches, [assigning], block_momentum=blocks(1, PERIOD), epochs=2)


@pytest.mark.workers(2)
def test_saving_inside_an_epoch_shows_the_global_model_while_a_fragment_is_under_way(
    tmp_path, world_size
):
    path = tmp_path / "{batch}.weights.h5"
    saving = keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=3)
    batches = batches_of(8, 8)
    worker = Worker("horovod", make_model, sgd)
    worker.fit(batches, [saving] if rank() == 0 else [], block_momentum=blocks())
    assert_same_bits_on_all_ranks(worker.arrays)
    assert gather(sorted(p.name for p in tmp_path.iterdir()))[0] == ["3.weights.h5", "6.weights.h5"]
    options = {"fragments": FRAGMENTS, "overlap": OVERLAP}
    assert_close(worker.arrays, trained_in_lockstep(make_model, sgd, batches, **options))


@pytest.mark.workers(2, engines=["horovod", "tensorflow"])
@pytest.mark.parametrize("overlap", [3, *nightly(0)])
def test_an_outer_optimizer_changes_the_model_on_all_workers(overlap, engine, world_size):
    outer, batches = keras.optimizers.Adam(0.01), batches_of(11, 11)
    options = {"fragments": FRAGMENTS, "overlap": overlap, "outer_optimizer": outer}
    worker = Worker(engine, make_model, keras.optimizers.Adam)
    worker.fit(batches, block_momentum=BlockMomentum(PERIOD, **options), epochs=2)
    assert_same_bits_on_all_ranks(worker.arrays)
    expected = trained_in_lockstep(make_model, keras.optimizers.Adam, batches, 2, **options)
    assert_close(worker.arrays, expected)


@pytest.mark.workers(2)
def test_more_fragments_than_layers_are_an_error_on_every_rank(world_size):
    worker = Worker("horovod", make_model, sgd)
    with pytest.raises(ValueError, match="fragments=4 for a model of 3 such layers"):
        worker.fit(batches_of(1, 1), block_momentum=blocks(4, 0))


@pytest.mark.workers(2)
def test_a_worker_that_waits_takes_part_in_blocks_without_steps(world_size):
    """Their gradients are not finite, so the loss scale skips the steps."""
    adam = keras.optimizers.Adam(0.01)
    worker = Worker("horovod", make_model, lambda: keras.optimizers.LossScaleOptimizer(adam))
    begin = worker.arrays
    batches = [[(np.inf * x, labels) for x, labels in mine] for mine in batches_of(1, 4)]
    worker.fit(batches, block_momentum=BlockMomentum(1, ETA, overlap=1))
    assert int(adam.iterations) == 0
    assert_same_bits(worker.arrays, begin)
