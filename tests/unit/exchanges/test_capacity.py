"""The capacity of messages: its rule, and its effect."""

import numpy as np
import pytest
import tensorflow as tf

from tests.reference import threshold as oracle
from tests.support.gradients import as_float64, build_workers, exchange, specs_of
from tf_onebit import Threshold
from tf_onebit.exchanges.message_capacity import Capacity
from tf_onebit.ops.threshold import HEADER_WORDS


def capacity_of(worker, world_size):
    """Returns the number of values that the last message had room for."""
    return worker.bytes_sent() // (world_size - 1) // 4 - HEADER_WORDS


@pytest.mark.parametrize("most", [1, 100, 5000, 2**31])
def test_capacity_follows_its_rule(rng, most):
    capacity, expected = Capacity(most, most // 50), oracle.Capacity(most, most // 50)
    follow = tf.function(capacity.follow)
    # Jumps, a slow decrease, and noise.
    for level in (0.01, 0.02, 0.5, 0.03, 1.0, 0.0, *0.7 * 0.93 ** np.arange(8)):
        for _ in range(35):
            assert int(capacity.at(capacity.step)) == expected.value
            need = int(level * rng.uniform(0.97, 1) * most)
            follow(tf.constant(need, tf.int64))
            expected.follow(need)


def test_capacity_changes_rarely(rng):
    capacity, changes = Capacity(5000, 50), 0
    follow = tf.function(capacity.follow)
    for _ in range(500):
        before = int(capacity.step)
        follow(tf.constant(rng.poisson(400), tf.int64))
        changes += before != int(capacity.step)
    assert changes <= 2


@pytest.mark.parametrize("most", [0, 1, 2, 3, 1000, 2**31])
def test_there_are_no_more_capacities_than_variants_of_a_request(most):
    capacity = Capacity(most, most)
    assert int(capacity.at(capacity.step)) == most
    assert int(capacity.step) <= 127


def test_messages_become_longer_and_shorter_and_nothing_is_lost(rng):
    size, tau = 4096, 1.0
    workers = build_workers(Threshold(tau), specs_of([(size,)]), 2)
    needs = [0, 40, 41, 500, *rng.integers(300, 500, 40), *rng.integers(1, 10, 120), 4096, 4096]
    capacities, local, applied = [], 0, 0
    for need in needs:
        gradients = np.zeros([2, size])
        gradients[0, :need] = rng.choice([-1.5, 1.5], need)
        exchanged, _ = exchange(workers, [[tf.constant(mine, tf.float32)] for mine in gradients])
        local, applied = local + gradients.sum(0), applied + as_float64(exchanged[0][0])
        capacities.append(capacity_of(workers[0], 2))
    kept = sum(as_float64(worker.residual) for worker in workers)
    np.testing.assert_array_equal(applied + kept, local)
    assert max(capacities[:3]) < 100 < 250 < min(capacities[4:40])
    assert capacities[-3] <= 20 and capacities[-1] == size
    assert np.count_nonzero(np.diff(capacities)) <= 5
