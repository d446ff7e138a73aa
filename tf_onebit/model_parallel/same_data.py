"""A check that all members of a group get the same data."""

import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, one_request


def require_same_data(data, group):
    """Compares a batch between the members of a group, in the graph of a step.

    Nothing waits for the check. If the batches differ, the step ends in an error on all members.

    Args:
        data: structure of tensors.
        group: `Group`.
    """
    digest = _digest(tf.nest.flatten(data, expand_composites=True))
    request = AllGather(digest[tf.newaxis], f"tf_onebit/model_parallel/{group.number}/data")
    (digests,) = group.within.run([one_request(request)])
    differing = tf.reduce_any(digests != digests[:1], axis=1)
    ranks = tf.constant(list(group.within.members))
    other = tf.strings.as_string(ranks[tf.argmax(tf.cast(differing, tf.int32))])
    message = tf.strings.join(
        [
            "The members of a group train on the same data. Received: a batch on rank "
            f"{group.within.members[0]}, and another one on rank ",
            other,
            " of the same group. Pass data that depend on groups.number, not on the rank. Where "
            "data are shuffled, call keras.utils.set_random_seed(seed), the same on all members.",
        ]
    )
    tf.debugging.Assert(tf.logical_not(tf.reduce_any(differing)), [message])


def _digest(tensors):
    """Returns a digest of the bits of tensors: int32 `[2]`."""
    with tf.device("CPU:0"):
        hashes = [_hash(tf.reshape(tensor, [1, -1])) for tensor in tensors if tensor is not None]
        return tf.bitcast(tf.reshape(_hash(tf.concat(hashes, axis=1)), [2, 4]), tf.int32)


def _hash(row):
    return tf.fingerprint(tf.cast(row, tf.uint8) if row.dtype == tf.bool else row)
