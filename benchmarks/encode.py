"""Time of the compiled 1-bit ops beside the memory traffic that bounds them.

    .venv/bin/python benchmarks/encode.py

45M float32 values in columns of 2048, as TensorFlow runs the ops, beside a triad a = b + c and a
memset over arrays of the same length in the same process, and beside the same mathematics in plain
TensorFlow ops. Every number of threads has processes of its own. In a process the rows take turns,
and the processes take turns as well, so that all see the same drift of the machine.

Arrays lie at other distances in every process: where gradient and residual happen to be a multiple
of half a GiB apart, some processors look for both in the same places of the first cache, and any
loop over the two takes up to twice the time.

TensorFlow takes a buffer for every output. It keeps freed ones, so that no page faults are measured
here: the last column shows it.
"""

import argparse
import concurrent.futures
import ctypes
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np
from report import Spread, machine_facts, print_machine_facts, print_table, verdict, write_json

NUM_VALUES = 22_000 * 2048  # about the papers' DNN
NUM_MESSAGES = 4


def measure(threads, column_size, repeats, spacing):
    """Runs this file as a process with that many threads; returns its rows."""
    environment = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # NumPy asks for huge pages and TensorFlow does not: the yardsticks get the same pages.
        "NUMPY_MADVISE_HUGEPAGE": "0",
    }
    setting = json.dumps([threads, column_size, repeats, spacing])
    process = subprocess.run(
        [sys.executable, __file__, "--measure", setting],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


def measure_here(threads, column_size, repeats, spacing):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    rows = make_yardsticks(threads) | make_ops(threads, column_size, spacing)
    samples = {name: {"seconds": [], "page_faults": []} for name in rows}
    for name in rows:
        rows[name]()
    for _ in range(repeats):
        for name, run in rows.items():
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            start = time.perf_counter()
            run()
            samples[name]["seconds"].append(time.perf_counter() - start)
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
            samples[name]["page_faults"].append(faults)
    return samples


def make_yardsticks(threads):
    """Memory traffic: NumPy's add (which stores plainly) and libc's memset, on parts of arrays."""
    a, b, c = (np.ones(NUM_VALUES, np.float32) for _ in range(3))
    parts = list(zip(*(np.array_split(array, threads) for array in (a, b, c)), strict=True))
    memset = ctypes.CDLL(None).memset
    memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    pool = concurrent.futures.ThreadPoolExecutor(threads)

    def add_part(part):
        np.add(part[1], part[2], out=part[0])

    def set_part(part):
        # Not to zero, which some processors write several times faster than what ops compute.
        memset(part[0].ctypes.data, 1, part[0].nbytes)

    return {
        "triad": lambda: list(pool.map(add_part, parts)),
        "memset": lambda: list(pool.map(set_part, parts)),
    }


def make_ops(threads, column_size, spacing):
    import tensorflow as tf

    from tf_onebit import ops
    from tf_onebit.layout import Layout

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    gradient = tf.random.stateless_normal([NUM_VALUES], seed=[0, 0])
    spacer = tf.zeros([spacing * 100_000])
    residual, shard_residual = (tf.Variable(tf.zeros([NUM_VALUES])) for _ in range(2))
    plain = tf.zeros([0])
    cut = (NUM_VALUES, column_size, column_size)
    layout = Layout([cut], world_size=NUM_MESSAGES)
    # So many times as many values that one worker's shard has NUM_VALUES.
    sum_layout = Layout([(NUM_MESSAGES * NUM_VALUES, *cut[1:])], world_size=NUM_MESSAGES)

    @tf.function
    def encode(gradient):
        return ops.one_bit_encode([gradient], residual, layout)

    @tf.function
    def decode(messages):
        return ops.one_bit_decode(messages, plain, [gradient], layout)

    @tf.function
    def decode_sum(messages):
        return ops.one_bit_decode_sum(messages, sum_layout, rank=0)

    @tf.function
    def aggregate(messages):
        return ops.one_bit_aggregate(messages, shard_residual, sum_layout, rank=0)

    messages, _ = encode(gradient)
    whole = ops.one_bit_encode([gradient], residual, Layout([cut], world_size=1))[0]
    sum_messages = tf.repeat(whole, NUM_MESSAGES, axis=0)
    del spacer
    return {
        "encode": lambda: encode(gradient),
        "decode": lambda: decode(messages),
        f"decode and sum {NUM_MESSAGES}": lambda: decode_sum(sum_messages),
        f"decode, sum {NUM_MESSAGES} and encode": lambda: aggregate(sum_messages),
    } | make_plain_tensorflow_ops(gradient, column_size)


def make_plain_tensorflow_ops(gradient, column_size):
    """The mathematics of the compiled ops, written as a user without them would."""
    import tensorflow as tf

    residual = tf.Variable(tf.zeros([NUM_VALUES // column_size, column_size]))
    positions = tf.range(32)

    @tf.function
    def encode(gradient):
        corrected = tf.reshape(gradient, residual.shape) + residual
        positive = corrected >= 0
        count = tf.reduce_sum(tf.cast(positive, tf.float32), axis=1, keepdims=True)
        upper_sum = tf.reduce_sum(tf.where(positive, corrected, 0.0), axis=1, keepdims=True)
        lower_sum = tf.reduce_sum(tf.where(positive, 0.0, corrected), axis=1, keepdims=True)
        upper = tf.math.divide_no_nan(upper_sum, count)
        lower = tf.math.divide_no_nan(lower_sum, column_size - count)
        residual.assign(corrected - tf.where(positive, upper, lower))
        bits = tf.reshape(tf.cast(positive, tf.int32), [-1, column_size // 32, 32])
        return tf.reduce_sum(tf.bitwise.left_shift(bits, positions), axis=2), lower, upper

    @tf.function
    def decode(words, lower, upper):
        bits = tf.bitwise.right_shift(words[:, :, tf.newaxis], positions) & 1
        return tf.where(tf.reshape(bits, [-1, column_size]) == 1, upper, lower)

    @tf.function
    def decode_sum(words, lower, upper):
        total = decode(words, lower, upper)
        for _ in range(NUM_MESSAGES - 1):
            # Or the decoding of equal messages would be shared.
            words = tf.bitwise.invert(words)
            total += decode(words, lower, upper)
        return total

    message = encode(gradient)
    return {
        "TensorFlow encode": lambda: encode(gradient),
        "TensorFlow decode": lambda: decode(*message),
        f"TensorFlow decode and sum {NUM_MESSAGES}": lambda: decode_sum(*message),
    }


def paired_ratio(samples, numerator, denominator):
    pairs = zip(samples[numerator]["seconds"], samples[denominator]["seconds"], strict=True)
    return Spread.of([a / b for a, b in pairs])


def report(threads, samples):
    table = []
    for name, sample in samples.items():
        milliseconds = Spread.of([1e3 * seconds for seconds in sample["seconds"]])
        table.append(
            [
                name,
                milliseconds.text(),
                paired_ratio(samples, name, "triad").text(2),
                paired_ratio(samples, name, "memset").text(2),
                f"{np.median(sample['page_faults']):.0f}",
            ]
        )
    title = f"threads: {threads}; medians [quartiles]"
    print_table(title, ["", "ms", "x triad", "x memset", "page faults"], table)


def judge(measured):
    """Prints and returns the verdicts; `measured` maps numbers of threads to samples."""
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--columns", type=int, default=2048, help="values per column")
    parser.add_argument("--rounds", type=int, default=5, help="processes per number of threads")
    parser.add_argument("--repeats", type=int, default=7, help="measurements per process")
    parser.add_argument("--output", default="results/encode.json")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure_here(*json.loads(arguments.measure))))
        return
    if arguments.columns % 32 or NUM_VALUES % arguments.columns:
        parser.error(
            f"--columns must be a multiple of 32 that divides {NUM_VALUES}. "
            f"Received: {arguments.columns}. Use a power of two from 32 to 2048."
        )
    facts = machine_facts()
    print_machine_facts(facts)
    measured = {threads: {} for threads in arguments.threads}
    for spacing in range(arguments.rounds):
        for threads in arguments.threads:
            rows = measure(threads, arguments.columns, arguments.repeats, spacing)
            for name, sample in rows.items():
                pooled = measured[threads].setdefault(name, {key: [] for key in sample})
                for key, values in sample.items():
                    pooled[key] += values
    for threads, samples in measured.items():
        report(threads, samples)
    content = {"machine": facts, "arguments": vars(arguments), "threads": measured}
    write_json(arguments.output, content | {"verdicts": judge(measured)})


if __name__ == "__main__":
    main()
