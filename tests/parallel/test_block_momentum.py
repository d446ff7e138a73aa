"""Block momentum in `model.fit` of real workers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
from tests.support.blocks import Lockstep
from tests.support.in_scope import in_scope, sgd
from tests.support.nightly import nightly
from tests.support.ranks import assert_same_bits_on_all_ranks, gather, rank
from tests.support.training import compiled, make_data, make_model, with_layer
from tests.support.two_optimizers import Gan
from tf_onebit import Local, OneBit
from tf_onebit._bmuf.connections import synchronization_of
from tf_onebit.callbacks import BlockMomentum, Monitor

PERIOD = 3
ETA = 0.5

horovod_first = pytest.mark.workers(2, engines=["horovod", *nightly("tensorflow")])
normalized_model = with_layer(lambda: keras.layers.BatchNormalization(momentum=0.5))


def adam():
    return tf_onebit.optimizers.Adam(0.01, beta_1=0.5)


class Worker:
    """This worker, with a model that is trained apart.

    Args:
        engine: "horovod" or "tensorflow".
        make: function that makes a model.
        optimizer: function that makes an optimizer.
    """

    def __init__(self, engine, make=make_model, optimizer=adam, exchange=None):
        self.strategy = None
        exchange = exchange or Local()
        if engine == "horovod":
            import tf_onebit.horovod as hvd

            self.model = compiled(make(), hvd.DistributedOptimizer(optimizer(), exchange=exchange))
        else:
            self.strategy = tf_onebit.distribute.MultiWorkerMirroredStrategy(exchange)
            self.model = in_scope(make=make, optimizer=optimizer, strategy=self.strategy)

    def fit(self, batches, callbacks=(), block_momentum=None, before=(), **arguments):
        """Trains on this worker's part of lists of batches. Callbacks in `before` come first."""
        data = self.distributed(batches)
        block_momentum = block_momentum or BlockMomentum(PERIOD, ETA)
        callbacks = [*before, block_momentum, *callbacks]
        return self.model.fit(data, callbacks=callbacks, verbose=0, **arguments).history

    def distributed(self, batches):
        """Returns this worker's part of the data, with unknown length."""
        mine = batches[rank()]
        x, labels = (np.stack(part) for part in zip(*(mine or batches[0]), strict=True))
        dataset = tf.data.Dataset.from_tensor_slices((x, labels)).filter(lambda *_: True)
        dataset = dataset.take(len(mine))
        if self.strategy is None:
            return dataset
        return self.strategy.distribute_datasets_from_function(lambda _: dataset)

    @property
    def arrays(self):
        return [np.array(v) for v in self.model.variables]


def batches_of(*counts):
    """Returns a list of batches for each worker, with these numbers of batches."""
    x, labels = make_data(max(counts), len(counts))
    return [
        [(x[step, worker], labels[step, worker]) for step in range(count)]
        for worker, count in enumerate(counts)
    ]


def assert_close(arrays, others):
    for array, other in zip(arrays, others, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-6)


def trained_in_lockstep(make, optimizer, *epochs, **arguments):
    """Returns the final arrays of workers in one process, after epochs of batches by worker."""
    reference = Lockstep(make, optimizer, **arguments)
    return [reference.epoch(batches, PERIOD) for batches in epochs][-1]


@horovod_first
def test_workers_train_as_in_one_process(tmp_path, engine, world_size):
    """All begin with the weights of worker 0, and the data of worker 1 end first, unannounced."""
    batches = batches_of(7, 4)
    worker = Worker(engine, lambda: with_weights_of_its_own(normalized_model()))
    worker.model.optimizer.iterations.assign(5 * rank())
    validation = batches[0][0]
    callbacks = []
    if rank() == 0:  # after the second batch of a block
        path = tmp_path / "{batch}.weights.h5"
        saving = keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=5)
        callbacks.append(saving)
    history = worker.fit(batches, callbacks, epochs=2, validation_data=validation)
    assert_same_bits_on_all_ranks(worker.arrays)
    assert worker.model.optimizer.iterations.numpy() == 14

    reference = Lockstep(normalized_model, adam)
    for _ in range(2):
        expected = reference.epoch(batches, PERIOD)
    assert_close(worker.arrays, expected)
    steps = [model.optimizer.moment_steps for model in reference.models]
    assert [worker.model.optimizer.moment_steps] * 2 == pytest.approx(steps)
    model = reference.models[0]
    model.set_weights(worker.arrays)
    loss = model.evaluate(*validation, verbose=0)
    assert gather(round(history["val_loss"][-1], 5)) == [round(loss, 5)] * 2
    if rank() == 0:
        model.load_weights(tmp_path / "5.weights.h5", skip_mismatch=True)
        assert_close(list(map(np.array, model.variables)), reference.global_models[0])


def with_weights_of_its_own(model):
    for weight in model.trainable_variables:
        weight.assign_add(0.1 * rank() * np.ones(weight.shape))
    return model


