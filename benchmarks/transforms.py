"""Measures the time of the compiled ops of transforms beside the memory traffic that bounds them.

    .venv/bin/python benchmarks/transforms.py

There are 45M float32 values. Results have memory of their own here. In training they take the
gradients' memory. `op_timing.py` describes the method.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from op_timing import NUM_VALUES, paired_ratio, run_benchmark
from report import verdict

# They move three, three, four and six arrays, when they read or write them. A triad moves three.
LIMITS = {"accumulate": 0.85, "normalize": 1.1, "momentum": 1.35, "Adam": 2.1}


def make_ops(threads, spacing):
    import tensorflow as tf

    from tf_onebit import ops

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    gradient = tf.random.stateless_normal([NUM_VALUES], seed=[0, 0])
    spacer = tf.zeros([spacing * 100_000])
    average, velocity, square = (tf.Variable(tf.zeros([NUM_VALUES])) for _ in range(3))
    runs = [NUM_VALUES // 2, NUM_VALUES - NUM_VALUES // 2]
    del spacer

    @tf.function
    def accumulate(gradient):
        return ops.adagrad_accumulate(gradient, average, 0.1, runs)

    @tf.function
    def normalize(gradient, means):
        return ops.adagrad_normalize(gradient, average, means, runs, 1e-3)

    @tf.function
    def momentum(gradient):
        return ops.momentum(gradient, velocity, 0.9)

    @tf.function
    def adam(gradient):
        return ops.adam(gradient, velocity, square, -0.001)

    # A user would write this without them.
    plain_average = tf.Variable(tf.zeros([NUM_VALUES]))

    @tf.function
    def plain(gradient):
        plain_average.assign_add(0.1 * (tf.square(gradient) - plain_average))
        deviation = tf.sqrt(plain_average)
        return gradient / tf.maximum(deviation / tf.reduce_mean(deviation), 1e-3)

    means = accumulate(gradient) / runs
    return {
        "accumulate": lambda: accumulate(gradient),
        "normalize": lambda: normalize(gradient, means),
        "momentum": lambda: momentum(gradient),
        "Adam": lambda: adam(gradient),
        "TensorFlow accumulate and normalize": lambda: plain(gradient),
    }


def judge(measured):
    """Prints and returns the verdicts. `measured` maps numbers of threads to samples."""
    print()
    if 1 not in measured:
        return []
    return [
        verdict(f"{name} over triad", paired_ratio(measured[1], name, "triad").median, limit)
        for name, limit in LIMITS.items()
    ]


def main():
    description = __doc__.splitlines()[0]
    run_benchmark(__file__, description, make_ops, judge, [1, 2], "results/transforms.json", {})


if __name__ == "__main__":
    main()
