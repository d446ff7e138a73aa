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
from tf_onebit.measurement import ExchangeSeconds, total_seconds
from tf_onebit.planner import uniform_links
from tf_onebit.training import auto
from tf_onebit.training.auto import as_python, paying
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


def exchange_seconds(exchange, links, work_seconds=0.0, world_size=2):
    kinds = ["all_to_all", "all_gather"] if isinstance(exchange, OneBit) else ["all_gather"]
    kinds = ["all_reduce", "all_gather"] if isinstance(exchange, FullPrecision) else kinds
    return ExchangeSeconds(exchange, links, world_size, work_seconds, tuple(kinds))


def test_compresses_what_is_clearly_faster_compressed():
    links = uniform_links(1e6, 0.0)
    specs = [
        GradientSpec("kernel", (64, 64), "float32"),
        GradientSpec("sparse", (64, 64), "float32", sparse=True),
        GradientSpec("bias", (64,), "float32"),
    ]

    def names(work_seconds):
        full = exchange_seconds(FullPrecision(), links)
        one_bit = exchange_seconds(OneBit(), links, work_seconds)
        return [spec.name for spec in paying(specs, full, one_bit)]

    # 4 us per value, and about a seventh of one with what a bit needs. As fast, or nearly so, is
    # not enough to change training.
    assert names(2e-6) == names(2.8e-6) == ["kernel"]
    assert names(3.2e-6) == names(5e-6) == []


def test_what_a_gradient_takes_depends_on_shape_and_type():
    links = uniform_links(1e6, latency_seconds=5.0)
    wide, thin, half, bias = (
        GradientSpec("wide", (64, 512), "float32"),
        GradientSpec("thin", (8192, 4), "float32"),
        GradientSpec("half", (64, 512), "bfloat16"),
        GradientSpec("bias", (512,), "float32"),
    )

    def seconds(exchange, spec, world_size=2):
        return exchange_seconds(exchange, links, world_size=world_size).of_gradient(spec)

    assert seconds(FullPrecision(), wide) == pytest.approx(4 * 64 * 512 / 1e6)
    assert seconds(FullPrecision(), half) == pytest.approx(2 * 64 * 512 / 1e6)
    # A bit for each value, twice for a half of them, and two levels for each column of 512.
    assert seconds(OneBit(), wide) == pytest.approx((64 * 512 / 8 + 64 * 8 + 8) / 1e6, rel=0.01)
    assert seconds(OneBit(), thin) > 1.5 * seconds(OneBit(), wide)
    # Between many workers a bias goes to all of them.
    assert seconds(OneBit(), bias, 8) > 3 * seconds(FullPrecision(), bias, 8)
    assert seconds(Threshold(target_density=0.01), wide) == pytest.approx(4 * 64 * 5.12 / 1e6)
    works = exchange_seconds(FullPrecision(), links, work_seconds=1e-6).of_gradient(wide)
    assert works == pytest.approx(5 * 64 * 512 / 1e6)
    assert exchange_seconds(FullPrecision(), links).of_bucket == 10.0
    assert [exchange_seconds(OneBit(), links).is_plain(s) for s in (wide, bias)] == [False, True]


def test_every_bucket_takes_latency():
    links = uniform_links(1e9, latency_seconds=0.5)
    full, one_bit = (exchange_seconds(e, links) for e in (FullPrecision(), OneBit()))
    specs = [GradientSpec(f"kernel{i}", (1024, 1024), "float32") for i in range(4)]
    specs.append(GradientSpec("embedding", (64, 64), "float32", sparse=True))

    def seconds(bucket_bytes, exclude=()):
        exchange = OneBit(bucket_bytes=bucket_bytes, exclude=exclude)
        return total_seconds(exchange, full, one_bit, specs)

    each = 2 * 0.5
    assert seconds(2**30) == pytest.approx(each, rel=0.01)
    assert seconds(4 * 2**20) == pytest.approx(4 * each, rel=0.01)
    assert seconds(2**30, ["kernel0"]) == pytest.approx(2 * each + 4 * 2**20 / 1e9, rel=0.01)


class OneOfTwo:
    """What a decision asks an engine for."""

    world_size, ranks = 2, (0,)

    def place(self, rank):
        return contextlib.nullcontext()


@pytest.fixture
def decided(monkeypatch, caplog):
    """Function: what is excluded between two workers whose links are known.

    Encoding takes 2 ns per value: as long as a byte takes at 500 MB/s.
    """

    def decide(links, specs):
        monkeypatch.setattr(auto.Links, "measure", lambda self: links)
        monkeypatch.setattr(auto.Links, "slowest", lambda self, *values: list(values))
        seconds = {FullPrecision: 0.1e-9, OneBit: 2e-9}

        def sample(exchange, world_size):
            kinds = exchange_seconds(exchange, links).kinds
            return seconds[type(exchange)], kinds

        monkeypatch.setattr(auto, "measure_sample", sample)
        with caplog.at_level(logging.INFO, logger="tf_onebit"):
            exchange = auto.decide(Auto(), specs, OneOfTwo())
        return {s.name for s in specs if any(re.search(p, s.name) for p in exchange.exclude)}

    return decide


KERNEL = GradientSpec("kernel", (1024, 1024), "float32")
BIAS = GradientSpec("bias", (1024,), "float32")


@pytest.mark.parametrize(
    "bytes_per_second, latency, compressed",
    [(1e6, 1e-3, 2**20), (1e8, 1e-3, 2**20), (1e12, 1e-3, 0), (1e8, 0.1, 0)],
)
def test_links_decide(decided, caplog, bytes_per_second, latency, compressed):
    specs = [KERNEL, GradientSpec("embedding", (1024, 1024), "float32", sparse=True)]
    excluded = decided(uniform_links(bytes_per_second, latency), specs)
    assert ("kernel" in excluded) == (not compressed)
    assert f"compresses where it can {compressed:,} of 2,097,152" in caplog.text


def test_what_is_plain_shares_the_messages_of_others_where_that_is_faster(decided, caplog):
    # One bucket; else the bias would have one of its own.
    assert decided(uniform_links(1e8, 4e-3), [KERNEL, BIAS]) == set()
    assert "compresses where it can 1,048,576 of 1,049,600 values" in caplog.text
    # Where nothing else is compressed it is alone with all others.
    assert decided(uniform_links(1e8, 0.1), [KERNEL, BIAS]) == {"kernel", "bias"}


def test_a_small_gradient_does_not_pay_for_messages_of_its_own(decided):
    """Of a model that is hardly compressed the rest is exchanged as before, by as many messages."""
    thin = [GradientSpec(f"thin{i}", (4, 4096), "bfloat16") for i in range(64)]
    small = GradientSpec("kernel", (32, 32), "float32")
    names = {spec.name for spec in (*thin, small)}
    assert decided(uniform_links(1e9, 1e-3), [*thin, small]) == names


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
