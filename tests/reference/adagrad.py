"""Normalized AdaGrad in NumPy and float64, straight from Seide et al. 2014 (ICASSP), section 4.

It imports nothing of the package under test. The low-pass filter is written as a weighted average
of all squares so far. The paper has no epsilon.
"""

import numpy as np


class NormalizedAdaGrad:
    """The gradients of some matrices in units of their standard deviations.

    Attributes:
        deviations: list of float64 arrays: sigma of each matrix, after a step.
    """

    def __init__(self, time_constant, epsilon):
        self.time_constant, self.epsilon = time_constant, epsilon
        self._history = []  # (number of samples, squares of all matrices)

    def step(self, gradients, samples):
        gradients = [np.asarray(gradient, np.float64) for gradient in gradients]
        self._history.append((samples, [gradient**2 for gradient in gradients]))
        # The impulse response, sampled at the end of each step: what n samples add to it, and how
        # much it decays during later samples.
        passed, weights = 0, []
        for n, _ in reversed(self._history):
            decay = np.exp(-passed / self.time_constant)
            weights.append(decay * (1 - np.exp(-n / self.time_constant)))
            passed += n
        weights = np.array(weights[::-1]) / np.sum(weights)
        matrices = zip(*(squares for _, squares in self._history), strict=True)
        self.deviations = [
            np.sqrt(sum(w * square for w, square in zip(weights, squares, strict=True)))
            for squares in matrices
        ]
        return [self._normalized(g, s) for g, s in zip(gradients, self.deviations, strict=True)]

    def _normalized(self, gradient, deviation):
        if not deviation.any():
            return gradient
        return gradient / np.maximum(deviation / deviation.mean(), self.epsilon)


class Momentum:
    """A decaying sum of gradients.

    Attributes:
        velocities: list of float64 arrays, after a step.
    """

    def __init__(self, momentum, nesterov=False):
        self.momentum, self.nesterov, self.velocities = momentum, nesterov, None

    def step(self, gradients, samples):
        del samples
        old = self.velocities or [0.0 for _ in gradients]
        self.velocities = [self.momentum * v + g for v, g in zip(old, gradients, strict=True)]
        if self.nesterov:
            return [g + self.momentum * v for g, v in zip(gradients, self.velocities, strict=True)]
        return self.velocities
