"""`Auto` without other processes: what it is made of, and what it refuses."""

import contextlib
import logging
import re

import pytest
import tensorflow as tf

from tf_onebit import Auto, Delayed, FullPrecision, Local, OneBit, Threshold, WarmStart
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.configurable import serialize
from tf_onebit.exchanges import GradientSpec
from tf_onebit.planner import uniform_links
from tf_onebit.training import auto
from tf_onebit.training.auto import as_python, paying, sending_seconds
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
    assert exchange.built[0].template.exclude == (".*",)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "0 of 4,096 values, because all workers are in this process." in message
    assert message.endswith("The same without measuring: OneBit(exclude=['.*']).")


def test_compresses_what_is_clearly_faster_compressed():
    sparse = GradientSpec("sparse", (64, 64), "float32", sparse=True)
    specs = [*(GradientSpec(name, (64, 64), "float32") for name in "abc"), sparse]
    # As fast, or nearly so, is not enough to change training.
    assert paying(specs, [1.0, 1.0, 1.0, 1.0], [0.7, 0.9, 1.1, 0.1]) == ["a"]


def test_what_messages_take_depends_on_shape_and_type():
    links = uniform_links(1e6, latency_seconds=5.0)
    wide, thin, half, bias = (
        GradientSpec("wide", (64, 512), "float32"),
        GradientSpec("thin", (8192, 4), "float32"),
        GradientSpec("half", (64, 512), "bfloat16"),
        GradientSpec("bias", (512,), "float32"),
    )

    def seconds(exchange, spec, world_size=2, bucket_share=0.0):
        return sending_seconds(exchange, spec, links, world_size, bucket_share)

    assert seconds(FullPrecision(), wide) == pytest.approx(4 * 64 * 512 / 1e6)
    assert seconds(FullPrecision(), half) == pytest.approx(2 * 64 * 512 / 1e6)
    # A bit for each value, twice for a half of them, and two levels for each column of 512.
    assert seconds(OneBit(), wide) == pytest.approx((64 * 512 / 8 + 64 * 8 + 8) / 1e6, rel=0.01)
    assert seconds(OneBit(), thin) > 1.5 * seconds(OneBit(), wide)
    # Between many workers a bias goes to all of them.
    assert seconds(OneBit(), bias, 8) > 3 * seconds(FullPrecision(), bias, 8)
    assert seconds(Threshold(target_density=0.01), wide) == pytest.approx(4 * 64 * 5.12 / 1e6)
    # A tenth of the latency of one collective, or two.
    for exchange, latency in ((FullPrecision(), 0.5), (OneBit(), 1.0)):
        share = seconds(exchange, wide, bucket_share=0.1) - seconds(exchange, wide)
        assert share == pytest.approx(latency)


def test_gradients_have_a_part_of_their_bucket():
    sizes = [(100, 10), (50, 10), (400, 10)]
    specs = [GradientSpec("kernel", shape, "float32") for shape in sizes]
    sparse = GradientSpec("embedding", (100, 10), "float32", sparse=True)
    assert auto.bucket_shares([*specs, sparse], 2**20) == [1 / 5.5, 0.5 / 5.5, 4 / 5.5, 1.0]
    assert auto.bucket_shares(specs, 8_000) == [0.5, 0.25, 1.0]


class OneOfTwo:
    """What a decision asks an engine for."""

    world_size, ranks = 2, (0,)

    def place(self, rank):
        return contextlib.nullcontext()


@pytest.mark.parametrize(
    "bytes_per_second, latency, compressed",
    [(1e6, 1e-3, ["kernel"]), (1e8, 1e-3, ["kernel"]), (1e12, 1e-3, []), (1e8, 0.1, [])],
)
def test_links_decide(monkeypatch, caplog, bytes_per_second, latency, compressed):
    """2 ns per value to encode: as long as a byte takes at 500 MB/s."""
    links = uniform_links(bytes_per_second, latency)
    monkeypatch.setattr(auto.Links, "measure", lambda self: links)
    monkeypatch.setattr(auto.Links, "slowest", lambda self, *values: list(values))
    seconds = {"FullPrecision": 0.1e-9, "OneBit": 2e-9}
    monkeypatch.setattr(auto, "_work_seconds", lambda e, world_size: seconds[type(e).__name__])
    specs = [
        GradientSpec("kernel", (1024, 1024), "float32"),
        GradientSpec("embedding", (1024, 1024), "float32", sparse=True),
    ]
    with caplog.at_level(logging.INFO, logger="tf_onebit"):
        exchange = auto.decide(Auto(), specs, OneOfTwo())
    patterns = exchange.exclude
    left = [s.name for s in specs if any(re.search(pattern, s.name) for pattern in patterns)]
    assert [s.name for s in specs if s.name not in left] == compressed
    assert f"compresses where it can {len(compressed) * 2**20:,} of 2,097,152" in caplog.text


def test_what_is_logged_makes_the_same_exchange():
    exchange = Auto(WarmStart(Delayed(OneBit(max_column_size=128)), steps=5)).excluding(["a.b"])
    text = as_python(serialize(exchange))
    made = eval(text, {"WarmStart": WarmStart, "Delayed": Delayed, "OneBit": OneBit})
    assert serialize(made) == serialize(exchange)
    assert "levels" not in text  # which is the default


@pytest.mark.parametrize("make", [lambda: WarmStart(Auto(), steps=5), lambda: Auto()])
def test_is_no_part_of_another_exchange(make):
    spec = GradientSpec("kernel", (64, 64), "float32")
    with pytest.raises(ValueError, match=r"Put it around: Auto\(WarmStart\(Delayed"):
        make().build([spec], 0, 2, "test")
    with pytest.raises(ValueError, match=r"Use Auto\(Delayed\(OneBit\(\)\)\)"):
        Delayed(Auto())
