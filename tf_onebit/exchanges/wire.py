"""The 32-bit words of messages on their way."""

import tensorflow as tf

# TensorFlow keeps int32 tensors of a GPU in host memory, and floats on the GPU. So words travel as
# floats of the same bits, which nobody calculates with.
WIRE_DTYPE = tf.float32


def integers(words):
    """What words say, where they are read: int32 of the same bits."""
    return tf.bitcast(words, tf.int32)
