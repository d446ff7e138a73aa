"""Bucketed: an exchange for a whole model, made of clones of the user's exchange."""

import numpy as np
import tensorflow as tf

from tf_onebit.configurable import deserialize, serialize
from tf_onebit.exchanges.base import (
    FLOAT_BYTES,
    Exchange,
    all_reduce_bytes,
    part_of,
    require_same_kind,
    summed,
)
from tf_onebit.exchanges.finite import require_finite
from tf_onebit.exchanges.full_precision import FullPrecision
from tf_onebit.exchanges.handshake import describe, handshake
from tf_onebit.exchanges.sparse import SparseGather

# Part of a model's gradients that come early in a backward pass. A little more than what is left
# to do after them takes: the links have work until the end of a step, and not much beyond.
EARLY = 2 / 3


class Bucketed(Exchange):
    """Exchanges all gradients of a model, each bucket by an exchange of its own.

    Gradients come in the order of the variables; the backward pass produces them roughly in the
    reverse order, and so the buckets are filled. A bucket holds gradients of one type. What the
    user's exchange excludes, or has no type for, goes through `FullPrecision`;
    `tf.IndexedSlices` go through `SparseGather`.

    If the user's exchange transforms gradients, so does what they are exchanged by instead.

    Buckets depend on nothing but their own gradients. In the graph of a training step they are
    therefore exchanged as soon as these are there, while others are still computed.

    Args:
        template: the user's exchange; cloned, not used itself.

    Attributes:
        buckets: list of (exchange, indices of its gradients), once it is built.
    """

    def __init__(self, template):
        template = deserialize(template)
        super().__init__(template.bucket_bytes, template.exclude)
        self.template = template

    def get_config(self):
        return {"template": serialize(self.template)}

    def create_state(self):
        self.buckets, self._is_early, before = [], [], 0
        size = sum(spec.size for spec in self.specs)
        for i, (template, indices) in enumerate(self.partition(self.specs)):
            exchange = template.clone()
            specs = [self.specs[index] for index in indices]
            self._is_early.append(before <= EARLY * size or not self.template.steps_of_delay)
            exchange.set_early(self._is_early[-1])
            before += sum(spec.size for spec in specs)
            scope = self.request_name(f"bucket_{i}")
            exchange.build(specs, self.rank, self.world_size, scope, self.unit)
            self.buckets.append((exchange, indices))

    def partition(self, specs):
        """The buckets of some gradients: list of (template of the exchange, their indices)."""
        in_full_precision = self.template.in_full_precision() or FullPrecision(self.bucket_bytes)
        full_precision = self.template.alongside(in_full_precision)
        sparse = self.template.alongside(SparseGather())
        partition, open_buckets = [], {}
        for index, spec in reversed(list(enumerate(specs))):
            template = self.template
            if spec.sparse and not template.takes_sparse:
                template = sparse
            elif spec.dtype not in template.dtypes or self.excludes(spec.name):
                template = full_precision
            indices, bucket_bytes = open_buckets.get((template, spec.dtype), (None, 0))
            if not 0 < bucket_bytes < self.bucket_bytes:
                indices, bucket_bytes = [], 0
                partition.append((template, indices))
            indices.append(index)
            bucket_bytes += max(1, spec.size) * FLOAT_BYTES
            open_buckets[template, spec.dtype] = indices, bucket_bytes
        return partition

    def handshake(self, specs, world_size, scope):
        """Generator: raises ValueError on all workers unless they are about to build the same.

        Runs in eager mode, before `build`, whose arguments it takes.
        """
        yield from handshake(scope, describe(self.template, specs, world_size))

    def exchange(self, gradients, scale=1.0):
        return (
            yield from self._of_all_buckets(
                lambda exchange, bucket: exchange.exchange(bucket, scale), gradients
            )
        )

    def _of_all_buckets(self, exchanging, tensors):
        """Generator: what an exchange returns, put together from those of the buckets.

        Args:
            exchanging: function of a bucket's exchange and its part of `tensors`.
            tensors: list, as the gradients.
        """
        exchanged, flags, answers = [None] * len(self.specs), [], []
        # The late ones first: early ones, which have less left to send, let them pass.
        for is_early, (exchange, indices) in sorted(
            zip(self._is_early, self.buckets, strict=True), key=lambda pair: pair[0]
        ):
            exchange.deliver_after(answers if is_early else [])
            bucket, bucket_flags = yield from exchanging(exchange, [tensors[i] for i in indices])
            if not is_early and exchange.first_answer is not None:
                answers.append(exchange.first_answer)
            for index, gradient in zip(indices, bucket, strict=True):
                exchanged[index] = gradient
            # From 1 + the index in the bucket to 1 + the index in the list.
            flags.append(tf.gather([0, *(1 + index for index in indices)], bucket_flags))
        flags = tf.reduce_max(tf.stack(flags), axis=0)
        names = [spec.name for spec in self.specs]
        # Only when all buckets are through: a check on one of them could end the step of one
        # worker while the others still wait for its part of the next.
        with tf.control_dependencies(tf.nest.flatten(exchanged, expand_composites=True)):
            flags = tf.identity(flags)
        # An error would end what is still under way, and a bucket of `Delayed` would give the same
        # message, with the same error, in each step to come.
        kept = [tf.convert_to_tensor(exchange.delivers()) for exchange, _ in self.buckets]
        return require_finite(exchanged, flags, names, kept), flags

    def delivers(self):
        # All buckets began in the same step.
        return self.buckets[0][0].delivers()

    def hold(self, gradients):
        for exchange, indices in self.buckets:
            yield from exchange.hold([gradients[index] for index in indices])

    def number_held(self):
        return self.buckets[0][0].number_held()

    def release(self, number, like, scale):
        return (
            yield from self._of_all_buckets(
                lambda exchange, bucket: exchange.release(number, bucket, scale), like
            )
        )

    def set_stages(self, stages_of):
        for exchange, _ in self.buckets:
            exchange.set_stages(stages_of)

    def set_delay(self, on):
        for exchange, _ in self.buckets:
            exchange.set_delay(on)

    def state(self):
        return {
            f"bucket_{i}/{name}": array
            for i, (exchange, _) in enumerate(self.buckets)
            for name, array in exchange.state().items()
        }

    def load_state(self, states, ratio=1.0):
        require_same_kind(self, states)
        for i, (exchange, _) in enumerate(self.buckets):
            exchange.load_state([part_of(state, f"bucket_{i}") for state in states], ratio)

    def set_global_batch_size(self, samples):
        for exchange, _ in self.buckets:
            exchange.set_global_batch_size(samples)

    def bytes_sent(self):
        return sum(exchange.bytes_sent() for exchange, _ in self.buckets)

    def full_precision_bytes(self):
        """What the same exchange would send in float32: `IndexedSlices` as they are."""
        dense_bytes = sum(spec.size * FLOAT_BYTES for spec in self.specs if not spec.sparse)
        sparse_bytes = sum(e.bytes_sent() for e, (i, *_) in self.buckets if self.specs[i].sparse)
        return all_reduce_bytes(dense_bytes, self.world_size) + sparse_bytes

    def residual_sum_of_squares(self):
        return sum(exchange.residual_sum_of_squares() for exchange, _ in self.buckets)

    def residual_squares(self):
        return summed(exchange.residual_squares() for exchange, _ in self.buckets)

    def advice(self):
        return next(filter(None, (exchange.advice() for exchange, _ in self.buckets)), None)

    def measures(self):
        """The buckets' figures, averaged by their numbers of values."""
        values, weights = {}, {}
        for exchange, indices in self.buckets:
            size = max(1, sum(self.specs[index].size for index in indices))
            for name, value in exchange.measures().items():
                values.setdefault(name, []).append(value)
                weights.setdefault(name, []).append(size)
        return {name: float(np.average(values[name], weights=weights[name])) for name in values}
