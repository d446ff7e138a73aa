"""All-reduce with the same bits on every engine and in every run."""

from collections.abc import Sequence

import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, AllReduce, AllToAll, Exchanging

# Up to this size one collective is used instead of two, although it sends more bytes.
_SMALL_SIZE = 1024


def ordered_sum(request: AllReduce, world_size: int) -> Exchanging[list[tf.Tensor]]:
    """Generator: answers an `AllReduce` by other requests, and adds in the order of ranks.

    A ring adds each part of a tensor in another order. The borders of the parts may depend on
    other tensors that are under way. Here every worker adds up one part and sends it to the
    others, which takes as many bytes as a ring.
    """
    totals: list[tf.Tensor] = [None] * len(request.tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in request.tensors):
        indices = [i for i, tensor in enumerate(request.tensors) if tensor.dtype == dtype]
        tensors = [request.tensors[i] for i in indices]
        vector = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
        scale = tf.cast(tf.constant(request.scale, tf.float64), dtype)
        total = yield from _sum(vector, scale, world_size, f"{request.name}/{dtype.name}")
        parts = tf.split(total, [tf.size(tensor) for tensor in tensors])
        for i, tensor, part in zip(indices, tensors, parts, strict=True):
            totals[i] = tf.ensure_shape(tf.reshape(part, tf.shape(tensor)), tensor.shape)
    return totals


def added_in_order(terms: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of tensors, added one after another.

    `tf.add_n` may begin with any term whose memory can be reused. TensorFlow also merges nested
    sums into one, in an order of its own. The snapshots between the additions prevent that.

    bfloat16, with its 8 bits of precision, is added up in float32.
    """
    dtype = terms[0].dtype
    wide = tf.float32 if dtype == tf.bfloat16 else dtype
    total, *others = (tf.raw_ops.Snapshot(input=tf.cast(term, wide)) for term in terms)
    for term in others:
        total = tf.raw_ops.Snapshot(input=total + term)
    return tf.cast(total, dtype)


def _sum(vector: tf.Tensor, scale: tf.Tensor, world_size: int, name: str) -> Exchanging[tf.Tensor]:
    size = vector.shape[0]
    if size is not None and size <= _SMALL_SIZE:
        rows = yield AllGather(vector[tf.newaxis], name)
        return scale * added_in_order(tf.unstack(rows, num=world_size))
    if size is None:
        size = tf.size(vector)
    padded = tf.pad(vector, [[0, -size % world_size]])
    rows = tf.reshape(padded, [world_size, -1])
    received = yield AllToAll(rows, f"{name}/all_to_all")
    part = scale * added_in_order(tf.unstack(received, num=world_size))
    gathered = yield AllGather(part, f"{name}/all_gather")
    return gathered[:size]
