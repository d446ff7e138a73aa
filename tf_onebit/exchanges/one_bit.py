"""OneBit: one bit per value, with error feedback, aggregated in two stages."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_onebit import ops
from tf_onebit._configurable import deserialize, serialize
from tf_onebit._layout import WORD_BYTES, Layout, column_cut, plain_cut
from tf_onebit.collectives.requests import AllGather, AllToAll, Cond, Exchanging
from tf_onebit.exchanges.adding import Adding
from tf_onebit.exchanges.arguments import (
    Moments,
    require_column_sizes,
    require_one_of,
    required_moments,
)
from tf_onebit.exchanges.base import WIRE_DTYPE, Exchange, integers
from tf_onebit.exchanges.gradients import Gradient, GradientSpec
from tf_onebit.exchanges.residuals import runs_of
from tf_onebit.exchanges.state import State
from tf_onebit.exchanges.transforming import (
    load_transforms,
    require_dividable,
    require_transforms,
    state_of_transforms,
    transformed,
    transformed_alone,
    unchanged,
)
from tf_onebit.exchanges.uncompressed import Uncompressed
from tf_onebit.exchanges.value_scales import ValueScales
from tf_onebit.transforms import Transform


class OneBit(Adding):
    """1-bit SGD (Seide et al. 2014, section 3).

    Each worker quantizes its gradients to one bit per value and keeps the quantization error as
    a residual, which it adds to its next gradients::

        code_t  = Q(g_t + r_(t-1))        r_t = g_t + r_(t-1) - Q^-1(code_t)

    It sends shard k of the codes to worker k, the owner of the shard. The owner sums the shards
    of all workers and applies `transforms`. It quantizes the sum in the same way, with a residual
    of its own, and sends it to all workers. Both stages together send `2 (K - 1) / K` bits per
    value, two levels per column, and the plain tensors. Tensors with one axis or with fewer than
    `min_size` values are plain: they travel in full precision.

    The second quantization costs the most accuracy, because it is alone, while the errors of K
    workers average out. With `aggregate_bits=2` the owner quantizes the sum, and then the error of
    that, in one step::

        sent_t = Q^-1(Q(s_t + r_(t-1)))     e_t = s_t + r_(t-1) - sent_t
        r_t    = e_t - Q^-1(Q(e_t))

    Both stages then send `3 (K - 1) / K` bits per value.

    Args:
        error_feedback: if False, quantization errors are dropped. Training then diverges in
            general; this only shows what error feedback does.
        levels: "mean": the threshold is 0, and the levels are the means of the values on either
            side, which minimize the squared error. "symmetric": the threshold is the column's
            mean, and the levels are the mean minus and plus the mean absolute deviation.
        min_column_size: shorter rows are merged until they have that many values.
        max_column_size: longer rows are cut into columns of at most that many values. A
            multiple of 32. Shorter columns follow the gradient more closely, and send more
            levels: 64 bits per column.
        min_size: tensors with fewer values are plain.
        bucket_bytes, exclude: see `Exchange`.
        aggregate_bits: bits per value that an owner sends, 1 or 2. 2 needs error feedback. By
            default 2 if moments are local, otherwise 1, as in the paper.
        transforms: list of `tf_onebit.transforms.Transform`, applied to the aggregate in order.
        local_transforms: the same, applied by each worker to its own gradients before they are
            quantized. With transforms of either kind, `tf.IndexedSlices` become dense, and
            gradients that are exchanged in full precision are transformed as well.
        residual_dtype: "float32", or "bfloat16" for residuals of half the memory. These are
            rounded up or down so that errors cancel out over time. Value i of a column is between
            two neighbors of this type. Let a(i) be its distance to the one that is nearer to zero,
            in units of the distance between both. It is rounded to the other one if
            `a(i) + u(i) >= 1`. Here u(i) steps through [0, 1) by the golden ratio, from a start
            that the levels of the column give. So the same gradients give the same bits.
        moments: "local": each worker averages its own gradients in its optimizer, and sends the
            update of its weights. "after": optimizers average exchanged gradients. See `Exchange`
            for equations and limits. By default "local" where that is possible, and "after" with
            transforms. With "local" the residuals are those of updates. In a `WarmStart`, each
            value learns a scale from the updates U of all workers, which costs one float32 per
            value::

                v <- 0.95 v + 0.05 U^2        s = sqrt(v) / sqrt(mean(v)) + 0.01

            Updates are divided by s before they are quantized, and multiplied by it afterwards.
            So a value that has never moved hardly moves. Without a warm start, s is 1.

    Raises:
        ValueError: if a size is not positive, or sizes contradict each other. If a transform or
            pattern is not one, or there are transforms of gradients where moments are local. If
            `aggregate_bits` is neither 1 nor 2, or is 2 without error feedback. If
            `residual_dtype` is another type.

    Example:
        >>> exchange = OneBit(max_column_size=1024)
        >>> exchange.clone().get_config()["max_column_size"]
        1024
    """

    num_gathered = 2
    # The gradients of an untrained model are uneven.
    advised_warm_up = 1000

    def __init__(
        self,
        error_feedback: bool = True,
        levels: Literal["mean", "symmetric"] = "mean",
        min_column_size: int = 64,
        max_column_size: int = 512,
        min_size: int = 1024,
        bucket_bytes: int = 16 * 2**20,
        exclude: Iterable[str] = (),
        transforms: Iterable[Transform] = (),
        local_transforms: Iterable[Transform] = (),
        moments: Moments | None = None,
        aggregate_bits: int | None = None,
        residual_dtype: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        super().__init__(bucket_bytes, exclude)
        require_one_of("levels", levels, ("mean", "symmetric"))
        require_one_of("residual_dtype", residual_dtype, ("float32", "bfloat16"))
        require_column_sizes(min_column_size, max_column_size, min_size)
        self.residual_dtype = residual_dtype
        self._given = {"moments": required_moments(moments), "aggregate_bits": aggregate_bits}
        self.moments = "after" if moments is None and (transforms or local_transforms) else moments
        if aggregate_bits is None:
            aggregate_bits = 2 if moments == "local" and error_feedback else 1
        if aggregate_bits not in (1, 2) or (aggregate_bits == 2 and not error_feedback):
            raise ValueError(
                "aggregate_bits must be 1, or 2 with error_feedback=True, because the second bit "
                f"quantizes the error of the first. Received: aggregate_bits={aggregate_bits!r}, "
                f"error_feedback={error_feedback!r}."
            )
        self.aggregate_bits = aggregate_bits
        self._quantizer: dict[str, Any] = {"levels": levels, "error_feedback": error_feedback}
        self.min_column_size = min_column_size
        self.max_column_size = max_column_size
        self.min_size = min_size
        self.transforms: list[Transform] = [deserialize(transform) for transform in transforms]
        self.local_transforms: list[Transform] = [
            deserialize(transform) for transform in local_transforms
        ]
        require_transforms("transforms", self.transforms)
        require_transforms("local_transforms", self.local_transforms)
        if moments == "local" and self._all_transforms:
            raise ValueError(
                'Transforms change gradients, but with moments="local" workers exchange the '
                f"updates of the optimizer. Received: {self._all_transforms!r}. Use "
                'moments="after", or leave out the transforms.'
            )
        # Transforms have a state for every row, also for rows without a gradient in this step.
        self.takes_sparse = bool(self._all_transforms)

    @property
    def measured_with(self) -> Mapping[str, Any]:
        # Transforms take the same time with and without compression, and contain branches.
        return {"transforms": (), "local_transforms": ()}

    @property
    def _all_transforms(self) -> list[Transform]:
        return self.local_transforms + self.transforms

    def get_config(self) -> dict[str, Any]:
        return {
            **self._quantizer,
            "min_column_size": self.min_column_size,
            "max_column_size": self.max_column_size,
            "min_size": self.min_size,
            "bucket_bytes": self.bucket_bytes,
            "exclude": list(self.exclude),
            "transforms": [serialize(transform) for transform in self.transforms],
            "local_transforms": [serialize(transform) for transform in self.local_transforms],
            "residual_dtype": self.residual_dtype,
            **self._given,
        }

    def create_state(self) -> None:
        self.layout = self.layout_of(self.specs, self.world_size)
        self._local_layout = self.layout_of(self.specs, 1)
        sizes = self.layout.size, self.layout.shard_sizes[self.rank]
        worker_size, shard_size = sizes if self._quantizer["error_feedback"] else (0, 0)
        self.worker_residual, self.shard_residual = (
            tf.Variable(tf.zeros([size], self.residual_dtype), trainable=False)
            for size in (worker_size, shard_size)
        )
        self._sum_of_squares = tf.Variable(0.0, trainable=False)
        self._scales: ValueScales | None = None
        if self.moments == "local" and self.layout.size:
            self._scales = ValueScales(self.specs, self.layout)
        for i, transform in enumerate(self.transforms):
            transform.build(self.layout, self.rank, f"{self.scope}/transform_{i}")
        for i, transform in enumerate(self.local_transforms):
            transform.build(self._local_layout, 0, f"{self.scope}/local_transform_{i}")

    def layout_of(self, specs: Iterable[GradientSpec], world_size: int) -> Layout:
        """Returns the `Layout` of the gradients of a bucket for `world_size` workers."""
        return Layout([self._cut(spec) for spec in specs], world_size)

    def _cut(self, spec: GradientSpec) -> tuple[int, int, int]:
        if len(spec.shape) < 2 or spec.whole_size < self.min_size:
            return plain_cut(spec.shape)
        return spec.size, *column_cut(spec.shape, self.min_column_size, self.max_column_size)

    def encode(self, gradients: Sequence[Gradient]) -> Sequence[tf.Tensor]:
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        if self._scales is not None:
            self._scales.make()
        return ops.one_bit_encode(
            self.transformed_locally(gradients),
            self.worker_residual,
            self.layout,
            dtype=WIRE_DTYPE,
            value_scales=self._value_scales(),
            **self._quantizer,
        )

    def aggregate(self, message: Sequence[tf.Tensor]) -> Exchanging[Sequence[tf.Tensor]]:
        messages, worker_squares = message
        received = yield AllToAll(messages, f"{self.scope}/all_to_all")
        shard, shard_squares, plain = yield from self._aggregate(received)
        self._sum_of_squares.assign(worker_squares + shard_squares)
        # One axis, because messages that wait are in backups, where they always had one.
        return [tf.reshape(shard, [-1]), plain, integers(received[:, 0])]

    def gather(self, message: Sequence[tf.Tensor]) -> Exchanging[tuple[list[tf.Tensor], tf.Tensor]]:
        shard, plain, worker_flags = message
        bits = self.aggregate_bits
        rows = tf.reshape(shard, [bits, self.layout.shard_message_bytes // WORD_BYTES])
        gathered = yield AllGather(rows, f"{self.scope}/all_gather")
        flags = tf.where(worker_flags > 0, worker_flags, integers(gathered[::bits, 0]))
        return [gathered, plain], flags

    def decoded(
        self, gathered: Sequence[tf.Tensor], like: Sequence[Gradient], scale: float
    ) -> list[tf.Tensor]:
        messages, plain = gathered
        like = [tf.convert_to_tensor(gradient) for gradient in like]
        bits, scales = self.aggregate_bits, self._value_scales()
        return ops.one_bit_decode(messages, plain, like, self.layout, scale, bits, scales)

    def add_to(
        self,
        variables: Sequence[tf.Variable],
        gathered: Sequence[tf.Tensor],
        scale: float,
        factor: tf.Tensor | float,
    ) -> None:
        messages, plain = gathered
        bits, scales = self.aggregate_bits, self._value_scales()
        ops.one_bit_decode_add(variables, messages, plain, self.layout, factor, scale, bits, scales)

    def _value_scales(self) -> tf.Tensor | None:
        return None if self._scales is None else self._scales.values()

    def transformed_locally(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the gradients of this worker after `local_transforms`: list of tensors."""
        if not self.local_transforms:
            return gradients
        return transformed_alone(self.local_transforms, gradients, self._local_layout)

    def _aggregate(self, received: tf.Tensor) -> Exchanging[tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
        """Generator: turns the workers' messages about this shard into the message to all.

        Returns:
            The message, the sum of squares of the shard's residual, and the plain values.
        """
        if not self.transforms:
            return ops.one_bit_aggregate(
                received,
                self.shard_residual,
                self.layout,
                self.rank,
                bits=self.aggregate_bits,
                **self._quantizer,
            )
        aggregate, plain = ops.one_bit_decode_sum(received, self.layout, self.rank)
        # Values that are not finite end the step in an error, and must not reach their state.
        aggregate, plain = yield Cond(
            tf.reduce_all(tf.equal(integers(received[:, 0]), 0)),
            lambda: transformed(self.transforms, aggregate, plain),
            lambda: unchanged(aggregate, plain),
        )
        message, squares = ops.one_bit_encode_shard(
            aggregate,
            self.shard_residual,
            self.layout,
            self.rank,
            bits=self.aggregate_bits,
            dtype=received.dtype,
            **self._quantizer,
        )
        return message, squares, plain

    def uncompressed(self) -> Exchange | None:
        if not self._all_transforms:
            return None
        if self.built:
            return Uncompressed(self)
        return Uncompressed(self.from_config(self.get_config() | {"error_feedback": False}))

    def learn(self, updates: Sequence[Gradient]) -> None:
        if self._scales is not None:
            self._scales.note(updates)

    def set_global_batch_size(self, samples: int) -> None:
        for transform in self._all_transforms:
            transform.set_global_batch_size(samples)

    def state(self) -> State:
        state = {
            "worker_residual": self.worker_residual.numpy().astype(np.float32, copy=False),
            "shard_residual": self.shard_residual.numpy().astype(np.float32, copy=False),
        }
        state |= state_of_transforms(self._all_transforms)
        return state if self._scales is None else state | self._scales.state()

    def load_state(self, states: Sequence[State], ratio: float = 1.0) -> None:
        if self._scales is not None:
            # All workers have the same, but only their own with the same number of workers.
            is_alike = len(states) == self.world_size
            self._scales.load_state(states[self.rank if is_alike else 0])
        if len(states) == self.world_size:
            mine = states[self.rank]
            self._assign_residuals(ratio * mine["worker_residual"], ratio * mine["shard_residual"])
            load_transforms(self._all_transforms, lambda name, of_shard: mine[name], ratio)
            return
        require_dividable(self.transforms, self.local_transforms, len(states), self.world_size)
        load_transforms(
            self._all_transforms,
            lambda name, of_shard: self._shard_of(states, name) if of_shard else states[0][name],
            ratio,
        )
        if not self._quantizer["error_feedback"] or not states[0]["worker_residual"].size:
            return
        unsent = np.sum([state["worker_residual"] for state in states], axis=0, dtype=np.float64)
        self._assign_residuals(
            ratio * unsent / self.world_size, ratio * self._shard_of(states, "shard_residual")
        )

    def _assign_residuals(
        self, worker_residual: npt.NDArray[Any] | np.float64, shard_residual: npt.NDArray[Any]
    ) -> None:
        self.worker_residual.assign(tf.cast(worker_residual, self.residual_dtype))
        self.shard_residual.assign(tf.cast(shard_residual, self.residual_dtype))

    def _shard_of(self, states: Sequence[State], name: str) -> npt.NDArray[Any]:
        """Returns this worker's shard of the concatenated shards of an earlier run."""
        whole = np.concatenate([state[name] for state in states])
        end = sum(self.layout.shard_sizes[: self.rank + 1])
        return whole[end - self.layout.shard_sizes[self.rank] : end]

    def expected_bytes(self, specs: Sequence[GradientSpec], world_size: int) -> dict[str, float]:
        layout, others = self.layout_of(specs, world_size), world_size - 1
        return {
            "all_to_all": others * layout.worker_message_bytes,
            "all_gather": others * self.aggregate_bits * layout.shard_message_bytes,
        }

    def bytes_sent(self) -> int:
        shard_bytes = self.aggregate_bits * self.layout.shard_message_bytes
        messages_bytes = self.layout.worker_message_bytes + shard_bytes
        return (self.world_size - 1) * messages_bytes + self.transforms_bytes()

    def transforms_bytes(self) -> int:
        """Returns the bytes that this worker sends for the transforms in each step."""
        return sum(transform.bytes_sent() for transform in self.transforms)

    def residual_sum_of_squares(self) -> float:
        return float(self._sum_of_squares)

    def residuals(self) -> Iterator[tuple[str, tf.Tensor]]:
        if self._quantizer["error_feedback"]:
            mine = zip(self.specs, self.layout.sizes, self.layout.column_sizes, strict=True)
            runs = [(spec.name, size) for spec, size, column_size in mine if column_size]
            yield from runs_of(self.worker_residual, runs)
            shard = [(self.specs[i].name, size) for i, size in self.layout.shard_runs(self.rank)]
            yield from runs_of(self.shard_residual, shard)
