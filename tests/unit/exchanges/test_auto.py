"""`Auto` without other processes: its decision, and the arguments that it refuses."""

import contextlib
import logging
import re

import pytest
import tensorflow as tf

import tf_onebit
from tf_onebit import Auto, Delayed, FullPrecision, Local, OneBit, Threshold, WarmStart
from tf_onebit._configurable import as_python, serialize
from tf_onebit._measurement import ExchangeSeconds, compressed_buckets
from tf_onebit._training import auto
from tf_onebit._training.auto import paying
from tf_onebit._training.building import resolve_exchange
from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.exchanges import Bucketed, GradientSpec
from tf_onebit.exchanges.schedule import delay_of
from tf_onebit.planner import uniform_links


def test_is_what_the_word_stands_for():
    exchange = resolve_exchange("auto")
    assert serialize(exchange) == serialize(Auto(OneBit()))


@pytest.mark.parametrize("word", ["Auto", "one_bit", ""])
def test_refuses_other_words(word):
    with pytest.raises(ValueError, match=f"or \"auto\". Received: exchange='{word}'"):
        resolve_exchange(word)


@pytest.mark.parametrize("exchange", [FullPrecision(), Local(), "OneBit", WarmStart(Local(), 5)])
def test_refuses_exchanges_that_can_leave_nothing_out(exchange):
    with pytest.raises(ValueError, match=r"Auto\(Delayed\(OneBit\(\)\)\). Received: compressed="):
        Auto(exchange)


def test_leaves_gradients_out_of_the_innermost_exchange():
    exchange = Auto(WarmStart(Delayed(Threshold(tau=0.5, exclude=["a"])), steps=7))
    assert delay_of(exchange) == 1
    left = exchange.excluding(["block.1/kernel"])
    assert left.steps == 7 and left.inner.inner.tau == 0.5
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
    return ExchangeSeconds(exchange, links, world_size, work_seconds)


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

    # 4 us per value, and 0.25 us in a bit. An exchange that is hardly faster does not change
    # training.
    assert names(2e-6) == names(3.3e-6) == ["kernel"]
    assert names(3.5e-6) == names(5e-6) == []


def test_what_a_gradient_takes_depends_on_shape_and_type():
    links = uniform_links(1e6, latency_seconds=5.0)
    wide, thin, half, bias = (
        GradientSpec("wide", (64, 512), "float32"),
        GradientSpec("thin", (8192, 4), "float32"),
        GradientSpec("half", (64, 512), "bfloat16"),
        GradientSpec("bias", (512,), "float32"),
    )

    def seconds(exchange, spec, world_size=2):
        return exchange_seconds(exchange, links, world_size=world_size).of_gradients([spec])

    assert seconds(FullPrecision(), wide) == pytest.approx(4 * 64 * 512 / 1e6)
    assert seconds(FullPrecision(), half) == pytest.approx(2 * 64 * 512 / 1e6)
    # A bit for each value, twice for half of them, and two levels for each column of 512.
    assert seconds(OneBit(), wide) == pytest.approx((64 * 512 / 8 + 64 * 8 + 8) / 1e6, rel=0.01)
    assert seconds(OneBit(), thin) > 1.5 * seconds(OneBit(), wide)
    # Between many workers, each gets the whole bias.
    assert seconds(OneBit(), bias, 8) > 3 * seconds(FullPrecision(), bias, 8)
    assert seconds(Threshold(target_density=0.01), wide) == pytest.approx(4 * 64 * 5.12 / 1e6)
    works = exchange_seconds(FullPrecision(), links, work_seconds=1e-6).of_gradients([wide, wide])
    assert works == pytest.approx(2 * 5 * 64 * 512 / 1e6)
    assert [exchange_seconds(OneBit(), links).compresses(s) for s in (wide, bias)] == [True, False]


@pytest.mark.parametrize(
    "exchange, latency", [(FullPrecision(), 5), (OneBit(), 10), (Threshold(), 5)]
)
def test_a_bucket_takes_the_latency_of_collectives_that_follow_each_other(exchange, latency):
    seconds = exchange_seconds(exchange, uniform_links(1e6, latency_seconds=5.0))
    bucket = [GradientSpec(f"kernel{i}", (64, 64), "float32") for i in range(2)]
    assert seconds.of_bucket(bucket) == pytest.approx(seconds.of_gradients(bucket) + latency)


def test_buckets_are_those_that_an_exchange_makes():
    specs = [GradientSpec(f"kernel{i}", (1024, 1024), "float32") for i in range(4)]
    specs.append(GradientSpec("embedding", (64, 64), "float32", sparse=True))
    specs.append(GradientSpec("precise", (64, 64), "float64"))

    def buckets(bucket_bytes, exclude=()):
        exchange = OneBit(bucket_bytes=bucket_bytes, exclude=exclude)
        made = compressed_buckets(exchange, specs)
        return [(compressed, [spec.name for spec in bucket]) for compressed, bucket in made]

    kernels = ["kernel3", "kernel2", "kernel1", "kernel0"]
    assert buckets(2**30) == [(False, ["precise"]), (True, kernels)]
    assert buckets(8 * 2**20)[1:] == [(True, kernels[:2]), (True, kernels[2:])]
    assert buckets(2**30, ["kernel[01]"])[1:] == [(True, kernels[:2]), (False, kernels[2:])]


