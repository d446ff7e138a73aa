"""WarmStart: full precision first."""

import tensorflow as tf

from tf_onebit.collectives.requests import Cond
from tf_onebit.configurable import deserialize, serialize
from tf_onebit.exchanges.base import Exchange, part_of
from tf_onebit.exchanges.full_precision import FullPrecision


class WarmStart(Exchange):
    """Exchanges in full precision for the first steps, then as `exchange` does.

    Gradients of a model that is not yet trained are uneven and change quickly; Seide et al. 2014
    (section 5.2) train the first 24 hours of 309 without quantization.

    Args:
        exchange: the exchange that follows.
        steps: number of exchanges in full precision.

    Raises:
        ValueError: if `steps` is negative or not a whole number, or `exchange` is not an exchange.

    Example:
        >>> from tf_onebit.exchanges import OneBit
        >>> WarmStart(OneBit(), steps=500).steps
        500
    """

    def __init__(self, exchange, steps):
        exchange = deserialize(exchange)
        if not isinstance(exchange, Exchange):
            raise ValueError(
                "WarmStart needs an exchange, for example WarmStart(OneBit(), steps=500). "
                f"Received: exchange={exchange!r}."
            )
        if steps < 0 or steps != int(steps):
            raise ValueError(
                f"steps must be a whole number of exchanges, at least 0. Received: steps={steps}."
            )
        super().__init__(exchange.bucket_bytes, exchange.exclude)
        self.steps = int(steps)
        self.compressed = exchange
        self.full_precision = FullPrecision(exchange.bucket_bytes)
        self.dtypes = exchange.dtypes

    def get_config(self):
        return {"exchange": serialize(self.compressed), "steps": self.steps}

    def create_state(self):
        self._exchanges = tf.Variable(0, dtype=tf.int64, trainable=False)
        for exchange, stage in (
            (self.full_precision, "full_precision"),
            (self.compressed, "compressed"),
        ):
            exchange.build(
                self.specs, self.rank, self.world_size, self.request_name(stage), self.unit
            )

    def exchange(self, gradients, scale=1.0):
        warm = self._exchanges < self.steps
        # Not in a step that ends for want of data.
        with tf.control_dependencies(tf.nest.flatten(gradients, expand_composites=True)):
            self._exchanges.assign_add(1)
        return (
            yield Cond(
                warm,
                lambda: self.full_precision.exchange(gradients, scale),
                lambda: self.compressed.exchange(gradients, scale),
            )
        )

    def state(self):
        compressed = self.compressed.state().items()
        return {
            "exchanges": self._exchanges.numpy(),
            **{f"compressed/{name}": array for name, array in compressed},
        }

    def load_state(self, states, ratio=1.0):
        mine = states[self.rank if len(states) == self.world_size else 0]
        self._exchanges.assign(mine["exchanges"])
        self.compressed.load_state([part_of(state, "compressed") for state in states], ratio)

    def _last(self):
        return self.full_precision if self._exchanges <= self.steps else self.compressed

    def bytes_sent(self):
        return self._last().bytes_sent()

    def residual_sum_of_squares(self):
        return self._last().residual_sum_of_squares()

    def measures(self):
        return self._last().measures()
