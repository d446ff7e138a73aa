"""Small programs that need no change, and what `check` finds when some of their text is changed."""

from tf_onebit._check.program import Program
from tf_onebit._check.report import findings

STRATEGY = """\
import keras
import tensorflow as tf
import tf_onebit

strategy = tf_onebit.distribute.MultiWorkerMirroredStrategy(tf_onebit.OneBit())
keras.utils.set_random_seed(1)
x, y = load()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("adam", "mse")
model.fit(x, y, callbacks=[])
"""
HOROVOD = """\
import keras
import numpy as np
import tensorflow as tf
import tf_onebit
import tf_onebit.horovod as hvd

hvd.init()
x, y = load(hvd.rank())
model = keras.Sequential([keras.layers.Dense(2)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), tf_onebit.OneBit())
model.compile(optimizer, "mse")
model.fit(x, y, callbacks=[hvd.BroadcastGlobalVariablesCallback(0)])
"""
BLOCKS = """\
import keras
import tf_onebit
import tf_onebit.horovod as hvd

hvd.init()
x, y = load(hvd.rank())
model = keras.Sequential([keras.layers.Dense(2)])
adam = tf_onebit.optimizers.Adam(beta_1=0.5)
model.compile(hvd.DistributedOptimizer(adam, tf_onebit.Local()), "mse")
model.fit(x, y, callbacks=[tf_onebit.callbacks.BlockMomentum(sync_period=16)])
"""
LOOP = """\
import keras
import tensorflow as tf
import tf_onebit
import tf_onebit.horovod as hvd

hvd.init()
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(2)])
optimizer = keras.optimizers.SGD(0.1)
hvd.broadcast_variables(model.weights, root_rank=0)
exchange = tf_onebit.OneBit()


def step(x):
    with tf.GradientTape() as tape:
        loss = model(x)
    tape = hvd.DistributedGradientTape(tape, exchange=exchange)
    optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
"""


def changed(source, *changes):
    """Returns a program with some of its text replaced: each pair is old text and new text."""
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


def found_in(source, to=None):
    """Returns what `check` finds in a program: list of `Finding`."""
    return findings(Program("train.py", source), to)


def line_of(source, text):
    """Returns the number of the only line with some text."""
    (number,) = (i for i, line in enumerate(source.splitlines(), 1) if text in line)
    return number
