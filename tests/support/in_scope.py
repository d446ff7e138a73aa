"""Models in the scope of a strategy, for tests on a rank."""

import keras
import numpy as np
import pytest

from tests.support.training import INPUTS, compiled, make_data, make_model
from tf_onebit.distribute import MultiWorkerMirroredStrategy

STEPS = 6

workers = pytest.mark.workers(2, engines=["tensorflow"])


def sgd(**arguments):
    return lambda: keras.optimizers.SGD(0.1, **arguments)


def samples(world_size, steps=STEPS):
    x, labels = make_data(steps, world_size)
    return x.reshape(-1, INPUTS), labels.reshape(-1)


def in_scope(exchange=None, make=make_model, optimizer=None, strategy=None, **arguments):
    """Returns a compiled model, by default with plain SGD."""
    optimizer = optimizer or sgd()
    with (strategy or MultiWorkerMirroredStrategy(exchange)).scope():
        return compiled(make(), optimizer(), **arguments)


def arrays_of(model):
    return [np.array(v) for v in (*model.variables, *model.optimizer.variables)]
