"""The 1-bit exchange as users of CuPy and PyTorch would write it, for `gpu.py`."""

import functools

import numpy as np


def inputs_of(num_values, column_size, world_size, rng):
    """Returns what a worker of an exchange gets, as NumPy's arrays.

    These are a gradient in columns, the messages of all workers about its shard, and the messages
    of all shards. A message is bytes of codes, and levels.
    """
    columns = num_values // column_size // world_size * world_size
    shape = world_size, columns // world_size
    gradient = rng.standard_normal((columns, column_size), np.float32)
    received, gathered = (
        (
            rng.integers(256, size=(*shape, column_size // 8), dtype=np.uint8),
            rng.standard_normal((*shape, 2), np.float32),
        )
        for _ in range(2)
    )
    return gradient, received, gathered


def _added_up(arrays):
    return functools.reduce(lambda total, array: total + array, arrays)


def in_arrays(device, inputs):
    """Returns the exchange as a user of CuPy would write it: function."""
    xp = device.array_module()
    gradient, received, gathered = inputs
    column_size, world_size = gradient.shape[1], len(received[0])
    gradient = device.array(gradient)
    received, gathered = (tuple(map(device.array, pair)) for pair in (received, gathered))
    residual = xp.zeros_like(gradient)
    shard_residual = xp.zeros_like(gradient[: len(gradient) // world_size])

    def encode(values, residual):
        corrected = values + residual
        positive = corrected >= 0
        upper_sum = xp.where(positive, corrected, 0).sum(axis=1)
        lower_sum = corrected.sum(axis=1) - upper_sum
        ones = positive.sum(axis=1)
        upper = upper_sum / xp.maximum(ones, 1)
        lower = lower_sum / xp.maximum(column_size - ones, 1)
        levels = xp.stack([lower, upper], axis=1).astype(np.float32)
        xp.subtract(corrected, xp.where(positive, levels[:, 1:], levels[:, :1]), out=residual)
        return xp.packbits(positive.ravel()), levels

    def decode(codes, levels):
        bits = xp.unpackbits(codes.ravel()).reshape(-1, column_size)
        levels = levels.reshape(-1, 2)
        return xp.where(bits, levels[:, 1:], levels[:, :1])

    def exchange():
        sent = encode(gradient, residual)
        aggregate = _added_up(decode(*message) for message in zip(*received, strict=True))
        return sent, encode(aggregate, shard_residual), decode(*gathered)

    # What is sent and what is kept make the gradient, before there is a residual.
    sent, *_ = exchange()
    whole = device.numpy(decode(*sent) + residual)
    np.testing.assert_allclose(whole, device.numpy(gradient), rtol=1e-4, atol=1e-5)
    return exchange


def in_torch(inputs):
    """Returns the exchange in PyTorch, and the same compiled by torch.compile: two functions."""
    import torch

    gradient, received, gathered = inputs
    column_size, world_size = gradient.shape[1], len(received[0])
    gradient = torch.from_numpy(gradient).cuda()
    received, gathered = (
        tuple(torch.from_numpy(array).cuda() for array in pair) for pair in (received, gathered)
    )
    shifts = torch.arange(8, dtype=torch.uint8, device="cuda")
    weights = 1 << shifts

    def encode(values, residual):
        corrected = values + residual
        positive = corrected >= 0
        ones = positive.sum(1)
        upper_sum = torch.where(positive, corrected, 0).sum(1)
        lower_sum = corrected.sum(1) - upper_sum
        upper = upper_sum / ones.clamp(min=1)
        lower = lower_sum / (column_size - ones).clamp(min=1)
        levels = torch.stack([lower, upper], 1)
        residual.copy_(corrected - torch.where(positive, levels[:, 1:], levels[:, :1]))
        return (positive.view(-1, 8) * weights).sum(1, dtype=torch.uint8), levels

    def decode(codes, levels):
        bits = (codes.reshape(-1, 1) >> shifts & 1).view(-1, column_size).bool()
        levels = levels.reshape(-1, 2)
        return torch.where(bits, levels[:, 1:], levels[:, :1])

    def exchange(residual, shard_residual):
        sent = encode(gradient, residual)
        aggregate = _added_up(decode(*message) for message in zip(*received, strict=True))
        return sent, encode(aggregate, shard_residual), decode(*gathered)

    def checked(function):
        residual = torch.zeros_like(gradient)
        residuals = residual, torch.zeros_like(gradient[: len(gradient) // world_size])
        sent, *_ = function(*residuals)
        torch.testing.assert_close(decode(*sent) + residual, gradient, rtol=1e-4, atol=1e-5)
        return lambda: function(*residuals)

    return checked(exchange), checked(torch.compile(exchange))
