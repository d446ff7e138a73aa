"""ValueScales: how large each value of an update usually is, learned in a warm-up."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_onebit import ops
from tf_onebit._layout import Layout
from tf_onebit.exchanges.gradients import GradientSpec
from tf_onebit.exchanges.state import State

# Part of a tensor's scale that all of its values have at least.
FLOOR = 0.01
# What the variable of `ValueScales` contains: nothing yet, v, or s.
_NOTHING, _SQUARES, _SCALES = range(3)


class ValueScales(tf.Module):
    """Scales that make the values of a column alike, so that one level of each sign fits them.

    They follow the updates U of a warm-up, which are the same on all workers. So all workers have
    the same scales without sending them. For each tensor::

        v <- 0.95 v + 0.05 U^2        s = sqrt(v) / sqrt(mean(v)) + 0.01

    A worker quantizes its update divided by s, and multiplies what it receives by s. Whatever s
    is, the residual keeps what quantization leaves out. So scales may be old. A value that never
    moved is quantized to a hundredth of the others, and hardly moves.

    Without a warm-up, s is 1. After it, the first compressed step turns v into s, in the same
    memory. From then on nothing is learned.

    Args:
        specs: list of `GradientSpec` of dense tensors.
        layout: `Layout` of these tensors. Those that are plain have no scales.
    """

    def __init__(self, specs: Sequence[GradientSpec], layout: Layout) -> None:
        super().__init__()
        self._layout = layout
        scaled = [i for i, column_size in enumerate(layout.column_sizes) if column_size]
        self._names = [f"scales/{i}" for i in scaled]
        self._shapes = [specs[i].shape for i in scaled]
        self._sizes = [layout.sizes[i] for i in scaled]
        self._values = tf.Variable(tf.zeros([layout.size]), trainable=False)
        self._content = tf.Variable(_NOTHING, trainable=False)

    def note(self, updates: Sequence[tf.Tensor]) -> None:
        """Learns from updates that all workers have: list of tensors."""

        def learn() -> bool:
            ops.one_bit_learn_scales(updates, self._values, self._layout)
            self._content.assign(_SQUARES)
            return True

        tf.cond(self._content < _SCALES, learn, lambda: False)

    def make(self) -> None:
        """Turns what was learned into scales, if that has not been done."""
        tf.cond(tf.equal(self._content, _SQUARES), self._make, lambda: False)

    def _make(self) -> bool:
        scales = []
        for squares in tf.split(self._values, self._sizes):
            mean = tf.reduce_mean(squares)
            scale = tf.sqrt(tf.math.divide_no_nan(squares, mean)) + FLOOR
            scales.append(tf.where(mean > 0, scale, 1.0))
        self._values.assign(tf.concat(scales, axis=0))
        self._content.assign(_SCALES)
        return True

    def values(self) -> tf.Tensor:
        """Returns the scales: float32 `[layout.size]`, or `[0]` where all are 1."""
        return tf.cond(
            tf.equal(self._content, _SCALES), self._values.read_value, lambda: tf.zeros([0])
        )

    def state(self) -> State:
        """Returns the state to continue from, the same on all workers."""
        parts = np.split(self._values.numpy(), np.cumsum(self._sizes)[:-1])
        arrays: dict[str, npt.NDArray[Any]] = {
            name: part.reshape(shape)
            for name, part, shape in zip(self._names, parts, self._shapes, strict=True)
        }
        return arrays | {"scales/content": self._content.numpy()}

    def load_state(self, state: State) -> None:
        """Restores an earlier `state`."""
        self._values.assign(np.concatenate([state[name].ravel() for name in self._names]))
        self._content.assign(state["scales/content"])