@pytest.mark.nightly
@pytest.mark.workers(2)
@pytest.mark.parametrize("count", [1, *nightly(0)])
def test_a_worker_whose_data_have_ended_waits(count, world_size):
    batches = batches_of(8, count)
    worker = Worker("horovod", normalized_model, sgd(momentum=0.9))
    worker.fit(batches, epochs=2)
    assert_same_bits_on_all_ranks(worker.arrays)
    assert_close(
        worker.arrays, trained_in_lockstep(normalized_model, sgd(momentum=0.9), batches, batches)
    )


def make_gan(engine):
    """Returns a GAN on this worker, and a function that distributes its data."""
    keras.utils.set_random_seed(rank())  # each begins with weights of its own
    if engine == "horovod":
        import tf_onebit.horovod as hvd

        model = Gan(slow=True, critic_steps=2)
        make = (adam, sgd(momentum=0.9))
        model.compile(*(hvd.DistributedOptimizer(o(), exchange=Local()) for o in make))
        return model, lambda dataset: dataset
    strategy = tf_onebit.distribute.MultiWorkerMirroredStrategy(Local())
    with strategy.scope():
        model = Gan(slow=True, critic_steps=2)
        model.compile(adam(), sgd(momentum=0.9)())
    return model, lambda data: strategy.distribute_datasets_from_function(lambda _: data)


@pytest.mark.nightly
@horovod_first
@pytest.mark.parametrize("options", [{}, {"fragments": 2, "overlap": PERIOD}], ids=str)
def test_workers_agree_in_all_that_the_optimizers_of_a_gan_have_trained(
    options, engine, world_size
):
    model, distributed = make_gan(engine)
    kernels = [v for v in model.trainable_variables if v.name == "kernel"]
    initial = list(map(np.array, kernels))
    count = 5 - 2 * rank()
    real = np.random.default_rng(rank()).standard_normal([4 * count, 4]).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices(real).batch(4, drop_remainder=True)
    callbacks = [BlockMomentum(PERIOD, ETA, **options), Monitor()]
    data = distributed(data.filter(lambda _: True))
    history = model.fit(data, callbacks=callbacks, verbose=0).history
    assert history["bytes_sent"][0] > 0
    # All but the noise: every worker draws its own.
    variables = [v for v in model.variables if "seed" not in v.path]
    if not options:  # otherwise each worker keeps its moments
        variables += [v for o in (model.d_optimizer, model.g_optimizer) for v in o.variables]
    assert_same_bits_on_all_ranks([np.array(v) for v in variables])
    for before, kernel in zip(initial, kernels, strict=True):
        assert np.abs(kernel - before).max() > 1e-3, kernel.path
    iterations = [np.array(o.iterations) for o in (model.d_optimizer, model.g_optimizer)]
    assert iterations == [10, 5]
    assert not model.optimizer.iterations.numpy()


