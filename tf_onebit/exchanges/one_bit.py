"""OneBit: one bit per value, with error feedback, aggregated in two stages."""

import numpy as np
import tensorflow as tf

from tf_onebit import ops
from tf_onebit.collectives.requests import AllGather, AllToAll
from tf_onebit.configurable import deserialize, serialize
from tf_onebit.exchanges.base import Exchange
from tf_onebit.exchanges.finite import with_narrow_overflow
from tf_onebit.layout import CODES_PER_WORD, Layout, column_cut, plain_cut
from tf_onebit.transforms import Transform


class OneBit(Exchange):
    """1-bit SGD (Seide et al. 2014, section 3).

    Each worker quantizes its gradients to one bit per value and keeps the quantization error as
    a residual, which it adds to its next gradients:

        code_t  = Q(g_t + r_(t-1))        r_t = g_t + r_(t-1) - Q^-1(code_t)

    and sends shard k of the codes to worker k. That one sums them, applies `transforms`,
    quantizes the sum in the same way, with a residual of its own, and sends it to all. Both
    stages together send `2 (K - 1) / K` bits per value, two levels per column, and the plain
    tensors: those with one axis or fewer than `min_size` values travel in full precision.

    Args:
        error_feedback: if False, quantization errors are dropped. Diverges in general; to show
            what error feedback does.
        levels: "mean": threshold 0, the levels are the means of either side, which minimizes the
            squared error. "symmetric": threshold at the column's mean, levels at the mean minus
            and plus the mean absolute deviation.
        min_column_size: shorter rows are merged until they have that many values.
        max_column_size: longer rows are cut into columns of at most that many values. A
            multiple of 32. Shorter columns follow the gradient more closely and send more
            levels: 64 bits per column.
        min_size: tensors with fewer values are plain.
        bucket_bytes, exclude: see `Exchange`.
        transforms: list of `tf_onebit.transforms.Transform`, applied to the aggregate in order.

    Raises:
        ValueError: for sizes that are not positive or do not fit each other, and for transforms and
            patterns that are none.

    Example:
        >>> exchange = OneBit(max_column_size=1024)
        >>> exchange.clone().get_config()["max_column_size"]
        1024
    """

    def __init__(
        self,
        error_feedback=True,
        levels="mean",
        min_column_size=64,
        max_column_size=512,
        min_size=1024,
        bucket_bytes=16 * 2**20,
        exclude=(),
        transforms=(),
    ):
        super().__init__(bucket_bytes, exclude)
        if levels not in ("mean", "symmetric"):
            raise ValueError(f'levels must be "mean" or "symmetric". Received: levels={levels!r}.')
        if max_column_size < CODES_PER_WORD or max_column_size % CODES_PER_WORD:
            raise ValueError(
                f"max_column_size must be a positive multiple of {CODES_PER_WORD}, because codes "
                f"are sent in words. Received: max_column_size={max_column_size}."
            )
        if not 1 <= min_column_size <= max_column_size:
            raise ValueError(
                "min_column_size must be from 1 to max_column_size. Received: "
                f"min_column_size={min_column_size}, max_column_size={max_column_size}."
            )
        if min_size < 0:
            raise ValueError(
                f"min_size must be a number of values, at least 0. Received: min_size={min_size}."
            )
        self._quantizer = {"levels": levels, "error_feedback": error_feedback}
        self.min_column_size = min_column_size
        self.max_column_size = max_column_size
        self.min_size = min_size
        self.transforms = [deserialize(transform) for transform in transforms]
        for transform in self.transforms:
            if not isinstance(transform, Transform):
                raise ValueError(
                    "transforms must be a list of tf_onebit.transforms.Transform. "
                    f"Received: {transform!r} of type {type(transform).__name__}."
                )

    def get_config(self):
        return {
            **self._quantizer,
            "min_column_size": self.min_column_size,
            "max_column_size": self.max_column_size,
            "min_size": self.min_size,
            "bucket_bytes": self.bucket_bytes,
            "exclude": list(self.exclude),
            "transforms": [serialize(transform) for transform in self.transforms],
        }

    def create_state(self):
        self.layout = Layout([self._cut(spec) for spec in self.specs], self.world_size)
        sizes = self.layout.size, self.layout.shard_sizes[self.rank]
        worker_size, shard_size = sizes if self._quantizer["error_feedback"] else (0, 0)
        self.worker_residual = tf.Variable(tf.zeros([worker_size]), trainable=False)
        self.shard_residual = tf.Variable(tf.zeros([shard_size]), trainable=False)
        self._sum_of_squares = tf.Variable(0.0, trainable=False)
        for i, transform in enumerate(self.transforms):
            transform.build(self.layout, self.rank, self.request_name(f"transform_{i}"))

    def _cut(self, spec):
        if len(spec.shape) < 2 or spec.size < self.min_size:
            return plain_cut(spec.shape)
        return spec.size, *column_cut(spec.shape, self.min_column_size, self.max_column_size)

    def exchange(self, gradients, scale=1.0):
        messages, worker_squares = ops.one_bit_encode(
            gradients, self.worker_residual, self.layout, **self._quantizer
        )
        received = yield AllToAll(messages, self.request_name("all_to_all"))
        message, shard_squares, plain = yield from self._aggregate(received)
        gathered = yield AllGather(message[tf.newaxis], self.request_name("all_gather"))
        self._sum_of_squares.assign(worker_squares + shard_squares)
        exchanged = ops.one_bit_decode(gathered, plain, gradients, self.layout, scale)
        worker_flags, owner_flags = received[:, 0], gathered[:, 0]
        flags = tf.where(worker_flags > 0, worker_flags, owner_flags)
        return exchanged, with_narrow_overflow(flags, exchanged)

    def _aggregate(self, received):
        """Generator: from what all workers sent about this shard to what all are sent of it."""
        if not self.transforms:
            return ops.one_bit_aggregate(
                received, self.shard_residual, self.layout, self.rank, **self._quantizer
            )
        aggregate, plain = ops.one_bit_decode_sum(received, self.layout, self.rank)
        for transform in self.transforms:
            aggregate, plain = yield from transform.transform(aggregate, plain)
        message, squares = ops.one_bit_encode_shard(
            aggregate, self.shard_residual, self.layout, self.rank, **self._quantizer
        )
        return message, squares, plain

    def state(self):
        state = {
            "worker_residual": self.worker_residual.numpy(),
            "shard_residual": self.shard_residual.numpy(),
        }
        for i, transform in enumerate(self.transforms):
            for j, variable in enumerate(transform.variables):
                state[f"transform_{i}/{j}"] = variable.numpy()
        return state

    def load_state(self, states, ratio=1.0):
        if len(states) == self.world_size:
            mine = states[self.rank]
            self.worker_residual.assign(ratio * mine["worker_residual"])
            self.shard_residual.assign(ratio * mine["shard_residual"])
            for i, transform in enumerate(self.transforms):
                for j, variable in enumerate(transform.variables):
                    variable.assign(mine[f"transform_{i}/{j}"])
            return
        if any(transform.variables for transform in self.transforms):
            raise ValueError(
                "Transforms with variables can only be resumed with as many workers as before. "
                f"Received: a state of {len(states)} workers for {self.world_size}."
            )
        if not self._quantizer["error_feedback"]:
            return
        unsent = np.sum([state["worker_residual"] for state in states], axis=0, dtype=np.float64)
        self.worker_residual.assign(ratio * unsent / self.world_size)
        unsent = np.concatenate([state["shard_residual"] for state in states])
        end = sum(self.layout.shard_sizes[: self.rank + 1])
        self.shard_residual.assign(ratio * unsent[end - self.layout.shard_sizes[self.rank] : end])

    def bytes_sent(self):
        messages_bytes = self.layout.worker_message_bytes + self.layout.shard_message_bytes
        transforms_bytes = sum(transform.bytes_sent() for transform in self.transforms)
        return (self.world_size - 1) * messages_bytes + transforms_bytes

    def residual_sum_of_squares(self):
        return float(self._sum_of_squares)
