"""Dead reckoning: every worker applies the deltas of all workers as they arrive."""

import functools

import keras
import numpy as np
import tensorflow as tf

from tf_onebit import ops
from tf_onebit._training.optimizer_exchange import OptimizerExchange
from tf_onebit.exchanges import Bucketed, GradientSpec
from tf_onebit.exchanges.base import integers
from tf_onebit.exchanges.schedule import schedule_of
from tf_onebit.horovod.pump import Pump
from tf_onebit.ops import threshold as message


class DeadReckoning(OptimizerExchange):
    """Exchange of weight deltas between workers that do not wait for each other.

    The method is from Strom 2015, section 2.3.

    Args:
        template: `Threshold`.
        engine: `HorovodEngine`.
        mean: whether a worker's deltas are divided by the number of workers.
        settings: list of (name, value) pairs of strings that must be the same on all workers.
        max_staleness, timeout_seconds: see `AsynchronousOptimizer`.
    """

    is_asynchronous = True

    def __init__(self, template, engine, mean, settings, max_staleness, timeout_seconds):
        super().__init__(template, engine, mean, settings)
        self._max_staleness = max_staleness
        self._timeout_seconds = timeout_seconds
        self._pump = None
        self._rescues = []

    def step(self, gradients, variables, learning_rate):
        """Encodes gradients, and subtracts the arrived deltas of all workers from variables.

        Args:
            gradients: list of tensors or `tf.IndexedSlices`.
            variables: list of Keras variables, the same in every step.
            learning_rate: float32 scalar.
        """
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        specs = tuple(map(GradientSpec.of, gradients, variables))
        (bucketed,) = self.exchanges.of(specs, variables)
        exchange = bucketed.exchange
        rate = tf.cast(learning_rate, tf.float32) * self.scale
        most = min(sum(spec.size for spec in specs), exchange.part_size)
        mine = exchange.message(gradients, most, rate, pad=False)
        exchange.follow(mine, 0)
        arrived = tf.numpy_function(self._swap, [integers(mine)], tf.int32)
        arrived = tf.ensure_shape(arrived, [None, mine.shape[1], None])
        # Waits, because a gradient that is not finite must leave the weights unchanged.
        with tf.control_dependencies([arrived]):
            self._apply(exchange, variables, mine)
        self._apply(exchange, variables, arrived)

    def _build(self, specs, scope):
        if self.exchanges:
            raise ValueError(
                "An asynchronous optimizer must update the same variables in every step. "
                f"Received: {len(specs)} gradients that differ from those of its first step. If "
                "layers were frozen, compile the model again with a new optimizer."
            )
        engine = self.workers.engine
        (rank,), world_size = engine.ranks, engine.world_size
        exchange = _InOneBucket(self.template)
        with tf.init_scope():
            engine.run([exchange.handshake(specs, world_size, scope)])
            with engine.place(0):
                exchange.build(specs, rank, world_size, scope)
        if world_size > 1:
            self._pump = Pump(
                self._max_staleness,
                self._timeout_seconds,
                functools.partial(_fault_of, [spec.name for spec in specs]),
                lambda: "".join(
                    f" This worker's replica is saved: {save()}." for save in self._rescues
                ),
            )
        return [exchange]

    def _swap(self, mine):
        (words,) = mine
        # On a GPU a message has room for all values: cut off the unused words.
        words = words[:, : words[:, message.WORDS].max()]
        if self._pump is None:
            fault = _fault_of([spec.name for spec in self.built[0].specs], words, rank=0)
            if fault is not None:
                raise fault
            return mine[:0]
        return _stacked(self._pump.swap(words), len(words))

    def _apply(self, exchange, variables, messages):
        values = [v.value if isinstance(v, keras.Variable) else v for v in variables]
        ops.threshold_apply(values, exchange.packed(messages), exchange.part_size)

    def drain(self, occasion, last=False):
        if self._pump is None:
            return
        (((bucketed,), variables),) = self.exchanges
        exchange = bucketed.exchange
        for messages in self._pump.drain(occasion, last):
            parts = -(-sum(spec.size for spec in exchange.specs) // exchange.part_size)
            self._apply(exchange, variables, tf.constant(_stacked(messages, parts)))

    def rescue_with(self, save):
        self._rescues = [] if save is None else [save]

    def metrics(self):
        staleness, delay = 0, 0.0
        if self._pump is not None:
            staleness, delay = self._pump.staleness(), self._pump.delay()
        return {**super().metrics(), "staleness": float(staleness), "delay": delay}


class _InOneBucket(Bucketed):
    """Bucketed exchange of all gradients in one bucket, with its exchange's state alone."""

    @property
    def exchange(self):
        """The built `Threshold`."""
        return self.buckets[0].exchange

    def partition(self, specs):
        return [(schedule_of(self.template), list(range(len(specs))))]

    def state(self):
        return self.exchange.state()

    def load_state(self, states, ratio=1.0):
        self.exchange.load_state(states, ratio)


def _fault_of(names, words, rank):
    """Returns an exception if a message reports a gradient that was not finite, or None."""
    flag = words[0, message.FLAG]
    if flag == 0:
        return None
    if not 0 < flag <= len(names):
        return ValueError(f"The message of rank {rank} is corrupt: its flag is {flag}.")
    return ValueError(
        f"Gradients must be finite. Rank {rank} met an infinity or NaN in the gradient of "
        f"'{names[flag - 1]}'. Lower the learning rate or clip the inputs."
    )


def _stacked(messages, parts):
    """Stacks messages `[parts, words]` of any lengths in one array, padded with zeros."""
    words = max([message.HEADER_WORDS, *(m.shape[1] for m in messages)])
    stacked = np.zeros([len(messages), parts, words], np.int32)
    for row, one in zip(stacked, messages, strict=True):
        row[:, : one.shape[1]] = one
    return stacked