class Stop(keras.callbacks.Callback):
    """A callback that stops rank 1 in the middle of a block of the first epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if rank() == 1 and batch == 4:
            self.model.stop_training = True


@pytest.mark.workers(2)
@pytest.mark.parametrize("leaving", ["stops", *nightly("fewer epochs")])
def test_a_worker_that_leaves_lets_the_others_go_on(leaving, world_size):
    worker = Worker("horovod", optimizer=sgd())
    epochs = 1 if leaving == "fewer epochs" and rank() == 1 else 2
    callbacks = [Stop()] if leaving == "stops" else []
    history = worker.fit(batches_of(7, 7), callbacks, epochs=epochs)
    assert gather(len(history["loss"])) == [2, 1]
    assert_same_bits_on_all_ranks(worker.arrays)
    epochs = batches_of(7, 5 if leaving == "stops" else 7), batches_of(7, 0)
    assert_close(worker.arrays, trained_in_lockstep(make_model, sgd(), *epochs))


@pytest.mark.workers(2)
def test_blocks_that_are_exchanged_with_one_bit_leave_equal_replicas(world_size):
    worker = Worker("horovod", normalized_model)
    exchange = OneBit(min_size=1)
    history = worker.fit(
        batches_of(7, 7),
        [monitor := Monitor()],
        block_momentum=BlockMomentum(PERIOD, ETA, exchange=exchange),
        epochs=4,
    )
    # A bit per value and some levels, three times in seven steps.
    bytes_sent = history["bytes_sent"][-1]
    of_statistics = 4 * sum(v.size for v in map(np.array, worker.model.non_trainable_weights)) + 4
    of_weights = bytes_sent - of_statistics * 3 / 7
    assert history["compression_ratio"][-1] * bytes_sent / of_weights > 8 * 7 / 3
    assert history["residual_norm"][-1] > 0
    times = monitor._times.read(batches_per_update=1)
    assert 0 < times["exchange/synchronization_seconds"] < 10
    assert_same_bits_on_all_ranks(worker.arrays)
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    epochs = [batches_of(7, 7)] * 4
    own = OneBit(min_size=1)
    expected = trained_in_lockstep(normalized_model, adam, *epochs, exchange=own)
    assert_close(worker.arrays, expected)


@pytest.mark.nightly
@pytest.mark.workers(2)
def test_monitor_counts_the_moments_that_are_averaged(world_size):
    worker = Worker("horovod", optimizer=lambda: keras.optimizers.Adam(0.01))
    block_momentum = BlockMomentum(
        PERIOD, ETA, moment_correction="average", exchange=OneBit(min_size=1)
    )
    history = worker.fit(batches_of(PERIOD, PERIOD), [Monitor()], block_momentum)
    values = worker.model.count_params()
    of_moments = 4 * 2 * values + 4  # and a flag
    of_weights = PERIOD * history["bytes_sent"][-1] - of_moments
    assert 0 < of_weights < 4 * values / 8


DIFFERENCES = {
    "sync_period": lambda: BlockMomentum(3 + rank()),
    "block_momentum": lambda: BlockMomentum(block_momentum=0.25 * (1 + rank())),
    "exchange": lambda: BlockMomentum(exchange=OneBit() if rank() == 0 else None),
}
MESSAGES = {
    "sync_period": "rank 0 has sync_period of BlockMomentum = 3, rank 1 has .* = 4",
    "block_momentum": "rank 0 has block_momentum of BlockMomentum = 0.25, rank 1 has .* = 0.5",
    "exchange": "rank 0 has exchange of BlockMomentum = .*OneBit.*, rank 1 has .*FullPrecision",
}


@horovod_first
def test_settings_that_differ_are_an_error_on_every_rank(engine, world_size):
    worker = Worker(engine)
    for difference, make in DIFFERENCES.items():
        with pytest.raises(ValueError, match=MESSAGES[difference]):
            worker.fit(batches_of(1, 1), block_momentum=make())


@pytest.mark.nightly
@pytest.mark.workers(2)
def test_what_else_a_rank_has_made_does_not_matter(world_size):
    if rank() == 0:
        adam()  # Keras numbers their names
    worker = Worker("horovod")
    worker.fit(batches_of(4, 4))
    assert_same_bits_on_all_ranks(worker.arrays)


@pytest.mark.nightly
@pytest.mark.workers(2)
def test_workers_that_train_apart_may_use_xla(world_size):
    worker = Worker("horovod")
    worker.model.jit_compile = True
    worker.fit(batches_of(7, 7))
    assert_same_bits_on_all_ranks(worker.arrays)
    expected = trained_in_lockstep(make_model, adam, batches_of(7, 7))
    for array, other in zip(worker.arrays, expected, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-3, atol=1e-4)


@pytest.mark.workers(2)
def test_models_that_differ_are_an_error_on_every_rank(world_size):
    worker = Worker("horovod", lambda: make_model(units=32 + 16 * rank()))
    message = r"rank 0 has weight 0 = \(64, 32\) float32, rank 1 has weight 0 = \(64, 48\) float32"
    with pytest.raises(ValueError, match=message):
        worker.fit(batches_of(1, 1))


@pytest.mark.workers(2)
def test_optimizers_that_differ_are_an_error_on_every_rank(world_size):
    worker = Worker("horovod", optimizer=lambda: adam() if rank() else keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="rank 0 has optimizer = SGD, rank 1 has optimizer = Adam"):
        worker.fit(batches_of(1, 1))


@pytest.mark.workers(2)
def test_weights_that_one_rank_alone_assigns_are_an_error_on_every_rank(world_size):
    worker = Worker("horovod")
    weights = [np.zeros_like(w) for w in worker.arrays]
    changing = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rank() == 1 and worker.model.set_weights(weights)
    )
    with pytest.raises(ValueError, match=r"assigned on all.*assigned \[0, 1\] times, by worker"):
        worker.fit(batches_of(3, 3), [changing], epochs=2)


@pytest.mark.nightly
@horovod_first
def test_state_that_is_not_finite_is_an_error_on_every_rank(engine, world_size):
    worker = Worker(engine)

    def spoil(batch, logs):
        if rank() == 1 and batch == 5:
            moments = worker.model.optimizer.moments[1].variables
            moments[-1].assign(np.full(moments[-1].shape, np.nan))

    # Its weights are finite. They must not be taken over before all are known to be finite.
    spoiling = keras.callbacks.LambdaCallback(on_train_batch_end=spoil)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Rank 1 met .*last_kernel_velocity"):
        worker.fit(batches_of(7, 7), before=[spoiling])
    with synchronization_of(worker.model.optimizer.gradient_exchange).view():
        intact = worker.arrays
    assert_same_bits_on_all_ranks(intact)
    first = [batches[:PERIOD] for batches in batches_of(7, 7)]
    assert_close(intact, trained_in_lockstep(make_model, adam, first))


@pytest.mark.workers(2)
def test_groups_need_process_sets_that_are_added_later(world_size):
    worker = Worker("horovod", exchange=OneBit())
    with pytest.raises(ValueError, match=r'Use hvd.init\(process_sets="dynamic"\)'):
        worker.fit(batches_of(1, 1), block_momentum=BlockMomentum(groups="node"))


@pytest.mark.workers(2, engines=["tensorflow"])
def test_groups_by_node_are_horovods(world_size):
    worker = Worker("tensorflow", exchange=OneBit())
    with pytest.raises(ValueError, match="Only Horovod's workers .*Leave groups out"):
        worker.fit(batches_of(1, 1), block_momentum=BlockMomentum(groups="node"))
