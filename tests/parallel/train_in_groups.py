"""Trains a split model, for actions that end a job, or that need jobs of several sizes.

python -m tests.parallel.train_in_groups save_alone directory 2 | other_data | exit
python -m tests.parallel.train_in_groups resume directory epochs
"""

import os
import sys

import keras

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support.model_parallel import MODELS, compiled, fit
from tf_onebit import model_parallel
from tf_onebit.callbacks import BackupAndRestore, BlockMomentum


class ExitOnRank1(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and hvd.rank() == 1:
            os._exit(3)


def main(action, directory=None, epochs="1"):
    hvd.init(process_sets="dynamic")
    groups = model_parallel.Groups(2)
    model = model_parallel.split(MODELS["mlp"](), groups, min_size=0)
    in_blocks = action == "save_alone"
    exchange = tf_onebit.Local() if in_blocks else tf_onebit.OneBit(min_size=0)
    compiled(model, hvd.DistributedOptimizer(tf_onebit.optimizers.Adam(0.01), exchange))
    number, count, callbacks = groups.number, groups.count, []
    if action == "other_data":
        number, count = hvd.rank(), hvd.size()
    elif action == "exit":
        callbacks = [ExitOnRank1()]
    elif in_blocks:
        callbacks = [BlockMomentum(8)]
        if hvd.rank() == 0:
            callbacks.append(keras.callbacks.ModelCheckpoint("/dev/null/model.keras"))
    elif action == "resume":
        callbacks = [BackupAndRestore(directory, delete_checkpoint=False)]
    losses = fit(model, "mlp", number, count, int(epochs), callbacks=callbacks).history["loss"]
    print(f"rank {hvd.rank()}: {model.optimizer.iterations.numpy()} steps, loss {losses[0]:.6f}")


main(*sys.argv[1:])
