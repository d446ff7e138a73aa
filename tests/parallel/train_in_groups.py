"""Trains a split model, for actions that end a job, or that need jobs of several sizes.

python -m tests.parallel.train_in_groups action
python -m tests.parallel.train_in_groups resume | resume_in_full_precision directory epochs

Actions whose names end in "_in_blocks" train in blocks.
"""

import os
import signal
import sys

import keras
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support.model_parallel import (
    MODELS,
    compiled,
    data_of,
    difference,
    fit,
    plain_model,
)
from tests.support.ranks import digest
from tf_onebit import model_parallel
from tf_onebit.callbacks import BackupAndRestore, BlockMomentum

MOST, FEWER = 10, 7  # numbers of batches


def die(how):
    """Returns a callback with which rank 1 ends in the middle of an epoch, or is killed."""

    def end(batch, logs):
        if batch == 3 and hvd.rank() == 1:
            print("rank 1 dies", flush=True)
            os._exit(3) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)

    return keras.callbacks.LambdaCallback(on_train_batch_end=end)


def saving(save_freq):
    """Returns a callback that saves the model, to no file."""
    return keras.callbacks.ModelCheckpoint("/dev/null/model.keras", save_freq=save_freq)


def fit_batches(model, count, callbacks):
    """Trains on so many batches, whose number Keras does not know."""
    groups = model.division.groups
    x, y, size = data_of("mlp", groups.number, groups.count)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(size).take(count)
    return model.fit(data.filter(lambda *_: True), verbose=0, callbacks=callbacks)


def momentum():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def tell(when, model):
    """Prints a digest of the weights, and returns them."""
    weights = model.get_weights()
    print(f"rank {hvd.rank()} {when} with {digest(weights)}")
    return weights


def main(action, directory=None, epochs="1"):
    hvd.init(process_sets="dynamic")
    groups = model_parallel.Groups(2)
    model = model_parallel.split(MODELS["mlp"](), groups, min_size=0)
    in_blocks = action.endswith("_in_blocks")
    exchange = tf_onebit.Local() if in_blocks else tf_onebit.OneBit(min_size=0)
    optimizer = tf_onebit.optimizers.Adam(0.01)
    if action == "resume_in_full_precision":
        exchange, optimizer = None, momentum()
    compiled(model, hvd.DistributedOptimizer(optimizer, exchange))
    number, count, callbacks = groups.number, groups.count, [BlockMomentum(4)] * in_blocks
    what = action.removesuffix("_in_blocks")
    if what == "other_data":
        number, count = hvd.rank(), hvd.size()
    elif what in ("exit", "kill"):
        callbacks.append(die(what))
    elif what == "save_alone" and hvd.rank() == 0:
        callbacks.append(saving("epoch"))
    elif what.startswith("resume"):
        callbacks.append(BackupAndRestore(directory, delete_checkpoint=False))
        begin = keras.callbacks.LambdaCallback(on_train_begin=lambda _: tell("begins", model))
        callbacks.append(begin)
    if what in ("uneven_members", "uneven_groups", "save_in_uneven_groups"):
        has_fewer = groups.member if what == "uneven_members" else groups.number
        callbacks += [saving(8)] * (what == "save_in_uneven_groups")
        history = fit_batches(model, FEWER if has_fewer else MOST, callbacks)
    else:
        history = fit(model, "mlp", number, count, int(epochs), callbacks=callbacks)
    loss = history.history["loss"][0]
    print(f"rank {hvd.rank()}: {model.optimizer.iterations.numpy()} steps, loss {loss:.6f}")
    if what.startswith("resume"):
        weights = tell("ends", model)
    if what == "resume_in_full_precision":
        expected = plain_model("mlp", momentum, epochs=int(epochs)).get_weights()
        print(f"rank {hvd.rank()}: {difference(weights, expected):.9f} from an unsplit model")


main(*sys.argv[1:])
