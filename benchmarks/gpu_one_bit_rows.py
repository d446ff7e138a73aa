"""Rows of `gpu.py`: the 1-bit kernels, and the whole exchange."""

import ctypes

import numpy as np
from gpu_row import COLUMN_SIZE, EXCHANGE, FLOAT_BYTES, WORLD_SIZE, Row

from tests.gpu.one_bit import OneBitKernels, layout


def one_bit_rows(device, shapes, rng, bits=1):
    """Returns rows of the 1-bit kernels for a whole model.

    Args:
        device: from `tests.gpu.devices`.
        shapes: list of (rows, columns) of the model's matrices.
        rng: NumPy generator.
        bits: of each value of an aggregate.
    """
    cuts = [
        (rows * columns, *layout.column_cut((rows, columns), 64, COLUMN_SIZE))
        for rows, columns in shapes
    ]
    kernels = OneBitKernels(device, layout.Layout(cuts, WORLD_SIZE))
    plan = kernels.layout
    gradients = [
        device.array(rng.standard_normal(rows * columns, np.float32)) for rows, columns in shapes
    ]
    residual, shard_residual = (kernels.residual(size) for size in (plan.size, plan.shard_sizes[0]))
    worker_words, shard_words = plan.worker_message_bytes // 4, plan.shard_message_bytes // 4
    messages = kernels.empty((WORLD_SIZE, worker_words))
    message = kernels.empty((bits, shard_words))
    gathered = kernels.empty((WORLD_SIZE * bits, shard_words))
    received = kernels.to_device(np.zeros((WORLD_SIZE, worker_words), np.int32))
    aggregate = kernels.empty(plan.shard_sizes[0], np.float32)
    plain = kernels.empty(0, np.float32)
    quantizer, _ = kernels.quantizer(plan.num_columns, residual)
    narrow_quantizer, _ = kernels.quantizer(
        plan.num_columns, kernels.residual(plan.size, "bfloat16")
    )
    shard_quantizer, _ = kernels.quantizer(kernels.shard_columns(0), shard_residual, bits)
    pointers, float32, rank = kernels.pointers(gradients), ctypes.c_int32(0), ctypes.c_int64(0)
    scale = ctypes.c_float(1 / WORLD_SIZE)
    scales = device.array(rng.uniform(0.1, 1.0, plan.size).astype(np.float32))
    squares = device.array(np.zeros(plan.size, np.float32))
    factor = device.array(np.float32([1e-6]))

    def encode(value_scales=None, of=quantizer):
        kernels.call(
            "one_bit_encode",
            kernels.device_layout,
            float32,
            pointers,
            kernels.pointer_or_null(value_scales),
            ctypes.byref(of),
            kernels.pointer(messages),
        )

    def decode_sum():
        kernels.call(
            "one_bit_decode_sum",
            kernels.device_layout,
            rank,
            *map(kernels.pointer, (received, aggregate, plain)),
        )

    def encode_shard():
        kernels.call(
            "one_bit_encode_shard",
            kernels.device_layout,
            rank,
            kernels.pointer(aggregate),
            ctypes.byref(shard_quantizer),
            kernels.pointer(message),
        )

    def aggregate_messages():
        kernels.call(
            "one_bit_aggregate",
            kernels.device_layout,
            rank,
            kernels.pointer(received),
            ctypes.byref(shard_quantizer),
            *map(kernels.pointer, (message, plain)),
        )

    def decode(value_scales=None):
        kernels.call(
            "one_bit_decode",
            kernels.device_layout,
            float32,
            kernels.pointer(gathered),
            ctypes.c_int32(bits),
            kernels.pointer(plain),
            scale,
            kernels.pointer_or_null(value_scales),
            pointers,
        )

    def decode_add():
        kernels.call(
            "one_bit_decode_add",
            kernels.device_layout,
            kernels.pointer(gathered),
            ctypes.c_int32(bits),
            kernels.pointer(plain),
            scale,
            kernels.pointer_or_null(None),
            kernels.pointer(factor),
            pointers,
        )

    def learn_scales():
        kernels.call(
            "one_bit_learn_scales",
            kernels.device_layout,
            float32,
            pointers,
            kernels.pointer(squares),
        )

    def exchange():
        encode()
        aggregate_messages()
        decode()

    def exchange_by_two_ops():
        encode()
        decode_sum()
        encode_shard()
        decode()

    # The input of a worker: messages about its shard, and about all shards.
    encode()
    received[...] = messages
    decode_sum()
    encode_shard()
    gathered.reshape(WORLD_SIZE, bits, shard_words)[...] = message

    encode_bytes = 3 * FLOAT_BYTES * plan.size + messages.nbytes
    sum_bytes = received.nbytes + aggregate.nbytes
    shard_bytes = 3 * aggregate.nbytes + message.nbytes
    # It reads and writes the residual, which is as long as the aggregate.
    aggregate_bytes = received.nbytes + 2 * aggregate.nbytes + message.nbytes
    decode_bytes = gathered.nbytes + FLOAT_BYTES * plan.size
    return {
        "1-bit encode": Row(encode, encode_bytes),
        "1-bit encode, scaled": Row(lambda: encode(scales), encode_bytes + scales.nbytes),
        "1-bit encode, bfloat16 residual": Row(
            lambda: encode(of=narrow_quantizer), encode_bytes - FLOAT_BYTES * plan.size
        ),
        "1-bit decode": Row(decode, decode_bytes),
        "1-bit decode, scaled": Row(lambda: decode(scales), decode_bytes + scales.nbytes),
        "1-bit decode and add": Row(decode_add, decode_bytes + FLOAT_BYTES * plan.size),
        "1-bit scales learned": Row(learn_scales, 3 * scales.nbytes),
        "1-bit aggregate of 8": Row(aggregate_messages, aggregate_bytes),
        EXCHANGE: Row(exchange, encode_bytes + aggregate_bytes + decode_bytes),
        "the same, sum and second encode apart": Row(
            exchange_by_two_ops, encode_bytes + sum_bytes + shard_bytes + decode_bytes
        ),
    }


def decode_sum_rows(device, num_values, rng):
    """Returns the row of a sum of eight messages about a shard of so many values."""
    cut = (WORLD_SIZE * num_values, num_values, COLUMN_SIZE)
    kernels = OneBitKernels(device, layout.Layout([cut], WORLD_SIZE))
    plan = kernels.layout
    words = plan.worker_message_bytes // 4
    messages = rng.integers(2**32, size=(WORLD_SIZE, words), dtype=np.uint32).view(np.int32)
    levels = 2 * kernels.shard_columns(0)
    of_messages = rng.standard_normal((WORLD_SIZE, levels), np.float32)
    messages[:, 1 : 1 + levels] = of_messages.view(np.int32)
    received = kernels.to_device(messages)
    aggregate = kernels.empty(plan.shard_sizes[0], np.float32)
    plain = kernels.empty(0, np.float32)

    def decode_sum():
        kernels.call(
            "one_bit_decode_sum",
            kernels.device_layout,
            ctypes.c_int64(0),
            *map(kernels.pointer, (received, aggregate, plain)),
        )

    return {"1-bit decode and sum of 8": Row(decode_sum, received.nbytes + aggregate.nbytes)}
