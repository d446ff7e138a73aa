"""32-bit words of messages during a collective."""

import tensorflow as tf

# TensorFlow keeps the int32 tensors of a GPU in host memory, and floats on the GPU. So words travel
# as floats with the same bits. No arithmetic is done with them.
WIRE_DTYPE = tf.float32


def integers(words):
    """Returns words as int32 with the same bits, to read them."""
    return tf.bitcast(words, tf.int32)
