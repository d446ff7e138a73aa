"""ValueScales: how large each value of an update usually is, learned in full precision."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_onebit.collectives.requests import Exchanging
from tf_onebit.exchanges.full_precision import FullPrecision
from tf_onebit.exchanges.gradients import Gradient, GradientSpec
from tf_onebit.exchanges.state import State

DECAY = 0.95
# Part of a tensor's scale that all of its values have at least.
FLOOR = 0.01
# What the variables of `ValueScales` contain: nothing yet, v, or s.
_NOTHING, _SQUARES, _SCALES = range(3)


class ValueScales(tf.Module):
    """Scales that make the values of a column alike, so that one level of each sign fits them.

    They follow the updates U that workers have exchanged in full precision, so all workers have
    the same scales without sending them. For each tensor::

        v <- 0.95 v + 0.05 U^2        s = sqrt(v) / sqrt(mean(v)) + 0.01

    A worker quantizes its update divided by s, and multiplies what it receives by s. Whatever s
    is, the residual keeps what quantization leaves out. So scales may be old. A value that never
    moved is quantized to a hundredth of the others, and hardly moves.

    Without any update in full precision, s is 1. After the last one, the first compressed step
    turns v into s, in the same memory. From then on nothing is learned.

    Args:
        specs: list of `GradientSpec` of dense tensors.
        are_scaled: list of booleans, whether each tensor has scales. Others stay as they are.
    """

    def __init__(self, specs: Sequence[GradientSpec], are_scaled: Sequence[bool]) -> None:
        super().__init__()
        self._values = [
            tf.Variable(tf.zeros(spec.shape), trainable=False) if is_scaled else None
            for spec, is_scaled in zip(specs, are_scaled, strict=True)
        ]
        self._content = tf.Variable(_NOTHING, trainable=False)

    def note(self, updates: Sequence[Gradient]) -> None:
        """Learns from updates that all workers have: list of tensors."""

        def learn() -> bool:
            for square, update in zip(self._values, updates, strict=True):
                if square is not None:
                    new = DECAY * square + (1 - DECAY) * tf.square(tf.cast(update, tf.float32))
                    # An update that is not finite ends the step in an error, and must not be
                    # learned.
                    square.assign(tf.where(tf.math.is_finite(new), new, square))
            self._content.assign(_SQUARES)
            return True

        tf.cond(self._content < _SCALES, learn, lambda: False)

    def divided(self, updates: Sequence[Gradient]) -> list[tf.Tensor]:
        """Returns updates divided by the scales: list of tensors, float32 where scaled."""
        tf.cond(tf.equal(self._content, _SQUARES), self._make_scales, lambda: False)
        return self._scaled(updates, tf.divide)

    def multiplied(self, updates: Sequence[tf.Tensor]) -> list[Gradient]:
        """Returns updates multiplied by the scales, in their own types: list of tensors."""
        products = self._scaled(updates, tf.multiply)
        return [tf.cast(a, b.dtype) for a, b in zip(products, updates, strict=True)]

    def _scaled(
        self, updates: Sequence[Gradient], operation: Callable[..., tf.Tensor]
    ) -> list[tf.Tensor]:
        cast = [
            update if scale is None else tf.cast(update, tf.float32)
            for update, scale in zip(updates, self._values, strict=True)
        ]

        def scaled() -> list[tf.Tensor]:
            return [
                update if scale is None else operation(update, scale)
                for update, scale in zip(cast, self._values, strict=True)
            ]

        return tf.cond(tf.equal(self._content, _SCALES), scaled, lambda: cast)

    def _make_scales(self) -> bool:
        for values in self._values:
            if values is not None:
                mean = tf.reduce_mean(values)
                scale = tf.sqrt(tf.math.divide_no_nan(values, mean)) + FLOOR
                values.assign(tf.where(mean > 0, scale, 1.0))
        self._content.assign(_SCALES)
        return True

    def state(self) -> State:
        """Returns the state to continue from, the same on all workers."""
        arrays = {f"scales/{i}": v.numpy() for i, v in enumerate(self._values) if v is not None}
        return arrays | {"scales/content": self._content.numpy()}

    def load_state(self, state: State) -> None:
        """Restores an earlier `state`."""
        for i, values in enumerate(self._values):
            if values is not None:
                values.assign(state[f"scales/{i}"])
        self._content.assign(state["scales/content"])


class LearningScales(FullPrecision):
    """The plain all-reduce, from whose sums `ValueScales` learn.

    Args:
        scales: `ValueScales`.
        bucket_bytes: see `Exchange`.
    """

    def __init__(self, scales: ValueScales, bucket_bytes: int) -> None:
        super().__init__(bucket_bytes)
        self._note = scales.note  # not the scales: they belong to the exchange that uses them

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("LearningScales belongs to one built exchange.")

    def deliver(
        self, message: Sequence[tf.Tensor], like: Sequence[Gradient], scale: float
    ) -> Exchanging[list[Gradient]]:
        updates = yield from super().deliver(message, like, scale)
        self._note(updates)
        return updates
