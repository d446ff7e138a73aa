"""`ExchangeState`: the state of exchanges that one run hands on to the next."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import gradients_of
from tf_onebit import OneBit
from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit.collectives.lockstep import LockstepEngine

SHAPES = [(40, 100)]


class Group(LockstepEngine):
    """Some of the workers of a job, all in this program."""

    members = ()

    def __init__(self, members):
        super().__init__(["CPU:0"] * len(members))
        self.members = members


def exchange_of(members, world_size=4):
    exchange = GradientExchange(OneBit(), LockstepEngine(["CPU:0"] * world_size), mean=True)
    exchange.workers.divide(Group(members))
    return exchange


def residuals(exchange):
    exchanges = exchange.exchanges.all
    return [one.buckets[0].exchange.worker_residual.numpy() for one in exchanges]


def test_workers_in_groups_are_resumed_with_their_own_states(rng):
    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    saved = [{} for _ in range(4)]
    for members in ([0, 2], [1, 3]):
        exchange = exchange_of(members)
        exchange([gradients_of(rng, SHAPES) for _ in members], variables)
        for member, built in zip(members, exchange.exchanges.all, strict=True):
            saved[member] = built.state()
    for members in ([0, 2], [1, 3]):
        resumed = exchange_of(members)
        resumed([gradients_of(rng, SHAPES) for _ in members], variables)
        resumed.load_states([saved], resumed.scale)
        for member, residual in zip(members, residuals(resumed), strict=True):
            assert np.any(residual)
            np.testing.assert_array_equal(
                residual, saved[member]["bucket_0/worker_residual"], strict=True
            )
    with pytest.raises(ValueError, match="groups of workers can only be resumed.* 3 workers for 4"):
        resumed.load_states([saved[:3]], resumed.scale)
