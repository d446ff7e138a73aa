"""Model parallelism: groups of processes train in blocks, each as one worker."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support.blocks import Lockstep
from tests.support.model_parallel import MODELS, compiled, data_of, difference
from tests.support.ranks import digest, gather, rank
from tf_onebit import model_parallel
from tf_onebit._shares import is_part
from tf_onebit.callbacks import BackupAndRestore, BlockMomentum

PERIOD, ETA, GROUPS = 3, 0.5, 2


def adam():
    # A larger epsilon amplifies no rounding.
    return tf_onebit.optimizers.Adam(0.01, beta_1=0.5, epsilon=1e-3)


def split():
    groups = model_parallel.Groups(2)
    optimizer = hvd.DistributedOptimizer(adam(), tf_onebit.Local())
    return compiled(model_parallel.split(MODELS["mlp"](), groups, min_size=0), optimizer)


def batches_of(number, count):
    """Returns the first `count` batches of a group: list."""
    x, y, size = data_of("mlp", number, GROUPS)
    return [(x[i:][:size], y[i:][:size]) for i in range(0, count * size, size)]


def fit(model, count, *callbacks, blocks=None, **arguments):
    """Trains on `count` batches of this group, whose number Keras does not know."""
    arrays = map(np.stack, zip(*batches_of(model.division.groups.number, count), strict=True))
    data = tf.data.Dataset.from_tensor_slices(tuple(arrays)).filter(lambda *_: True)
    callbacks = [blocks or BlockMomentum(PERIOD, ETA), *callbacks]
    model.fit(data, verbose=0, callbacks=callbacks, **arguments)


def assert_members_agree(model, of_optimizer=True):
    """Asserts that peers have the same bits of their parts, and all ranks those of copies."""
    variables = [*model.weights, *(model.optimizer.variables if of_optimizer else [])]
    parts, copies = (gather(digest(v for v in variables if is_part(v) == of)) for of in (1, 0))
    assert parts[:2] == parts[2:] and parts[0] != parts[1]
    assert len(set(copies)) == 1


@pytest.mark.workers(4)
def test_groups_train_in_blocks_as_workers_that_hold_whole_models(world_size):
    """The data of group 1 end first, unannounced. All validate after each epoch."""
    model, counts, epochs = split(), (7, 4), 2
    number = model.division.groups.number
    fit(model, counts[number], epochs=epochs, validation_data=batches_of(0, 1)[0])
    assert_members_agree(model)
    reference = Lockstep(MODELS["mlp"], adam, GROUPS, ETA)
    batches = [batches_of(*of_group) for of_group in enumerate(counts)]
    expected = [reference.epoch(batches, PERIOD) for _ in range(epochs)][-1]
    assert difference(model.get_weights(), expected) < 1e-6
    assert model.optimizer.moment_steps == reference.models[0].optimizer.moment_steps


@pytest.mark.workers(4)
def test_fragments_of_groups_are_those_of_whole_models(world_size):
    model = split()
    with pytest.raises(ValueError, match="overlap=1 for a model that 2 processes hold"):
        fit(model, 1, blocks=BlockMomentum(PERIOD, ETA, overlap=1))
    with pytest.raises(ValueError, match="outer_optimizer=SGD for a split model"):
        fit(model, 1, blocks=BlockMomentum(PERIOD, outer_optimizer="sgd"))
    blocks = BlockMomentum(PERIOD, ETA, fragments=2)
    fit(model, 7, blocks=blocks, epochs=2)
    assert_members_agree(model, of_optimizer=False)
    reference = Lockstep(MODELS["mlp"], adam, GROUPS, ETA, fragments=2)
    batches = [batches_of(group, 7) for group in range(GROUPS)]
    expected = [reference.epoch_of_fragments(batches, PERIOD) for _ in range(2)][-1]
    assert difference(model.get_weights(), expected) < 1e-6


@pytest.mark.nightly
@pytest.mark.workers(4)
def test_one_bit_blocks_of_groups_resume_with_the_same_bits(world_size, tmp_path):
    directory = pathlib.Path(gather(str(tmp_path))[0])

    def run(name, *callbacks, epochs=2):
        model = split()
        backup = BackupAndRestore(directory / name, 1, delete_checkpoint=False)
        blocks = BlockMomentum(PERIOD, ETA, exchange=tf_onebit.OneBit(min_size=0))
        fit(model, 5, backup, *callbacks, blocks=blocks, epochs=epochs)
        return model

    def interrupt(batch, logs):
        if batch == 3:  # after the first batch of a block
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("interrupted", keras.callbacks.LambdaCallback(on_train_batch_end=interrupt))
    resumed, whole = run("interrupted"), run("whole")
    variables = [[*model.weights, *model.optimizer.variables] for model in (resumed, whole)]
    assert difference(*variables) == 0
    weights = gather(digest(resumed.weights))
    assert weights[:2] == weights[2:] and weights[0] != weights[1]


@pytest.mark.workers(4)
def test_a_part_that_is_not_finite_is_an_error_on_all_members_of_all_groups(world_size):
    model = split()

    def spoil(batch, logs):
        kernel = model.layers[0].kernel
        if rank() == 1 and batch == PERIOD - 1:
            kernel.assign(np.full(kernel.shape, np.inf))

    spoiling = keras.callbacks.LambdaCallback(on_train_batch_end=spoil)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Rank 1 met .*kernel"):
        model.fit(*batches_of(0, 1)[0], 2, verbose=0, callbacks=[spoiling, BlockMomentum(PERIOD)])
    assert_members_agree(model)
    assert all(np.isfinite(np.array(weight)).all() for weight in model.weights)


@pytest.mark.nightly
@pytest.mark.workers(4)
def test_members_begin_anew_together_from_weights_of_which_one_part_has_changed(world_size):
    model = split()

    def change(epoch, logs):
        weights = model.get_weights()
        weights[0][:, : weights[0].shape[1] // 2] += 0.1  # those of the first members
        model.set_weights(weights)

    changing = keras.callbacks.LambdaCallback(on_epoch_end=change)
    fit(model, PERIOD, changing, epochs=2)
    assert_members_agree(model)
