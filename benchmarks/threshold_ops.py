"""Measures the time of the compiled threshold ops beside the memory traffic that bounds them.

    .venv/bin/python benchmarks/threshold_ops.py

There are 45M float32 values, of which one in 1000 or 100 is sent. Golomb-Rice coding is measured in
nanoseconds and bits per value that is sent. `op_timing.py` describes the method.
"""

import math
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from op_timing import NUM_VALUES, paired_ratio, run_benchmark
from report import verdict

NUM_MESSAGES = 4
DENSITIES = {"1/100": 1e-2, "1/1000": 1e-3, "1/10000": 1e-4}
# The most that kinds of rows may take, relative to a yardstick.
LIMITS = {
    ("encode, 1/1000", "triad"): 0.85,
    ("encode, 1/100", "triad"): 1.1,
    (f"decode and sum {NUM_MESSAGES}, 1/1000", "memset"): 1.3,
}
MOST_OVER_ENTROPY = 1.03
LEAST_VALUES_PER_SECOND = 100e6
# Number of values that one call codes, because a call takes some microseconds by itself.
CODED_VALUES = 2_000_000


def make_ops(threads, spacing):
    import tensorflow as tf

    from tf_onebit import ops

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rows = {}
    for density in ("1/100", "1/1000"):
        gradient = sparse_gradient(DENSITIES[density], seed=0)
        spacer = tf.zeros([spacing * 100_000])
        residual = tf.Variable(tf.zeros([NUM_VALUES]))
        del spacer
        capacity = int(1.2 * DENSITIES[density] * NUM_VALUES)

        @tf.function
        def encode(gradient, residual=residual, capacity=capacity):
            return ops.threshold_encode([gradient], residual, 0.5, 0.5, capacity, [NUM_VALUES])

        # Values that exceed the threshold do so by more every time, so the density stays the same.
        rows[f"encode, {density}"] = lambda encode=encode, gradient=gradient: encode(gradient)
    messages = []
    for seed in range(NUM_MESSAGES):
        residual.assign(tf.zeros([NUM_VALUES]))
        messages.append(encode(sparse_gradient(DENSITIES["1/1000"], seed)))
    messages, factor = tf.stack(messages), tf.constant(-0.01)

    @tf.function
    def decode_sum():
        return ops.threshold_decode_sum(messages, [gradient], [NUM_VALUES])

    @tf.function
    def decode_add():
        ops.threshold_decode_add([residual], messages, factor, [NUM_VALUES])
        return factor

    @tf.function
    def decode_and_update():
        residual.assign_sub(decode_sum()[0] * -factor)
        return factor

    rows[f"decode and sum {NUM_MESSAGES}, 1/1000"] = decode_sum
    rows[f"decode and add {NUM_MESSAGES}, 1/1000"] = decode_add
    rows[f"decode, sum {NUM_MESSAGES}, update, 1/1000"] = decode_and_update
    for name, density in DENSITIES.items():
        rows |= make_codec(name, positions(density))
    return rows


def make_codec(name, messages):
    """Returns the coding and the decoding of messages with about CODED_VALUES values in all."""
    import tensorflow as tf

    from tf_onebit import ops

    sizes = [NUM_VALUES]

    @tf.function
    def encode():
        return ops.golomb_rice_encode(messages, sizes, pad=False)

    coded = encode()

    @tf.function
    def decode():
        return ops.golomb_rice_decode(coded, sizes)

    return {f"Golomb-Rice encode, {name}": encode, f"Golomb-Rice decode, {name}": decode}


def sparse_gradient(density, seed):
    """Returns float32 `[NUM_VALUES]`: noise, and ones of either sign at independent positions."""
    import tensorflow as tf

    noise = tf.random.stateless_normal([NUM_VALUES], [seed, 0], stddev=1e-6)
    uniform = tf.random.stateless_uniform([NUM_VALUES], [seed, 1], minval=-1.0)
    return noise + tf.where(tf.abs(uniform) < density, tf.sign(uniform), 0.0)


def positions(density):
    """Returns messages with independent positions: int32 `[number, 1, words]`."""
    import tensorflow as tf

    from tf_onebit.ops.threshold import COUNT, EXCEEDING, HEADER_WORDS, WORDS

    rng = np.random.default_rng(1)
    gaps = rng.geometric(density, int(1.1 * density * NUM_VALUES))
    indices = np.cumsum(gaps) - 1
    indices = indices[indices < NUM_VALUES]
    signs = rng.integers(0, 2, len(indices)).astype(np.uint32) << 31
    header = np.zeros(HEADER_WORDS, np.int32)
    header[[COUNT, EXCEEDING]] = len(indices)
    header[WORDS] = HEADER_WORDS + len(indices)
    message = np.concatenate([header, (indices.astype(np.uint32) | signs).view(np.int32)])
    number = math.ceil(CODED_VALUES / len(indices))
    return tf.constant(np.tile(message, [number, 1, 1]))


def coded_size(density):
    """Returns bits per sent value, and the entropy of the gaps plus a bit for the sign."""
    from tf_onebit import ops
    from tf_onebit.ops.threshold import COUNT, HEADER_WORDS, WORDS

    message = positions(density)[:1]
    coded = ops.golomb_rice_encode(message, [NUM_VALUES], pad=False)
    bits = 32 * (int(coded[0, 0, WORDS]) - HEADER_WORDS) / int(message[0, 0, COUNT])
    p = density
    entropy = -(p * math.log2(p) + (1 - p) * math.log2(1 - p)) / p
    return bits, entropy + 1


def judge(measured):
    """Prints and returns the verdicts. `measured` maps numbers of threads to samples."""
    verdicts = []
    print()
    samples = measured.get(1, {})
    for (row, yardstick), limit in LIMITS.items() if samples else ():
        ratio = paired_ratio(samples, row, yardstick).median
        verdicts.append(verdict(f"{row} over {yardstick}", ratio, limit))
    for name, density in DENSITIES.items():
        bits, entropy = coded_size(density)
        print(f"  Golomb-Rice, {name}: {bits:.2f} bits per value, entropy {entropy:.2f}")
        claim = f"Golomb-Rice, {name}: size over the entropy"
        verdicts.append(verdict(claim, bits / entropy, MOST_OVER_ENTROPY))
        if not samples:
            continue
        seconds = sum(
            np.median(samples[f"Golomb-Rice {kind}, {name}"]["seconds"])
            for kind in ("encode", "decode")
        )
        values = math.ceil(CODED_VALUES / (density * NUM_VALUES)) * density * NUM_VALUES
        claim = f"Golomb-Rice, {name}: values per second, encoded and decoded"
        rate = values / seconds
        verdicts.append(verdict(claim, rate, LEAST_VALUES_PER_SECOND, at_most=False))
    return verdicts


def main():
    description = __doc__.splitlines()[0]
    run_benchmark(
        __file__, description, make_ops, judge, [1], "results/threshold_ops.json", settings={}
    )


if __name__ == "__main__":
    main()
