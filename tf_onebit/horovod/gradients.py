"""The exchange of a program's gradients over Horovod: built on first use, kept for good."""

import functools
import itertools

import horovod.tensorflow as hvd
import tensorflow as tf

from tf_onebit.collectives import horovod as driver
from tf_onebit.exchanges import Exchange, FullPrecision, GradientSpec
from tf_onebit.exchanges.finite import all_finite, not_finite_flag
from tf_onebit.exchanges.handshake import handshake
from tf_onebit.horovod.build import build
from tf_onebit.horovod.compression import as_exchange

# Counts what is exchanged, in the order of first use: all workers must take part in each, so they
# count alike. (They need not make the same objects: one may log, test or save more than another.)
_numbers = itertools.count()


def resolve_exchange(exchange, compression):
    """The exchange that a user asked for by either argument; full precision by neither."""
    if exchange is not None and compression is not None:
        raise ValueError(
            "exchange and compression are two ways to say the same thing. "
            f"Received: exchange={exchange!r}, compression={compression!r}. Pass one of them."
        )
    if compression is not None:
        return as_exchange(compression)
    if exchange is None:
        return FullPrecision()
    if not isinstance(exchange, Exchange):
        raise ValueError(
            "exchange must be a tf_onebit.Exchange, for example tf_onebit.OneBit(). "
            f"Received: exchange={exchange!r} of type {type(exchange).__name__}."
        )
    return exchange


class GradientExchange:
    """Exchanges lists of gradients.

    Args:
        template: the user's exchange.
        op: `Average` or `Sum` over the workers.
        settings: list of (what, value) pairs of strings in which workers must agree, too.

    Attributes:
        variables, latest: where an optimizer keeps, within one step, whose gradients it was
            given and what their exchange returned.
    """

    def __init__(self, template, op, settings=()):
        if op not in (hvd.Average, hvd.Sum):
            raise ValueError(f"op must be Average or Sum of tf_onebit.horovod. Received: op={op}.")
        self.template = template
        self._op = op
        self._settings = [("op", "Average" if op == hvd.Average else "Sum"), *settings]
        self._built = {}
        self.variables = self.latest = None

    @property
    def built(self):
        """The exchanges that exist so far: one for each list of variables."""
        return [exchange for exchange, _ in self._built.values()]

    def __call__(self, gradients, variables):
        """Exchanges the gradients of `variables`; None stays None.

        The first call with a list of variables builds the exchange, and compares the workers.
        """
        if hvd.size() == 1:
            return list(gradients)
        pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        exchange = self._exchange_for(pairs)
        scale = 1.0 / hvd.size() if self._op == hvd.Average else 1.0
        present = [
            g if isinstance(g, tf.IndexedSlices) else tf.convert_to_tensor(g) for g, _ in pairs
        ]
        exchanged, _ = driver.run(exchange.exchange(present, scale))
        exchanged = iter(exchanged)
        return [None if g is None else next(exchanged) for g in gradients]

    def all_finite(self, gradients):
        """Whether the gradients of all workers are finite: boolean scalar, the same on all."""
        present = [g for g in gradients if g is not None]
        if not present:
            return tf.constant(True)
        if hvd.size() == 1:
            return tf.equal(not_finite_flag(present), 0)
        return driver.run(all_finite(present, f"{self._scope}/all_finite"))

    @functools.cached_property
    def _scope(self):
        """Prefix of the names of this object's collectives, of which the first compares workers."""
        scope = f"tf_onebit_{next(_numbers)}"
        with tf.init_scope():
            driver.run(handshake(scope, self._settings))
        return scope

    def _exchange_for(self, pairs):
        specs = tuple(_spec(gradient, variable) for gradient, variable in pairs)
        variables = [variable for _, variable in pairs]
        # Names alone do not tell variables apart: many are called "Variable:0".
        key = specs, tuple(map(id, variables))
        if key not in self._built:
            scope = f"{self._scope}/{len(self._built)}"
            # With the variables, because the ids of objects that are gone come again.
            self._built[key] = build(self.template, specs, scope), variables
        exchange, _ = self._built[key]
        return exchange


def _spec(gradient, variable):
    return GradientSpec(
        name=getattr(variable, "path", variable.name),
        shape=tuple(variable.shape),
        dtype=tf.as_dtype(gradient.dtype).name,
        sparse=isinstance(gradient, tf.IndexedSlices),
    )
