"""Threshold-sparse updates in NumPy, straight from Strom 2015, sections 2.4 to 2.6.

It imports nothing of the package under test. Everything is computed in the type of the values:
float64 for mathematics, float32 to the last bit. The paper leaves two rules to the user: how tau
follows a density, and how long a message is. They are below, as their documentation states them.
"""

import numpy as np


def encode(corrected, tau, capacity=None, magnitude=None):
    """Runs steps 6 and 7 of the paper's pseudo code, for at most `capacity` values.

    Args:
        magnitude: what a sent value takes from the residual, if that is not tau.

    Returns:
        The message (a list of (index, sign) pairs), the residual, and how many values exceed tau.
    """
    exceeding = np.flatnonzero(abs(corrected) > tau)
    message = [(int(i), int(np.sign(corrected[i]))) for i in exceeding[:capacity]]
    residual = corrected.copy()
    for i, sign in message:
        residual[i] -= sign * residual.dtype.type(tau if magnitude is None else magnitude)
    return message, residual, len(exceeding)


def decode_sum(messages, steps, size, dtype=np.float64):
    """Returns the sum of several workers' messages, added in their order."""
    total = np.zeros(size, dtype)
    for message, step in zip(messages, steps, strict=True):
        for i, sign in message:
            total[i] += sign * total.dtype.type(step)
    return total


class Cluster:
    """A cluster of K workers that exchange one flat tensor.

    Attributes:
        residuals: list of the workers' unsent values.
        need: largest number of values that exceeded tau on a worker, in the last exchange.
    """

    def __init__(self, world_size, size, dtype=np.float64):
        self.residuals = [np.zeros(size, dtype) for _ in range(world_size)]

    def exchange(self, gradients, tau, capacity=None):
        """Returns the sum of the workers' messages."""
        corrected = [r + g for r, g in zip(self.residuals, gradients, strict=True)]
        encoded = [encode(values, tau, capacity) for values in corrected]
        messages, self.residuals, needs = map(list, zip(*encoded, strict=True))
        self.need = max(needs)
        size, dtype = corrected[0].size, corrected[0].dtype
        return decode_sum(messages, [tau] * len(messages), size, dtype)


def normal_quantile(part):
    """Returns the size that a given part of normally distributed values exceeds."""
    x = np.linspace(0, 9, 900_001)
    density = np.exp(-(x**2) / 2) * np.sqrt(2 / np.pi)
    below = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2) * x[1]])
    return float(np.interp(1 - part, below, x))


class Tau:
    """The threshold for a density: small steps on its running average, and a leap if far off."""

    def __init__(self, target):
        self.target = self.average = target
        self.value = None

    def follow(self, density, mean_square):
        typical = normal_quantile(self.target) * mean_square**0.5
        if self.value is None:
            self.value = typical
            return
        self.average += 0.2 * (density - self.average)
        self.value *= 1 + min(0.1, max(-0.1, 4 * (self.average - self.target)))
        if self.average > 10 * self.target:
            self.value = max(self.value, typical)


class Capacity:
    """The room of messages: 1.1 times the average need, in four sizes per factor of two.

    It changes when a run of 32 exchanges ends, and at once if a message needs twice the room.
    """

    def __init__(self, most, expected):
        self.rooms = [min(most, 1)]
        while self.rooms[-1] < most:
            self.rooms.append(min(most, int(np.ceil(2 ** (len(self.rooms) / 4)))))
        self.step = self._step_for(expected)
        self.needs = []

    @property
    def value(self):
        return self.rooms[self.step]

    def _step_for(self, need):
        fitting = (step for step, room in enumerate(self.rooms) if room >= np.ceil(1.1 * need))
        return next(fitting, len(self.rooms) - 1)

    def follow(self, need):
        self.needs.append(need)
        if need > 2 * self.value:
            self.step, self.needs = self._step_for(need), []
        elif len(self.needs) == 32:
            self.step, self.needs = self._step_for(sum(self.needs) / 32), []
