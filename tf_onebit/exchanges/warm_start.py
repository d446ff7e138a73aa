"""WarmStart: full precision first."""

import tensorflow as tf

from tf_onebit.collectives.requests import Cond
from tf_onebit.configurable import deserialize, serialize
from tf_onebit.exchanges.base import Exchange, part_of
from tf_onebit.exchanges.full_precision import FullPrecision
from tf_onebit.validation import number_of_samples


class WarmStart(Exchange):
    """Exchanges in full precision at first, then as `exchange` does.

    Gradients of a model that is not yet trained are uneven and change quickly; Seide et al. 2014
    (section 5.2) train the first 24 hours of 309 without quantization. Transforms of the exchange
    work from the first step on.

    About a tenth of the job's steps is a good length, and no more than a part of the first epoch. A
    `fit` that ends within the warm start has compressed nothing: worker 0 then warns, once.

    Args:
        exchange: the exchange that follows.
        steps: number of exchanges in full precision.
        samples: instead of `steps`, of how many samples the exchanges in full precision are: the
            first that begins after as many is compressed.
        global_batch_size: with `samples`, the number of samples that all workers together take per
            step, unless `set_global_batch_size` says another.

    Raises:
        ValueError: if `steps` is negative or not a whole number, `samples` comes without
            `global_batch_size`, or `exchange` is not an exchange.

    Example:
        >>> from tf_onebit.exchanges import OneBit
        >>> WarmStart(OneBit(), steps=500).steps
        500
        >>> WarmStart(OneBit(), samples=8_640_000, global_batch_size=256).samples
        8640000
    """

    def __init__(self, exchange, steps=None, samples=None, global_batch_size=None):
        exchange = deserialize(exchange)
        if not isinstance(exchange, Exchange):
            raise ValueError(
                "WarmStart needs an exchange, for example WarmStart(OneBit(), steps=500). "
                f"Received: exchange={exchange!r}."
            )
        by_samples = samples is not None
        if (steps is not None) == by_samples or (global_batch_size is not None) != by_samples:
            raise ValueError(
                "WarmStart needs a number of steps, or one of samples and a global_batch_size. "
                f"Received: steps={steps}, samples={samples}, "
                f"global_batch_size={global_batch_size}. Use WarmStart(exchange, steps=500) or "
                "WarmStart(exchange, samples=128_000, global_batch_size=256)."
            )
        if steps is not None and (steps < 0 or steps != int(steps)):
            raise ValueError(
                f"steps must be a whole number of exchanges, at least 0. Received: steps={steps}."
            )
        super().__init__(exchange.bucket_bytes, exchange.exclude)
        self.steps = steps if steps is None else int(steps)
        self.samples = self.global_batch_size = None
        if by_samples:
            self.samples = number_of_samples("samples", samples)
            self.global_batch_size = number_of_samples("global_batch_size", global_batch_size)
        self.compressed = exchange
        self.dtypes, self.steps_of_delay = exchange.dtypes, exchange.steps_of_delay
        in_full_precision = exchange.in_full_precision()
        self.takes_sparse = in_full_precision is not None and in_full_precision.takes_sparse

    def get_config(self):
        return {
            "exchange": serialize(self.compressed),
            "steps": self.steps,
            "samples": self.samples,
            "global_batch_size": self.global_batch_size,
        }

    def create_state(self):
        self._length = self.samples if self.steps is None else self.steps
        # How much of it is over, how much an exchange adds, and whether the last was within it.
        self._progress, self._increment = (
            tf.Variable(value, dtype=tf.int64, trainable=False)
            for value in (0, self.global_batch_size or 1)
        )
        self._was_warm = tf.Variable(self._length > 0, trainable=False)
        self.compressed.build(*self._arguments("compressed"))
        in_full_precision = self.compressed.in_full_precision()
        self.full_precision = in_full_precision or FullPrecision(self.bucket_bytes)
        if self.full_precision is not self.compressed:
            self.full_precision.build(*self._arguments("full_precision"))

    def _arguments(self, stage):
        return self.specs, self.rank, self.world_size, self.request_name(stage), self.unit

    def exchange(self, gradients, scale=1.0):
        warm = self._is_warm()
        self._count(gradients, warm)
        if self.full_precision is self.compressed:
            return (yield from self.compressed.exchange(gradients, scale))
        exchanged, self.first_answer = yield Cond(
            warm,
            lambda: _with_first_answer(self.full_precision, gradients, scale),
            lambda: _with_first_answer(self.compressed, gradients, scale),
        )
        return exchanged

    def in_full_precision(self):
        in_full_precision = self.compressed.in_full_precision()
        if in_full_precision is None or hasattr(self, "specs"):
            return in_full_precision
        # It compresses nothing later either, but counts, and has the state of one that does.
        return self.from_config(self.get_config() | {"exchange": serialize(in_full_precision)})

    def set_global_batch_size(self, samples):
        if self.samples is not None:
            self._increment.assign(samples)
        self.compressed.set_global_batch_size(samples)

    def _is_warm(self):
        return self._progress < self._length

    def _count(self, gradients, warm):
        # Not in a step that ends for want of data.
        with tf.control_dependencies(tf.nest.flatten(gradients, expand_composites=True)):
            self._was_warm.assign(warm)
            self._progress.assign_add(self._increment)

    def set_early(self, early):
        self.compressed.set_early(early)

    def deliver_after(self, answers):
        self.compressed.deliver_after(answers)

    def delivers(self):
        return self._is_warm() | self.compressed.delivers()

    def hold(self, gradients):
        self._count(gradients, False)
        return (yield from self.compressed.hold(gradients))

    def number_held(self):
        return self.compressed.number_held()

    def release(self, number, like, scale):
        released = yield from self.compressed.release(number, like, scale)
        self.first_answer = self.compressed.first_answer
        return released

    def set_delay(self, on):
        self.compressed.set_delay(on)

    def alongside(self, exchange):
        # What does the same without compressing may be warm as well, and is delayed within that.
        beginning = exchange.compressed if isinstance(exchange, WarmStart) else exchange
        beside = self.compressed.alongside(beginning)
        if beside is beginning:
            return exchange
        return WarmStart(beside, self.steps, self.samples, self.global_batch_size)

    def state(self):
        compressed = self.compressed.state().items()
        return {
            "progress": self._progress.numpy(),
            "increment": self._increment.numpy(),
            **{f"compressed/{name}": array for name, array in compressed},
        }

    def load_state(self, states, ratio=1.0):
        mine = states[self.rank if len(states) == self.world_size else 0]
        self._progress.assign(mine["progress"])
        self._increment.assign(mine["increment"])
        self.compressed.load_state([part_of(state, "compressed") for state in states], ratio)

    def _last(self):
        return self.full_precision if self._was_warm else self.compressed

    def bytes_sent(self):
        return self._last().bytes_sent()

    def residual_sum_of_squares(self):
        return self._last().residual_sum_of_squares()

    def residual_squares(self):
        return self.compressed.residual_squares()

    def measures(self):
        return self._last().measures()

    def advice(self):
        progress, name = int(self._progress), "samples" if self.steps is None else "steps"
        if progress >= self._length:
            return self.compressed.advice()
        if progress == 0 or self.full_precision is self.compressed:
            return None
        return (
            f"Training has ended within its warm start, after {progress} of {self._length} {name}: "
            "all gradients have been sent uncompressed. Unless it goes on, use "
            f"WarmStart(..., {name}=...) with about a tenth of the job's {name}. Received: "
            f"{name}={self._length}. Use for example {name}={max(1, progress // 10)}."
        )


def _with_first_answer(exchange, gradients, scale):
    """Generator: what `exchange.exchange` returns, and its `first_answer`, or nothing for it."""
    exchanged = yield from exchange.exchange(gradients, scale)
    if exchange.first_answer is None:
        return exchanged, tf.zeros([0], tf.int32)
    return exchanged, exchange.first_answer
