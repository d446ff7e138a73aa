"""RAdam in NumPy, straight from Liu et al. 2020 (arXiv:1908.03265), Algorithm 2.

It imports nothing of the package under test. Epsilon stands where Keras has it. The paper has none.
"""

import numpy as np


def rho(t, beta_2):
    """Returns the length of the simple moving average that the second moments equal."""
    return 2 / (1 - beta_2) - 1 - 2 * t * beta_2**t / (1 - beta_2**t)


def variance_rectification(t, beta_2):
    """Returns r_t, or None where the variance is intractable."""
    limit, length = 2 / (1 - beta_2) - 1, rho(t, beta_2)
    if length <= 4:
        return None
    return np.sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length))


class RectifiedAdam:
    """Weights and their moments.

    Attributes:
        weights, m, v: float64 arrays.
        t: steps so far, which need not be an integer.
    """

    def __init__(self, weights, learning_rate, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
        self.weights = np.array(weights, np.float64)
        self.m, self.v, self.t = np.zeros_like(self.weights), np.zeros_like(self.weights), 0
        self.learning_rate, self.beta_1, self.beta_2 = learning_rate, beta_1, beta_2
        self.epsilon = epsilon

    def step(self, gradient):
        self.t += 1
        self.m = self.beta_1 * self.m + (1 - self.beta_1) * gradient
        self.v = self.beta_2 * self.v + (1 - self.beta_2) * gradient**2
        m_hat = self.m / (1 - self.beta_1**self.t)
        rectification = variance_rectification(self.t, self.beta_2)
        if rectification is None:
            self.weights = self.weights - self.learning_rate * m_hat
            return
        v_hat = self.v / (1 - self.beta_2**self.t)
        adapted = m_hat / (np.sqrt(v_hat) + self.epsilon)
        self.weights = self.weights - self.learning_rate * rectification * adapted
