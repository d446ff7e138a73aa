"""The exchange of docs/your_own_exchange.md in real jobs."""

import math
import sys

import keras
import numpy as np
import pytest

import tf_onebit.horovod as hvd
from tests.support.bits import assert_same_bits
from tests.support.both_engines import model_with
from tests.support.nightly import nightly
from tests.support.programs import FOLDERS
from tests.support.ranks import assert_same_bits_on_all_ranks
from tests.support.training import fit_part
from tf_onebit import Auto, Delayed, WarmStart
from tf_onebit.callbacks import Monitor

sys.path[:0] = FOLDERS
from top_k import TopK  # noqa: E402

every_engine = pytest.mark.workers(2, engines=["horovod", *nightly("tensorflow")])


def trained(exchange, world_size):
    model = model_with(exchange, lambda: keras.optimizers.SGD(0.1))
    history = fit_part(model, 6, world_size, epochs=2, callbacks=[Monitor(update_freq=1)]).history
    assert history["loss"][1] < history["loss"][0]
    assert_same_bits_on_all_ranks(model.get_weights())
    return model.optimizer.gradient_exchange.built, history


@every_engine
def test_it_trains_and_what_is_unsent_is_shown(world_size):
    ((exchange,), history) = trained(WarmStart(Delayed(TopK(k=20)), steps=2), world_size)
    residuals = [v for bucket in exchange.buckets for _, v in bucket.exchange.residuals()]
    norm = math.sqrt(sum(np.sum(np.square(v.numpy(), dtype=np.float64)) for v in residuals))
    assert history["residual_norm"][-1] == pytest.approx(norm, rel=1e-4)
    assert norm > 0


@every_engine
def test_it_trains_where_workers_choose_what_to_compress(world_size):
    trained(Auto(TopK(k=20)), world_size)


@pytest.mark.workers(2)
def test_it_ends_a_step_with_a_gradient_that_is_not_finite():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), TopK(k=20))
    variable = keras.Variable(np.ones((64, 64), np.float32))
    optimizer.apply([np.full((64, 64), 0.5, np.float32)], [variable])
    before = np.array(variable)
    bad = np.full((64, 64), np.nan if hvd.rank() else 0.5, np.float32)
    with pytest.raises(Exception, match="Rank 1 met an infinity or NaN in the gradient"):
        optimizer.apply([bad], [variable])
    assert_same_bits([np.array(variable)], [before])
