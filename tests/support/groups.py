"""Models that groups of processes hold together, and their training, for tests on a rank."""

import functools

import keras

import tf_onebit.horovod as hvd
from tests.support.model_parallel import MODELS, cnn, compiled, fit
from tf_onebit import model_parallel


@functools.cache
def groups_of(members):
    """Returns groups of so many members, which all tests of a process share."""
    return model_parallel.Groups(members)


def split(name, members=2):
    model = cnn(hvd.SyncBatchNormalization) if name == "cnn" else MODELS[name]()
    return model_parallel.split(model, groups_of(members), min_size=0)


def fit_group(model, name, **settings):
    """Trains a split model on the data of its group."""
    groups = model.division.groups
    return fit(model, name, groups.number, groups.count, **settings)


def trained(name, members, optimizer, exchange=None, settings=None, **arguments):
    """Returns a split model after training."""
    model = compiled(
        split(name, members), hvd.DistributedOptimizer(optimizer(), exchange), **(settings or {})
    )
    fit_group(model, name, **arguments)
    return model


def momentum():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def clipped_adam():
    return keras.optimizers.Adam(0.01, global_clipnorm=0.5, weight_decay=0.01)
