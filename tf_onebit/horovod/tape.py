"""DistributedGradientTape for custom training loops."""

import functools
import weakref

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from tf_onebit.horovod.compression import requested_exchange
from tf_onebit.horovod.gradients import horovod_exchange

# Programs make a tape in every step; the state of the exchange outlives it with its template.
_exchanges = weakref.WeakKeyDictionary()
# What is asked for without an exchange that was made once.
_resolve = functools.cache(requested_exchange)


class DistributedGradientTape:
    """Wraps a `tf.GradientTape`: `gradient` returns the mean over the workers.

    Args:
        tape: `tf.GradientTape`.
        exchange: `tf_onebit.Exchange`, or "auto". Make it once, outside of the training step: its
            residuals belong to it. Default: `FullPrecision()`.
        compression: instead of `exchange`, one of `Compression`, or a compressor of Horovod's.
        op: `Average` or `Sum` over the workers.

    Raises:
        ValueError: as `DistributedOptimizer`.
        InvalidArgumentError: on all workers, in a step in which a gradient is not finite.

    Example:
        >>> import tf_onebit
        >>> hvd.init()
        >>> exchange = tf_onebit.OneBit()
        >>> x = tf.Variable(3.0)
        >>> with tf.GradientTape() as tape:
        ...     y = x * x
        >>> tape = DistributedGradientTape(tape, exchange)
        >>> float(tape.gradient(y, x))
        6.0
    """

    def __init__(self, tape, exchange=None, compression=None, op=hvd.Average):
        if exchange is None or isinstance(exchange, str):
            template = _resolve(exchange, compression)
        else:
            template = requested_exchange(exchange, compression)
        if template.steps_of_delay:
            raise ValueError(
                "A tape gives the gradients of its own step, which may not be there yet, or be "
                f"others. Received: exchange={template!r}. Leave Delayed out, or use "
                "tf_onebit.horovod.DistributedOptimizer, which knows when there is nothing to "
                "apply."
            )
        by_op = _exchanges.setdefault(template, {})
        if op not in by_op:
            # Of a clone, because values that hold their key would never be freed.
            by_op[op] = horovod_exchange(template.clone(), op)
        self._tape = tape
        self._exchange = by_op[op]

    def gradient(self, target, sources, *args, **kwargs):
        """As `tf.GradientTape.gradient`, exchanged between the workers.

        Raises:
            ValueError: if `sources` are not variables, to which residuals could belong.
        """
        for source in tf.nest.flatten(sources):
            if not isinstance(source, (tf.Variable, keras.Variable)):
                raise ValueError(
                    "DistributedGradientTape exchanges gradients of variables. "
                    f"Received: a source of type {type(source).__name__} in {sources!r}. "
                    "Take gradients with respect to other tensors from the tape that it wraps."
                )
        gradients = self._tape.gradient(target, sources, *args, **kwargs)
        (flat,) = self._exchange([tf.nest.flatten(gradients)], tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, flat)

    def __enter__(self):
        self._tape.__enter__()
        return self

    def __exit__(self, *exception):
        return self._tape.__exit__(*exception)

    def __getattr__(self, name):
        return getattr(self._tape, name)
