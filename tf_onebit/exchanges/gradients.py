"""Gradients: their type, and what is known of them before the first step."""

import dataclasses
import math
from typing import Any, Self, TypeAlias

import tensorflow as tf

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices


@dataclasses.dataclass(frozen=True)
class GradientSpec:
    """Description of a gradient, known before the first step.

    Attributes:
        name: name of its variable.
        shape: shape of its variable, a tuple of ints.
        dtype: name of its type, for example "float32".
        sparse: whether it is a `tf.IndexedSlices`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    sparse: bool = False

    @classmethod
    def of(cls, gradient: Gradient, variable: Any) -> Self:
        """Returns the description of the gradient of a variable."""
        return cls(
            name=getattr(variable, "path", variable.name),
            shape=tuple(variable.shape),
            dtype=tf.as_dtype(gradient.dtype).name,
            sparse=isinstance(gradient, tf.IndexedSlices),
        )

    @property
    def size(self) -> int:
        return math.prod(self.shape)
