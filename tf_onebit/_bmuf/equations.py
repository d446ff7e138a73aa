"""Equations of block momentum: the update of the model and its moments at the end of a block.

The equations are blockwise model-update filtering and its correction of Adam's moments (Chen, Ding,
Huo 2020). They are plain arithmetic on anything that adds and multiplies: floats, NumPy arrays,
tensors. Equations are numbered as in the paper. theta_init and m_init are the values at the
beginning of a block. A bar is the mean of the workers' values at its end.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

# What adds and multiplies: a float, a NumPy array, a tensor.
_Value = TypeVar("_Value", bound=Any)


@dataclasses.dataclass(frozen=True)
class Block:
    """The workers' steps in one block.

    Attributes:
        steps: tuple of ints: number of minibatches, by worker.
        leader: rank of the only worker that counts, or None if all count by their steps.
        weighted_by: steps that give the workers' weights, by worker, if they differ from `steps`.

    Example:
        >>> Block((8, 8, 4, 0)).weights
        (0.4, 0.4, 0.2, 0.0)
    """

    steps: tuple[int, ...]
    leader: int | None = None
    weighted_by: tuple[int, ...] | None = None

    def of_optimizer(self, steps: Iterable[int]) -> "Block":
        """Returns the same block for one of several optimizers.

        Args:
            steps: tuple of ints: number of the optimizer's minibatches, by worker.
        """
        return Block(tuple(steps), self.leader, self.steps)

    @property
    def counted(self) -> tuple[int, ...]:
        """Number of minibatches that count, by worker."""
        return self._counted(self.steps)

    def _counted(self, steps: tuple[int, ...]) -> tuple[int, ...]:
        if self.leader is None:
            return steps
        return tuple(n if rank == self.leader else 0 for rank, n in enumerate(steps))

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights of the workers in means. At least one must have made a step that counts."""
        counted = self._counted(self.weighted_by or self.steps)
        total = sum(counted)
        return tuple(n / total for n in counted)

    @property
    def mean_steps(self) -> float:
        """Mean number of minibatches of a worker: tau."""
        return self.mean(lambda steps: steps)

    def decay(self, beta: float) -> float:
        """Returns beta^tau, the weight of a moving average's initial value after the block."""
        return self.mean(lambda steps: beta**steps)

    def mean(self, of_steps: Callable[[int], float]) -> float:
        """Returns the weighted mean of a function of a worker's steps."""
        pairs = zip(self.weights, self.counted, strict=True)
        return math.fsum(weight * of_steps(steps) for weight, steps in pairs if weight)


@dataclasses.dataclass(frozen=True)
class BlockFilter:
    """Filter that adds a part of the previous block's update to each block's (section 2.1).

        Delta_n = eta Delta_(n-1) + zeta (theta_bar - theta_init)               (1)
        theta = theta_bar + (zeta - 1) (theta_bar - theta_init)                 (2, 8)
        theta_init' = theta + eta Delta_n                                       (7, 9)

    theta is the global model, which is evaluated, saved and returned. theta_init' is the
    look-ahead, from which the workers begin the next block. For zeta = 1 the global model is
    theta_bar. With classical momentum both are the same:

        theta = theta_init' = theta_bar + (zeta - 1) (theta_bar - theta_init) + eta Delta_(n-1)  (6)

    Attributes:
        block_momentum: eta, at least 0 and below 1.
        block_learning_rate: zeta.
        nesterov: whether the look-ahead is ahead of theta by eta Delta_n. Otherwise momentum is
            classical.
    """

    block_momentum: float
    block_learning_rate: float = 1.0
    nesterov: bool = True

    def model(self, mean: _Value, begin: _Value, delta: _Value) -> tuple[_Value, _Value, _Value]:
        """Computes the model after a block.

        Args:
            mean: theta_bar.
            begin: theta_init.
            delta: Delta_(n-1).

        Returns:
            theta, theta_init' and Delta_n.
        """
        update = mean - begin
        zeta, eta = self.block_learning_rate, self.block_momentum
        base = mean if zeta == 1 else mean + (zeta - 1) * update
        next_delta = eta * delta + zeta * update
        if self.nesterov:
            return base, base + eta * next_delta, next_delta
        look_ahead = base + eta * delta
        return look_ahead, look_ahead, next_delta

    def steps(self, steps: float, equivalent_steps: float) -> tuple[float, float]:
        """Computes how many minibatches the momentum is worth (4).

        Args:
            steps: tau.
            equivalent_steps: rho_(n-1).

        Returns:
            rho_n = eta rho_(n-1) + zeta tau, and the number of minibatches by which theta_init' is
            ahead of theta_bar: eta rho_n, or with classical momentum eta rho_(n-1).
        """
        eta = self.block_momentum
        next_steps = eta * equivalent_steps + self.block_learning_rate * steps
        return next_steps, eta * (next_steps if self.nesterov else equivalent_steps)


def moment_factors(block: Block, steps_ahead: float, beta: float) -> tuple[float, float]:
    """Computes the factors that move a moving average to the look-ahead.

    Equation 18, with b = beta^tau and s the number of steps that the look-ahead is ahead:

        m_init' = b (beta^s - 1) / (1 - b) m_init + (1 - b beta^s) / (1 - b) m_bar
                = m_bar + kappa (m_bar - m_init),        kappa = b (1 - beta^s) / (1 - b)

    It assumes that gradients with the same mean go on for s more steps. Such gradients cannot bring
    an average of squares below b beta^s times its initial value, which is therefore its floor.

    Args:
        block: `Block`.
        steps_ahead: s.
        beta: decay of the moving average in a step.

    Returns:
        kappa, and the floor's factor b beta^s.
    """
    decay = block.decay(beta)
    if decay == 1:  # a moving average that does not move
        return 0.0, 1.0
    ahead = beta**steps_ahead
    return decay * (1 - ahead) / (1 - decay), decay * ahead


def corrected_moment(mean: _Value, begin: _Value, factor: float) -> _Value:
    """Computes m_init' of `moment_factors` from m_bar, m_init and kappa."""
    return mean + factor * (mean - begin)
