"""BMUF-Adam in NumPy, float64: Algorithm 1 of Chen, Ding, Huo 2020, line by line.

There are three extensions: block learning rates zeta other than 1 (rho_n = eta rho_(n-1) + zeta
tau), classical block momentum (Eq. 5, 6), and workers with unlike numbers of steps. Means are then
weighted by the numbers of steps. In the line for m_init, the second denominator is 1 - beta_1^tau
(Eq. 18).
"""

import numpy as np


class BmufAdam:
    """All workers of a job.

    Args:
        theta: `[size]`: initial weights of all workers.
        workers: N.
        eta, zeta, nesterov: block momentum, block learning rate, and kind of momentum.
        alpha, beta_1, beta_2, epsilon: of Adam.
    """

    def __init__(
        self,
        theta,
        workers,
        eta,
        zeta=1.0,
        nesterov=True,
        alpha=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
    ):
        self.eta, self.zeta, self.nesterov = eta, zeta, nesterov
        self.alpha, self.beta_1, self.beta_2, self.epsilon = alpha, beta_1, beta_2, epsilon
        theta = np.asarray(theta, np.float64)
        self.theta_global = theta.copy()
        self.theta_init = theta.copy()
        self.m_init, self.v_init = np.zeros_like(theta), np.zeros_like(theta)
        self.delta, self.rho, self.k = np.zeros_like(theta), 0.0, 0.0
        self.theta = np.tile(theta, (workers, 1))
        self.m, self.v = np.zeros_like(self.theta), np.zeros_like(self.theta)

    def step(self, worker, steps_in_block, g):
        """Runs lines 3 to 8: a worker's step `steps_in_block` of the block, counted from 1."""
        k = self.k + steps_in_block
        self.m[worker] = self.beta_1 * self.m[worker] + (1 - self.beta_1) * g
        self.v[worker] = self.beta_2 * self.v[worker] + (1 - self.beta_2) * g * g
        m_hat = self.m[worker] / (1 - self.beta_1**k)
        v_hat = self.v[worker] / (1 - self.beta_2**k)
        self.theta[worker] = self.theta[worker] - self.alpha * m_hat / (
            self.epsilon + np.sqrt(v_hat)
        )

    def end_block(self, steps):
        """Runs lines 9 to 17.

        Args:
            steps: list of ints: tau of each worker.
        """
        weights = np.asarray(steps, np.float64) / np.sum(steps)
        theta_bar, m_bar, v_bar = (weights @ x for x in (self.theta, self.m, self.v))
        tau = float(weights @ np.asarray(steps))
        update = self.zeta * (theta_bar - self.theta_init)
        rho_before, delta_before = self.rho, self.delta
        self.delta = self.eta * delta_before + update
        self.rho = self.eta * rho_before + self.zeta * tau
        if self.nesterov:
            self.theta_global = self.theta_global + self.delta
            self.theta_init = self.theta_global + self.eta * self.delta
            ahead = self.eta * self.rho
        else:
            self.theta_global = self.theta_init = self.theta_global + self.delta
            ahead = self.eta * rho_before
        self.m_init = _ahead(m_bar, self.m_init, self.beta_1, weights, steps, ahead)
        self.v_init = _ahead(v_bar, self.v_init, self.beta_2, weights, steps, ahead)
        self.k = self.k + tau + ahead
        self.theta[:], self.m[:], self.v[:] = self.theta_init, self.m_init, self.v_init


class LateFragments:
    """All workers of a job whose model has fragments that synchronize late, in NumPy, float64.

    Every fragment has a block filter of its own (`BmufAdam`, without moments). A worker trains on
    while a fragment is under way. Then the change that the synchronization would have made at once
    is made, and what was learned meanwhile stays.

    Args:
        theta: `[size]`: initial weights of all workers.
        workers: N.
        places: list of the fragments' slices of the weights.
        eta, zeta, nesterov: see `BmufAdam`.
    """

    def __init__(self, theta, workers, places, eta, zeta=1.0, nesterov=True):
        self.theta = np.tile(np.asarray(theta, np.float64), (workers, 1))
        self.places = places
        self.filters = [BmufAdam(theta[own], workers, eta, zeta, nesterov) for own in places]

    @property
    def theta_global(self):
        return np.concatenate([own.theta_global for own in self.filters])

    def start(self, fragment):
        """Begins the synchronization of a fragment: the workers' weights are sent as they are."""
        self.filters[fragment].theta[:] = self.theta[:, self.places[fragment]]

    def finish(self, fragment, steps):
        """Ends it.

        Args:
            fragment: index of the fragment.
            steps: list of ints: steps of each worker in the fragment's block, until `start`.
        """
        its_filter, own = self.filters[fragment], self.places[fragment]
        learned = self.theta[:, own] - its_filter.theta
        its_filter.end_block(steps)
        self.theta[:, own] = its_filter.theta_init + learned


def _ahead(bar, init, beta, weights, steps, ahead):
    """Computes Eq. 16, with E[g] of Eq. 17."""
    decay = float(weights @ beta ** np.asarray(steps, np.float64))
    expected = (bar - decay * init) / (1 - decay)
    decay_ahead = decay * beta**ahead
    return decay_ahead * init + (1 - decay_ahead) * expected
