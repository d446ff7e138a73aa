"""The same bits from any number of threads and any instruction set."""

from tests.support.programs import start_python

PRINT_DIGEST = """
import hashlib, sys
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from tf_onebit import ops
from tf_onebit._layout import Layout

digest = hashlib.sha256()
def note(*tensors):
    for tensor in tensors:
        digest.update(np.asarray(tensor).tobytes())

rng = np.random.default_rng(5)
# Long columns of several blocks, odd ones, and enough of them for many blocks of columns.
shapes = [(10, 9001), (1000, 100), (77, 1), (1000,)]
cuts = [(10 * 9001, 9001, 9001), (100000, 100, 100), (77, 7, 7), (1000, 0, 0)]
layout = Layout(cuts, world_size=2)
for dtype in ("float32", "float16", "bfloat16"):
    for levels in ("mean", "symmetric"):
        residual = tf.Variable(tf.zeros([layout.size]))
        shard_residuals = [tf.Variable(tf.zeros([size])) for size in layout.shard_sizes]
        for step in range(2):
            gradients = [tf.constant(rng.normal(size=shape), dtype) for shape in shapes]
            messages, squares = ops.one_bit_encode(gradients, residual, layout, levels)
            note(messages, squares, residual)
            sent = []
            for rank in range(2):
                received = tf.stack([messages[rank], messages[rank]])
                note(*ops.one_bit_decode_sum(received, layout, rank))
                message, squares, plain = ops.one_bit_aggregate(
                    received, shard_residuals[rank], layout, rank, levels
                )
                note(message, squares, plain, shard_residuals[rank])
                sent.append(message)
            exchanged = ops.one_bit_decode(tf.concat(sent, axis=0), plain, gradients, layout, 0.5)
            note(*(tf.bitcast(g, tf.uint16) if dtype != "float32" else g for g in exchanged))
            scales = tf.constant(rng.uniform(0.01, 2, size=layout.size), tf.float32)
            note(*ops.one_bit_encode(gradients, residual, layout, levels, value_scales=scales))
            exchanged = ops.one_bit_decode(
                tf.concat(sent, axis=0), plain, gradients, layout, 0.5, value_scales=scales
            )
            note(*(tf.bitcast(g, tf.uint16) if dtype != "float32" else g for g in exchanged))
            ops.one_bit_learn_scales(gradients, residual, layout)
            note(residual)

# Runs of several stripes, blocks and words.
run_sizes = [33, 600_001, 4097]
state = [tf.Variable(tf.zeros([sum(run_sizes)])) for _ in range(4)]
for share in (1.0, 0.3):
    gradient = tf.constant(rng.normal(size=sum(run_sizes)), tf.float32)
    sums = ops.adagrad_accumulate(gradient, state[0], share, run_sizes)
    means = sums / run_sizes
    normalized = ops.adagrad_normalize(gradient, state[0], means, run_sizes, 1e-3)
    moved = ops.momentum(gradient, state[1], 0.9, nesterov=True, factor=-share)
    note(sums, normalized, moved, ops.adam(gradient, state[2], state[3], -share), *state)
print(digest.hexdigest())
"""


def test_threads_and_instruction_sets_change_no_bit():
    settings = [("1", "plain"), ("2", "avx2"), ("2", "avx512")]
    programs = [
        start_python(PRINT_DIGEST, threads, in_fork=True, TF_ONEBIT_SIMD=simd)
        for threads, simd in settings
    ]
    digests = {}
    for setting, program in zip(settings, programs, strict=True):
        output, errors = program.communicate(timeout=120)
        assert program.returncode == 0, errors
        digests[setting] = output.strip()
    assert len(set(digests.values())) == 1, digests
    assert len(digests["1", "plain"]) == 64
