"""Models and data for tests that run over Horovod and in a strategy."""

import numpy as np
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.in_scope import in_scope
from tests.support.ranks import engine, rank
from tests.support.training import BATCH_SIZE, INPUTS, compiled, make_data, make_model
from tf_onebit.collectives.horovod import HorovodEngine

STEPS = 5


def is_horovod():
    """Tells whether this job is one of Horovod's."""
    return isinstance(engine(), HorovodEngine)


def model_with(exchange, optimizer, make=make_model, **arguments):
    """Returns a compiled model, whose optimizer, a function of no arguments, has an exchange."""
    if is_horovod():
        return compiled(make(), hvd.DistributedOptimizer(optimizer(), exchange), **arguments)
    return in_scope(exchange, make, optimizer, **arguments)


def batches(world_size, steps=STEPS, spoil=None):
    """Returns this rank's batches, or for a strategy all batches, which it divides.

    Args:
        world_size: number of workers.
        steps: number of batches.
        spoil: index of a batch in which rank 1 has infinities.
    """
    x, labels = make_data(steps, world_size)
    if spoil is not None:
        x[spoil, 1] = np.inf
    if is_horovod():
        x, labels = x[:, rank()], labels[:, rank()]
    batch_size = BATCH_SIZE * (1 if is_horovod() else world_size)
    samples = x.reshape(-1, INPUTS), labels.reshape(-1)
    return tf.data.Dataset.from_tensor_slices(samples).batch(batch_size)
