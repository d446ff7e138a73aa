"""`Auto` without other processes: what it is made of, and what it refuses."""

import logging

import pytest
import tensorflow as tf

from tf_onebit import Auto, Delayed, FullPrecision, Local, OneBit, Threshold, WarmStart
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.configurable import serialize
from tf_onebit.training.gradients import GradientExchange, resolve_exchange


def test_is_what_the_word_stands_for():
    exchange = resolve_exchange("auto")
    assert serialize(exchange) == serialize(Auto(OneBit()))


@pytest.mark.parametrize("word", ["Auto", "one_bit", ""])
def test_refuses_other_words(word):
    with pytest.raises(ValueError, match=f"or \"auto\". Received: exchange='{word}'"):
        resolve_exchange(word)


@pytest.mark.parametrize("exchange", [FullPrecision(), Local(), "OneBit", WarmStart(Local(), 5)])
def test_refuses_exchanges_that_can_leave_nothing_out(exchange):
    with pytest.raises(ValueError, match=r"Auto\(OneBit\(\)\). Received: compressed="):
        Auto(exchange)


def test_leaves_gradients_out_of_the_innermost_exchange():
    exchange = Auto(WarmStart(Delayed(Threshold(tau=0.5, exclude=["a"])), steps=7))
    assert exchange.steps_of_delay == 1
    left = exchange.excluding(["block.1/kernel"])
    assert left.steps == 7 and left.compressed.wrapped.tau == 0.5
    assert left.exclude == ("a", r"^block\.1/kernel$")
    assert exchange.exclude == ("a",)


def test_workers_of_one_process_send_nothing_that_is_worth_compressing(caplog):
    exchange = GradientExchange(Auto(), LockstepEngine(["CPU:0", "CPU:0"]), mean=True)
    kernel = tf.Variable(tf.zeros([64, 64]), name="kernel")
    with caplog.at_level(logging.INFO, logger="tf_onebit"):
        ((first,), (second,)) = exchange([[tf.ones([64, 64])], [3 * tf.ones([64, 64])]], [kernel])
    assert tf.reduce_all(first == 2.0) and tf.reduce_all(second == 2.0)
    assert exchange.built[0].template.exclude == (r"^kernel:0$",)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "OneBit for 0 of 4,096 values, because all workers are in this process." in message
