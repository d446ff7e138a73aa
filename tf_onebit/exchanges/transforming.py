"""Application of transforms in exchanges."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from tf_onebit._layout import Layout
from tf_onebit.collectives.requests import Exchanging
from tf_onebit.exchanges.state import State
from tf_onebit.transforms import Transform


def require_transforms(name: str, transforms: Iterable[object]) -> None:
    """Raises ValueError unless the argument `name` is a list of transforms."""
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise ValueError(
                f"{name} must be a list of tf_onebit.transforms.Transform. "
                f"Received: {transform!r} of type {type(transform).__name__}."
            )


def transformed(
    transforms: Iterable[Transform], aggregate: tf.Tensor, plain: tf.Tensor
) -> Exchanging[tuple[tf.Tensor, tf.Tensor]]:
    """Generator: applies transforms in order; returns `aggregate` and `plain` after the last."""
    for transform in transforms:
        aggregate, plain = yield from transform.transform(aggregate, plain)
    return aggregate, plain


def unchanged(aggregate: tf.Tensor, plain: tf.Tensor) -> Exchanging[tuple[tf.Tensor, tf.Tensor]]:
    """Generator: returns its arguments; the branch without transforms."""
    yield from ()
    return aggregate, plain


def transformed_alone(
    transforms: Iterable[Transform], gradients: Sequence[tf.Tensor], layout: Layout
) -> list[tf.Tensor]:
    """Applies transforms to the gradients of one worker.

    Args:
        transforms: list of transforms, built for `layout`.
        gradients: list of tensors.
        layout: `Layout` of one worker.

    Returns:
        List of float32 tensors.

    Raises:
        ValueError: if one of them requests a collective.
    """
    generator = transformed(transforms, *joined(gradients, layout))
    try:
        request = next(generator)
    except StopIteration as stop:
        like = [tf.cast(gradient, tf.float32) for gradient in gradients]
        aggregate, plain = stop.value
        return parted(aggregate, plain, like, layout)
    raise ValueError(
        "local_transforms cannot communicate, because each worker applies them to its own "
        f"gradients. Received: one that requests {request!r}. Use transforms, which work on the "
        "sum."
    )


def joined(gradients: Sequence[tf.Tensor], layout: Layout) -> list[tf.Tensor]:
    """Joins gradients into two float32 vectors: values in columns, and plain values."""
    vectors: list[list[tf.Tensor]] = [[], []]
    for gradient, column_size in zip(gradients, layout.column_sizes, strict=True):
        vector = tf.reshape(tf.cast(gradient, tf.float32), [-1])
        vectors[column_size == 0].append(vector)
    return [tf.concat(parts, axis=0) if parts else tf.zeros([0]) for parts in vectors]


def parted(
    aggregate: tf.Tensor, plain: tf.Tensor, like: Sequence[tf.Tensor], layout: Layout
) -> list[tf.Tensor]:
    """Inverts `joined`. Returns a list of tensors with the shapes and dtypes of `like`."""
    sizes: list[list[int]] = [[], []]
    for size, column_size in zip(layout.sizes, layout.column_sizes, strict=True):
        sizes[column_size == 0].append(size)
    parts = [
        iter(tf.split(vector, of_vector)) if of_vector else iter(())
        for vector, of_vector in zip((aggregate, plain), sizes, strict=True)
    ]
    tensors = [
        tf.reshape(next(parts[column_size == 0]), tf.shape(tensor))
        for tensor, column_size in zip(like, layout.column_sizes, strict=True)
    ]
    return [tf.cast(t, tensor.dtype) for t, tensor in zip(tensors, like, strict=True)]


def state_of_transforms(transforms: Iterable[Transform]) -> State:
    """Returns the variables of transforms: dictionary of NumPy arrays."""
    return {
        f"transform_{i}/{j}": variable.numpy()
        for i, transform in enumerate(transforms)
        for j, variable in enumerate(transform.variables)
    }


def load_transforms(
    transforms: Iterable[Transform],
    array_of: Callable[[str, bool], npt.NDArray[Any]],
    ratio: float,
) -> None:
    """Restores the variables of transforms.

    Args:
        transforms: list of transforms.
        array_of: function of a name in `state_of_transforms`, and of whether the variable has the
            values of a shard. It returns the array.
        ratio: factor on pending gradients.
    """
    for i, transform in enumerate(transforms):
        sharded = set(map(id, transform.sharded or ()))
        pending = set(map(id, transform.pending))
        for j, variable in enumerate(transform.variables):
            array = array_of(f"transform_{i}/{j}", id(variable) in sharded)
            variable.assign(ratio * array if id(variable) in pending else array)


def require_dividable(
    transforms: Iterable[Transform],
    local_transforms: Iterable[Transform],
    earlier: int,
    world_size: int,
) -> None:
    """Raises ValueError for transforms whose state belongs to one number of workers.

    Args:
        transforms, local_transforms: lists of transforms.
        earlier: number of workers of the earlier run.
        world_size: number of workers.
    """
    local = [transform for transform in local_transforms if transform.variables]
    unknown = [t for t in transforms if t.variables and t.sharded is None]
    if local or unknown:
        raise ValueError(
            "These transforms can only be resumed with as many workers as before: "
            "local_transforms, and transforms that do not define `sharded`. Received: a "
            f"state of {earlier} workers for {world_size} workers, with "
            f"{', '.join(type(transform).__name__ for transform in local + unknown)}."
        )
