"""Measures the time of the compiled 1-bit ops beside the memory traffic that bounds them.

    .venv/bin/python benchmarks/encode.py

It encodes 45M float32 values in columns of 2048. The same mathematics in plain TensorFlow ops runs
beside it. The rows with scales are those of local moments. They are compared with the separate
division and multiplication that they replace, and with the bytes that they must move. So is the row
that adds decoded values to weights. The separate update is that of Keras.
`op_timing.py` describes the method.
"""

import numpy as np
from op_timing import NUM_VALUES, paired_ratio, run_benchmark
from report import verdict

NUM_MESSAGES = 4
TRIAD_BYTES = 12  # for each value
# Bytes that fused ops must move for each value: gradient or update, scale or square, residual or
# weight (read and written), codes.
FUSED_BYTES = {
    "encode, bfloat16 residual": 8 + 1 / 8,
    "decode and add": 8 + 1 / 8,
    "encode, scaled": 16 + 1 / 8,
    "decode 2 bits, scaled": 8 + 2 / 8,
    "learn scales": 12,
}
MOST_TIME_PER_BYTE = 1.05  # in relation to a triad


def make_ops(threads, columns, spacing):
    if columns % 32 or NUM_VALUES % columns:
        raise SystemExit(
            f"--columns must be a multiple of 32 that divides {NUM_VALUES}. "
            f"Received: {columns}. Use a power of two from 32 to 2048."
        )
    import tensorflow as tf

    from tf_onebit import ops
    from tf_onebit._layout import Layout

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    gradient = tf.random.stateless_normal([NUM_VALUES], seed=[0, 0])
    spacer = tf.zeros([spacing * 100_000])
    residual, shard_residual, scaled_residual, squares = (
        tf.Variable(tf.zeros([NUM_VALUES])) for _ in range(4)
    )
    narrow_residual, narrow_shard_residual = (
        tf.Variable(tf.zeros([NUM_VALUES], tf.bfloat16)) for _ in range(2)
    )
    scales = tf.random.stateless_uniform([NUM_VALUES], seed=[0, 1], minval=0.01, maxval=2.0)
    plain, factor = tf.zeros([0]), tf.constant(-0.01)
    cut = (NUM_VALUES, columns, columns)
    layout = Layout([cut], world_size=NUM_MESSAGES)
    # The whole is so large that one worker's shard has NUM_VALUES.
    sum_layout = Layout([(NUM_MESSAGES * NUM_VALUES, *cut[1:])], world_size=NUM_MESSAGES)

    @tf.function
    def encode(gradient):
        return ops.one_bit_encode([gradient], residual, layout)

    @tf.function
    def encode_narrow(gradient):
        return ops.one_bit_encode([gradient], narrow_residual, layout)

    @tf.function
    def decode(messages, bits):
        return ops.one_bit_decode(messages, plain, [gradient], layout, bits=bits)

    @tf.function
    def encode_scaled(gradient):
        return ops.one_bit_encode([gradient], scaled_residual, layout, value_scales=scales)

    @tf.function
    def divide_and_encode(gradient):
        return ops.one_bit_encode([gradient / scales], scaled_residual, layout)

    @tf.function
    def decode_scaled(messages):
        arguments = messages, plain, [gradient], layout
        return ops.one_bit_decode(*arguments, bits=2, value_scales=scales)

    @tf.function
    def decode_and_multiply(messages):
        return ops.one_bit_decode(messages, plain, [gradient], layout, bits=2)[0] * scales

    @tf.function
    def learn(update):
        ops.one_bit_learn_scales([update], squares, layout)

    @tf.function
    def decode_sum(messages):
        return ops.one_bit_decode_sum(messages, sum_layout, rank=0)

    @tf.function
    def decode_and_add(messages):
        ops.one_bit_decode_add([residual], messages, plain, layout, factor)
        return factor

    @tf.function
    def decode_and_update(messages):
        residual.assign_sub(decode(messages, bits=1)[0] * -factor)
        return factor

    @tf.function
    def aggregate(messages, bits):
        return ops.one_bit_aggregate(messages, shard_residual, sum_layout, rank=0, bits=bits)

    @tf.function
    def aggregate_narrow(messages):
        return ops.one_bit_aggregate(messages, narrow_shard_residual, sum_layout, rank=0)

    messages, _ = encode(gradient)
    whole = ops.one_bit_encode([gradient], residual, Layout([cut], world_size=1))[0]
    sum_messages = tf.repeat(whole, NUM_MESSAGES, axis=0)
    messages_of_two_bits = tf.repeat(messages, 2, axis=0)
    del spacer
    return {
        "encode": lambda: encode(gradient),
        "encode, bfloat16 residual": lambda: encode_narrow(gradient),
        "decode": lambda: decode(messages, bits=1),
        "decode 2 bits": lambda: decode(messages_of_two_bits, bits=2),
        "decode and add": lambda: decode_and_add(messages),
        "decode, update": lambda: decode_and_update(messages),
        "encode, scaled": lambda: encode_scaled(gradient),
        "division, encode": lambda: divide_and_encode(gradient),
        "decode 2 bits, scaled": lambda: decode_scaled(messages_of_two_bits),
        "decode 2 bits, multiplication": lambda: decode_and_multiply(messages_of_two_bits),
        "learn scales": lambda: learn(gradient),
        f"decode and sum {NUM_MESSAGES}": lambda: decode_sum(sum_messages),
        f"decode, sum {NUM_MESSAGES} and encode": lambda: aggregate(sum_messages, bits=1),
        f"decode, sum {NUM_MESSAGES} and encode, bfloat16": lambda: aggregate_narrow(sum_messages),
        f"decode, sum {NUM_MESSAGES} and encode 2 bits": lambda: aggregate(sum_messages, bits=2),
    } | make_plain_tensorflow_ops(gradient, columns)


