"""Warnings of a `fit` that ends inside a warm start."""

import warnings

import keras
import pytest

from tests.support.in_scope import in_scope, samples
from tests.support.nightly import nightly
from tests.support.ranks import rank
from tests.support.training import BATCH_SIZE, compiled, fit_part, make_model
from tf_onebit import Auto, OneBit, WarmStart

STEPS = 3  # of a `fit`


def fitting(engine, exchange, world_size):
    """Returns a function that fits a model."""
    if engine == "horovod":
        import tf_onebit.horovod as hvd

        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), exchange)
        model = compiled(make_model(), optimizer)
        return lambda: fit_part(model, STEPS, world_size)
    model = in_scope(exchange)
    x, labels = samples(world_size, STEPS)
    return lambda: model.fit(x, labels, BATCH_SIZE * world_size, verbose=0)


@pytest.mark.workers(2, engines=["horovod", *nightly("tensorflow")])
def test_worker_0_says_once_that_training_has_ended_in_its_warm_start(engine, world_size):
    fit = fitting(engine, WarmStart(OneBit(), steps=100), world_size)
    message = r"after 3 of 100 steps.*Use for example steps=1\."
    if rank() == 0:
        with pytest.warns(UserWarning, match=message):
            fit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if rank() != 0:
            fit()
        fit()


@pytest.mark.nightly
@pytest.mark.workers(2)
def test_training_that_compresses_by_now_ends_without_a_word(world_size):
    for exchange in (WarmStart(OneBit(), steps=STEPS), Auto(WarmStart(OneBit(), steps=STEPS))):
        fit = fitting("horovod", exchange, world_size)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fit()