class OneOfTwo:
    """One of two workers, as a decision sees an engine."""

    world_size, ranks = 2, (0,)

    def place(self, rank):
        return contextlib.nullcontext()


@pytest.fixture
def decided(monkeypatch, caplog):
    """Returns a function: which gradients are excluded between two workers over given links.

    Encoding takes 2 ns per value, as long as a byte takes at 500 MB/s.
    """

    def decide(links, specs, template=None):
        monkeypatch.setattr(auto.Links, "measure", lambda self: links)
        monkeypatch.setattr(auto.Links, "slowest", lambda self, *values: list(values))

        def work(exchange, world_size):
            return 0.1e-9 if isinstance(exchange, FullPrecision) else 2e-9

        monkeypatch.setattr(auto, "measure_work", work)
        with caplog.at_level(logging.INFO, logger="tf_onebit"):
            exchange = auto.decide(Auto(template), specs, OneOfTwo())
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
    assert f"compresses {compressed:,} of 2,097,152" in caplog.text


def test_what_is_plain_shares_the_messages_of_others_where_that_is_faster(decided, caplog):
    # There is one bucket. Otherwise the bias would have one of its own.
    assert decided(uniform_links(1e8, 4e-3), [KERNEL, BIAS]) == set()
    assert "compresses 1,048,576 of 1,049,600 values" in caplog.text
    # If nothing else is compressed, all gradients share a bucket in full precision.
    assert decided(uniform_links(1e8, 0.1), [KERNEL, BIAS]) == {"kernel", "bias"}


def test_a_small_gradient_does_not_pay_for_messages_of_its_own(decided, caplog):
    """In full precision it shares a bucket with kernels that are not compressed anyway."""
    small = [GradientSpec(f"kernel{i}", (32, 32), "float32") for i in range(2)]
    mostly_full = OneBit(exclude=["kernel0"])
    assert decided(uniform_links(1e6, 5e-4), small, mostly_full) == {"kernel0"}
    assert "compresses 1,024 of 2,048 values" in caplog.text
    assert decided(uniform_links(1e6, 5e-3), small, mostly_full) == {"kernel0", "kernel1"}


def test_what_pays_is_compressed_also_where_others_have_its_name(decided, caplog):
    looked_up = GradientSpec("kernel", (1024, 1024), "float32", sparse=True)
    small = GradientSpec("kernel", (8, 8), "float32")
    assert decided(uniform_links(1e8, 1e-3), [KERNEL, looked_up, small]) == set()
    assert "compresses 1,048,576 of 2,097,216 values" in caplog.text


@pytest.mark.parametrize("template", [WarmStart(Delayed(OneBit()), steps=5), Threshold(tau=0.1)])
def test_links_decide_about_what_encodes_within(decided, template):
    assert decided(uniform_links(1e8, 1e-3), [KERNEL], template) == set()
    assert decided(uniform_links(1e12, 1e-3), [KERNEL], template) == {"kernel"}


def test_embeddings_that_are_made_dense_are_compressed_as_kernels(decided, caplog):
    embedding = GradientSpec("embedding", (1024, 1024), "float32", sparse=True)
    transformed = OneBit(transforms=[tf_onebit.transforms.Momentum(0.9)])
    assert decided(uniform_links(1e8, 1e-3), [embedding], transformed) == set()
    assert "compresses 1,048,576 of 1,048,576 values" in caplog.text
    assert decided(uniform_links(1e8, 1e-3), [embedding]) == {"embedding"}


def test_what_is_logged_makes_the_same_exchange():
    exchange = Auto(WarmStart(Delayed(OneBit(max_column_size=128)), steps=5)).excluding(["a.b"])
    text = as_python(serialize(exchange))
    made = eval(text, {"WarmStart": WarmStart, "Delayed": Delayed, "OneBit": OneBit})
    assert serialize(made) == serialize(exchange)
    assert "levels" not in text  # this is the default


@pytest.mark.parametrize("make", [lambda: WarmStart(Auto(), steps=5), lambda: Auto()])
def test_is_no_part_of_another_exchange(make):
    spec = GradientSpec("kernel", (64, 64), "float32")
    with pytest.raises(ValueError, match=r"Put Auto outside: Auto\(WarmStart\(Delayed"):
        Bucketed(make()).build([spec], 0, 2, "test")
    with pytest.raises(ValueError, match=r"Use Auto\(Delayed\(OneBit\(\)\)\)"):
        Delayed(Auto())
