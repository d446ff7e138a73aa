"""Measurements and conclusions of the reproduction of Strom's tables."""

import pytest
import tensorflow as tf

from tf_onebit import ops

pytest.importorskip("horovod")  # which the speech example imports

from intervals import interval, widest_interval  # noqa: E402
from simulate import FIGURES, measure, overheard  # noqa: E402

from tf_onebit.collectives.lockstep import run  # noqa: E402
from tf_onebit.collectives.requests import AllGather, AllReduce  # noqa: E402


def message_of(gradient, tau, capacity):
    residual = tf.Variable(tf.zeros([len(gradient)]))
    return ops.threshold_encode(
        [tf.constant(gradient)], residual, tau, tau, capacity, [len(gradient)]
    )


def test_figures_are_means_over_the_workers():
    messages = tf.stack([message_of([3.0, 0, 0, 9.0], 2.0, 3), message_of([0.0] * 4, 2.0, 3)])
    figures = dict(zip(FIGURES, measure(messages, 4).numpy(), strict=True))
    # Two updates and none. Headers have 6 words, room 3, and 3 streams less than a word each.
    assert figures == {
        "updates": 1.0,
        "message_words": 9.0,
        "golomb_rice_bits": 3 * 32 / 2,
        "tau": 2.0,
    }


def test_who_overhears_an_exchange_does_not_change_it():
    def exchange(rank):
        gathered = yield AllGather(tf.constant([rank]), "gather")
        (total,) = yield AllReduce([tf.reduce_sum(gathered)], "reduce")
        return int(total)

    messages = []
    assert run(overheard(exchange(rank), messages) for rank in range(3)) == [9, 9, 9]
    assert [message.numpy().tolist() for message in messages] == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("holds", "widest"),
    [
        ([True, True, True, True], (1, 16)),
        ([True, False, True, True], (4, 16)),
        ([True, True, False, True], (1, 2)),
        ([False, False, True, False], (4, 4)),
        ([False, False, False, False], None),
    ],
)
def test_widest_interval_has_no_gap(holds, widest):
    assert widest_interval([1, 2, 4, 16], holds) == widest


def test_interval_is_students():
    # Two samples: 12.706 standard errors.
    mean, half = interval([1.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(12.706, abs=1e-3)