def make_plain_tensorflow_ops(gradient, columns):
    """Returns the same mathematics in plain TensorFlow ops, as a user would write it."""
    import tensorflow as tf

    residual = tf.Variable(tf.zeros([NUM_VALUES // columns, columns]))
    positions = tf.range(32)

    @tf.function
    def encode(gradient):
        corrected = tf.reshape(gradient, residual.shape) + residual
        positive = corrected >= 0
        count = tf.reduce_sum(tf.cast(positive, tf.float32), axis=1, keepdims=True)
        upper_sum = tf.reduce_sum(tf.where(positive, corrected, 0.0), axis=1, keepdims=True)
        lower_sum = tf.reduce_sum(tf.where(positive, 0.0, corrected), axis=1, keepdims=True)
        upper = tf.math.divide_no_nan(upper_sum, count)
        lower = tf.math.divide_no_nan(lower_sum, columns - count)
        residual.assign(corrected - tf.where(positive, upper, lower))
        bits = tf.reshape(tf.cast(positive, tf.int32), [-1, columns // 32, 32])
        return tf.reduce_sum(tf.bitwise.left_shift(bits, positions), axis=2), lower, upper

    @tf.function
    def decode(words, lower, upper):
        bits = tf.bitwise.right_shift(words[:, :, tf.newaxis], positions) & 1
        return tf.where(tf.reshape(bits, [-1, columns]) == 1, upper, lower)

    @tf.function
    def decode_sum(words, lower, upper):
        total = decode(words, lower, upper)
        for _ in range(NUM_MESSAGES - 1):
            # Otherwise TensorFlow would decode equal messages only once.
            words = tf.bitwise.invert(words)
            total += decode(words, lower, upper)
        return total

    message = encode(gradient)
    return {
        "TensorFlow encode": lambda: encode(gradient),
        "TensorFlow decode": lambda: decode(*message),
        f"TensorFlow decode and sum {NUM_MESSAGES}": lambda: decode_sum(*message),
    }


def judge(measured):
    """Prints and returns the verdicts. `measured` maps numbers of threads to samples."""
    decode_sum = f"decode and sum {NUM_MESSAGES}"
    verdicts = []
    print()
    if 1 in measured:
        for name, yardstick, limit in (
            ("encode", "triad", 0.85),
            ("decode", "memset", 1.1),
            (decode_sum, "memset", 1.15),
        ):
            ratio = paired_ratio(measured[1], name, yardstick).median
            verdicts.append(verdict(f"{name} over {yardstick}", ratio, limit))
        for name, num_bytes in FUSED_BYTES.items():
            ratio = paired_ratio(measured[1], name, "triad").median * TRIAD_BYTES / num_bytes
            claim = f"{name} over triad, per byte to move"
            verdicts.append(verdict(claim, ratio, MOST_TIME_PER_BYTE))
    if 1 in measured and 2 in measured:
        one, two = (
            {name: np.median(sample["seconds"]) for name, sample in measured[threads].items()}
            for threads in (1, 2)
        )
        for name in ("encode", "decode", decode_sum):
            claim = f"{name}: two threads faster than one"
            verdicts.append(verdict(claim, one[name] / two[name], 1.6, at_most=False))
        for name in ("triad", "memset"):
            print(f"  what memory allows: {name} by two threads {one[name] / two[name]:.2f}x")
    return verdicts


def main():
    description = __doc__.splitlines()[0]
    run_benchmark(
        __file__, description, make_ops, judge, [1, 2], "results/encode.json", {"columns": 2048}
    )


if __name__ == "__main__":
    main()
