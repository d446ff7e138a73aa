"""Gradients: their type and description, and the detection of those that are not finite."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Self, TypeAlias, TypeVar

import tensorflow as tf

from tf_onebit._shares import is_part
from tf_onebit.collectives.requests import AllReduce, Exchanging

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices
T = TypeVar("T")

# First words of the error in which the step ends on all workers.
NOT_FINITE = "Gradients must be finite."


@dataclasses.dataclass(frozen=True)
class GradientSpec:
    """Description of a gradient, known before the first step.

    Attributes:
        name: name of its variable.
        shape: shape of its variable, a tuple of ints.
        dtype: name of its type, for example "float32".
        sparse: whether it is a `tf.IndexedSlices`.
        is_part: whether the workers of the exchange hold only a part of its variable.
        sliced_size: number of values of the gradient of which this is a slice, or None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    sparse: bool = False
    is_part: bool = False
    sliced_size: int | None = None

    @classmethod
    def of(cls, gradient: Gradient, variable: Any) -> Self:
        """Returns the description of the gradient of a variable."""
        return cls(
            name=getattr(variable, "path", variable.name),
            shape=tuple(variable.shape),
            dtype=tf.as_dtype(gradient.dtype).name,
            sparse=isinstance(gradient, tf.IndexedSlices),
            is_part=is_part(variable),
        )

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def whole_size(self) -> int:
        """Number of values of the whole gradient, for rules about small gradients."""
        return self.size if self.sliced_size is None else self.sliced_size


def values_of(gradient: Gradient) -> tf.Tensor:
    """Returns the tensor of a gradient's values; for `tf.IndexedSlices` its `values`."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def with_values(gradient: Gradient, values: tf.Tensor) -> Gradient:
    """Returns a gradient with other values: the reverse of `values_of`."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return values


def times(gradients: Sequence[Gradient | None], factor: float) -> list[Gradient | None]:
    """Multiplies gradients by a number. None stays None."""
    if factor == 1.0:
        return list(gradients)
    return [None if gradient is None else scaled(gradient, factor) for gradient in gradients]


def scaled(gradient: Gradient, factor: float) -> Gradient:
    """Multiplies a gradient by a number."""
    values = values_of(gradient)
    return with_values(gradient, values * tf.cast(factor, values.dtype))


def not_finite_flag(gradients: Sequence[Gradient]) -> tf.Tensor:
    """Returns 0, or 1 + the index of the first gradient that is not finite: int32 `[]`."""
    values = [values_of(gradient) for gradient in gradients]
    # A finite sum has only finite terms, and takes half as long as a check of each value.
    sums_are_finite = tf.stack([tf.math.is_finite(tf.reduce_sum(v)) for v in values])
    none = tf.constant(0)
    return tf.cond(tf.reduce_all(sums_are_finite), lambda: none, lambda: _first_not_finite(values))


def _first_not_finite(values: Sequence[tf.Tensor]) -> tf.Tensor:
    finite = tf.stack([tf.reduce_all(tf.math.is_finite(v)) for v in values])
    first = tf.argmin(tf.cast(finite, tf.int32), output_type=tf.int32)
    return tf.where(tf.reduce_all(finite), 0, 1 + first)


def with_overflow(flags: tf.Tensor, exchanged: Sequence[Gradient]) -> tf.Tensor:
    """Returns the flags of the workers, or for all of them the flag of an overflow in the result.

    A sum of finite values may overflow.

    Args:
        flags: int32 `[world_size]`, of the workers' own gradients.
        exchanged: list of tensors or `tf.IndexedSlices`, the same on all workers.
    """
    return tf.where(tf.reduce_any(flags > 0), flags, not_finite_flag(exchanged))


def with_narrow_overflow(flags: tf.Tensor, exchanged: Sequence[tf.Tensor]) -> tf.Tensor:
    """Does the same as `with_overflow` for types of 16 bits, and returns other flags unchanged.

    A few values of 16 bits may overflow although the sums were finite.
    """
    narrow = any(tensor.dtype.size < tf.float32.size for tensor in exchanged)
    return with_overflow(flags, exchanged) if narrow else flags


def all_finite(gradients: Sequence[Gradient], name: str) -> Exchanging[tf.Tensor]:
    """Generator: tells whether all gradients of all workers are finite. Same on all workers."""
    flag = tf.minimum(not_finite_flag(gradients), 1)
    (failures,) = yield AllReduce([flag], name)
    return tf.equal(failures, 0)


def like_gradients(specs: Sequence[GradientSpec], tensors: Sequence[tf.Tensor]) -> list[Gradient]:
    """Returns tensors like gradients: empty `tf.IndexedSlices` where these are sparse.

    Args:
        specs: list of `GradientSpec`.
        tensors: list of tensors with the shapes and dtypes of the gradients.
    """
    return [
        tf.IndexedSlices(tensor[:0], tf.zeros([0], tf.int64), tf.shape(tensor, tf.int64))
        if spec.sparse
        else tf.convert_to_tensor(tensor)
        for spec, tensor in zip(specs, tensors, strict=True)
    ]


def after(awaited: Sequence[Gradient], tensors: T) -> T:
    """Returns the same tensors, which are ready when others are ready, too.

    In a branch of a graph, both may come from outside of it.

    Args:
        awaited: list of tensors or `tf.IndexedSlices`.
        tensors: structure of the same.
    """
    others = tf.nest.flatten(awaited, expand_composites=True)
    # A branch cannot wait for tensors of the outer graph; `identity` brings them in.
    with tf.control_dependencies([tf.identity(tensor) for tensor in others]):
        return tf.nest.map_structure(tf.identity, tensors, expand_composites=True)


def require_finite(
    gradients: Sequence[Gradient],
    flags: tf.Tensor,
    names: Sequence[str],
    awaited: Sequence[tf.Tensor] = (),
    worker: str = "rank",
) -> list[Gradient]:
    """Returns the gradients after a check that they were finite on all workers.

    Args:
        gradients: list of tensors or `tf.IndexedSlices`.
        flags: int32 `[world_size]`; flag k is 0 if all gradients of rank k are finite. Otherwise
            it is 1 + the index in `names` of a gradient that is not.
        names: list of the variables' names.
        awaited: list of tensors that must be ready before an error; gradients do not wait for
            them.
        worker: what an entry of `flags` belongs to, for the error.

    Raises:
        InvalidArgumentError: on all workers, when the graph runs.
    """
    rank = tf.argmax(tf.cast(flags > 0, tf.int32))
    name = tf.gather(tf.constant(["", *names]), flags[rank])
    who = tf.where(
        tf.reduce_all(flags > 0),
        f"All {worker}s",
        tf.strings.join([f"{worker.capitalize()} ", tf.strings.as_string(rank)]),
    )
    message = tf.strings.join(
        [
            f"{NOT_FINITE} ",
            who,
            " met an infinity or NaN in the gradient of '",
            name,
            "'. Lower the learning rate or clip the inputs. To skip such steps on all workers, "
            "use tf_onebit.horovod.DistributedOptimizer(..., on_nonfinite='skip'), or in the "
            "scope of a strategy keras.optimizers.LossScaleOptimizer.",
        ]
    )

    def fail() -> tf.Tensor:
        failure = tf.debugging.Assert(False, [after(awaited, message)])
        with tf.control_dependencies([failure]):
            return tf.constant(False)

    check = tf.cond(tf.reduce_all(tf.equal(flags, 0)), lambda: tf.constant(True), fail)
    return after([check], list(gradients))
