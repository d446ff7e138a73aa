"""1-bit SGD in NumPy and float64, straight from Seide et al. 2014, section 3.

It imports nothing of the package under test, and knows neither its layout nor its messages.
"""

import numpy as np


def columns_of(shape, min_column_size, max_column_size):
    """Returns the slices of a flat tensor that share a pair of levels."""
    size, row = int(np.prod(shape)), shape[-1]
    if row > max_column_size:
        piece = -(-row // -(-row // max_column_size))
        piece = -(-piece // 32) * 32
        return [
            slice(start + cut, min(start + cut + piece, start + row))
            for start in range(0, size, row)
            for cut in range(0, row, piece)
        ]
    rows = 1
    while rows * row < min_column_size:
        rows += 1
    return [slice(start, min(start + rows * row, size)) for start in range(0, size, rows * row)]


def quantize(corrected, levels="mean"):
    """Returns the codes of a column, and the values that they stand for."""
    corrected = np.asarray(corrected, np.float64)
    if levels == "symmetric":
        mean = corrected.mean()
        deviation = np.abs(corrected - mean).mean()
        codes = corrected >= mean
        return codes, np.where(codes, mean + deviation, mean - deviation)
    codes = corrected >= 0
    reconstruction = np.zeros_like(corrected)
    for side in (codes, ~codes):
        if side.any():
            reconstruction[side] = corrected[side].mean()
    return codes, reconstruction


def scales_of(updates):
    """Returns the scales of a tensor's values after a list of updates."""
    square = np.zeros(np.shape(updates[0]))
    for update in updates:
        square = 0.95 * square + 0.05 * np.asarray(update, np.float64) ** 2
    return np.sqrt(square / square.mean()) + 0.01


def stored_as_bfloat16(residual, levels):
    """Returns the residual of a column as it is stored in bfloat16: float32 values.

    A value is between two neighbors of this type. It is rounded up, away from zero, if its distance
    to the lower one and a number in [0, 1) are together at least 1. The distance is in units of the
    neighbors' own. The numbers follow each other with a step of the golden ratio.

    Args:
        residual: float32 array, in the order of the column.
        levels: the column's two levels, float32.
    """
    bits = np.asarray(residual, np.float32).view(np.uint32)
    low, high = np.asarray(levels, np.float32).view(np.uint32).tolist()
    start = (low * 0x85EBCA6B ^ high * 0xC2B2AE35) % 2**32
    steps = (start + np.arange(bits.size) * 0x9E3779B9) % 2**32
    numbers = np.floor(steps / 2**16) / 2**16
    distances = (bits & 0xFFFF) / 2**16
    upper = (bits >> 16) + (distances + numbers >= 1)
    return (upper << 16).astype(np.uint32).view(np.float32)


class Quantizer:
    """Error feedback over one flat list of values, cut into columns.

    With two bits, the second one quantizes the error of the first.
    """

    def __init__(self, columns, size, levels="mean", error_feedback=True, bits=1):
        self.columns, self.levels, self.error_feedback = columns, levels, error_feedback
        self.bits = bits
        self.residual = np.zeros(size)

    def __call__(self, gradient):
        corrected = np.asarray(gradient, np.float64) + self.residual
        sent = np.zeros_like(corrected)
        for _ in range(self.bits):
            for column in self.columns:
                sent[column] += quantize(corrected[column] - sent[column], self.levels)[1]
        if self.error_feedback:
            self.residual = corrected - sent
        return sent


class Cluster:
    """A cluster of K workers that exchange one flat tensor in two stages.

    With `scales`, workers divide what they send by them, and multiply what they receive.

    Attributes:
        workers, owners: the quantizers of the first and of the second stage.
        aggregate: the sum of what the workers sent in the last exchange.
    """

    def __init__(
        self, world_size, columns, size, levels="mean", error_feedback=True, bits=1, scales=1.0
    ):
        def quantizer(bits):
            return Quantizer(columns, size, levels, error_feedback, bits)

        self.workers = [quantizer(bits=1) for _ in range(world_size)]
        # All shards together are one tensor, and columns do not depend on shards.
        self.owners = quantizer(bits)
        self.scales = scales

    def exchange(self, gradients):
        """Returns the sum over workers, the same for all of them."""
        self.aggregate = sum(
            worker(np.asarray(gradient) / self.scales)
            for worker, gradient in zip(self.workers, gradients, strict=True)
        )
        return self.owners(self.aggregate) * self.scales
