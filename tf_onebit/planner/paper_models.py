"""The papers' cost models, with the number of nodes that compute as long as they communicate."""

import dataclasses
import math
from collections.abc import Callable

from tf_onebit.planner.costs import (
    FLOAT_BYTES,
    require_at_least_0,
    require_positive,
    require_workers,
)

# A factor or a time, as a function of a number of samples, bytes or nodes.
_Function = Callable[[float], float]

# Beyond this number `optimal_workers` tells that there is no optimum.
_MOST_WORKERS = 2**40
_BISECTIONS = 100


def _one(_: float) -> float:
    return 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ParallelSgd:
    """Base of both kinds of parallelism ("On Parallelizability of SGD").

    Reality factors are functions and 1 by default. Measure them, or use a constant such as
    `lambda _: 1.2`.
    """

    parameters: float
    operations_per_second: float
    bytes_per_second: float
    minibatch_size: float
    minibatch_slowdown: _Function = _one
    block_slowdown: _Function = _one
    connection_slowdown: _Function = _one

    def __post_init__(self) -> None:
        for name in ("parameters", "operations_per_second", "bytes_per_second", "minibatch_size"):
            require_positive(name, getattr(self, name))

    @property
    def _seconds_per_product(self) -> float:
        """Time of one operation per parameter: M / f."""
        return self.parameters / self.operations_per_second

    def calculation_seconds(self, workers: float) -> float:
        raise NotImplementedError

    def communication_seconds(self, workers: float) -> float:
        raise NotImplementedError

    def step_seconds(self, workers: float) -> float:
        """Returns the time of a minibatch: the longer of calculation and communication."""
        calculation = self.calculation_seconds(workers)
        if workers == 1:
            return calculation
        return max(calculation, self.communication_seconds(workers))

    def speed_up(self, workers: float) -> float:
        """Returns how much faster `workers` nodes are than one."""
        return self.step_seconds(1) / self.step_seconds(workers)

    def optimal_workers(self) -> float:
        """Returns K at which T_calc(K) = T_comm(K): float, at least 1; infinite without such K."""
        return _crossing(self.calculation_seconds, self.communication_seconds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelParallelism(_ParallelSgd):
    """Model parallelism: each of K nodes holds a K-th of each weight matrix (section 3.1).

        T_calc(K) = M / f * N / K * eta_mbs(N / K) * eta_strp(K)
        T_comm(K) = A_fr * w_A / b * N * (K - 1) / K * lambda_blk(N / K) * lambda_conn(K)

    The equations hold for forward propagation and for back propagation alike.

    Args:
        parameters: M, number of parameters of the model.
        operations_per_second: f, multiplications and additions of a parameter by one node.
        bytes_per_second: b, best rate between two nodes.
        minibatch_size: N, number of samples.
        activations: A_fr, number of values that a sample passes between layers.
        activation_bytes: w_A, number of bytes of such a value.
        minibatch_slowdown: eta_mbs, function of a number of samples.
        stripe_slowdown: eta_strp, function of the number of nodes.
        block_slowdown: lambda_blk, function of a number of samples.
        connection_slowdown: lambda_conn, function of the number of nodes.

    Raises:
        ValueError: if a number is not positive.

    Example:
        >>> gpus = ModelParallelism(
        ...     parameters=46e6, operations_per_second=976e9, bytes_per_second=4.83e9,
        ...     minibatch_size=1024, activations=12e3, connection_slowdown=lambda _: 2.0)
        >>> round(gpus.optimal_workers(), 2)
        3.37
    """

    activations: float
    activation_bytes: float = FLOAT_BYTES
    stripe_slowdown: _Function = _one

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("activations", "activation_bytes"):
            require_positive(name, getattr(self, name))

    def calculation_seconds(self, workers: float) -> float:
        """Returns T_calc(K) of a minibatch."""
        require_workers(workers, whole=False)
        samples = self.minibatch_size / workers
        slowdown = self.minibatch_slowdown(samples) * self.stripe_slowdown(workers)
        return self._seconds_per_product * samples * slowdown

    def communication_seconds(self, workers: float) -> float:
        """Returns T_comm(K) of a minibatch."""
        sample_seconds = self.activations * self.activation_bytes / self.bytes_per_second
        slowdown = self.block_slowdown(self.minibatch_size / workers)
        slowdown *= self.connection_slowdown(workers)
        return sample_seconds * self.minibatch_size * (workers - 1) / workers * slowdown


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataParallelism(_ParallelSgd):
    """Data parallelism: K nodes take a K-th of each minibatch each, in half-batches (section 3.2).

        T_calc(1) = M / f * (3 N * eta_mbs(N) + C * eta_fix)
        T_calc(K) = 2 M / f * (3 N / 2 / K * eta_mbs(N / 2K) + (C + 1) * eta_fix)
        T_comm(K) = 2 M * w_M / b * 2 * lambda_blk(M * w_M / K) * lambda_conn(K)

    The second 2 of T_comm stands for collecting and distributing. The paper prints 2K/K in its
    place, and has 2 in its formula for the optimal number of nodes.

    Args:
        parameters, operations_per_second, bytes_per_second, minibatch_size: see
            `ModelParallelism`.
        parameter_bytes: w_M, number of bytes of a sent value: 4, or less with compression.
        fixed_steps: C, number of passes over the model's parameters per minibatch.
        fixed_slowdown: eta_fix, factor by which such a pass is slower than M / f.
        minibatch_slowdown: eta_mbs, function of a number of samples.
        block_slowdown: lambda_blk, function of a number of bytes.
        connection_slowdown: lambda_conn, function of the number of nodes.

    Raises:
        ValueError: if a number is not positive.

    Example:
        >>> gpus = DataParallelism(
        ...     parameters=46e6, operations_per_second=976e9, bytes_per_second=4.83e9,
        ...     minibatch_size=16384, fixed_steps=4, fixed_slowdown=18.2e-3 / 4 * 976e9 / 46e6,
        ...     connection_slowdown=lambda _: 3.0)
        >>> round(gpus.optimal_workers(), 1), round(gpus.speed_up(6), 1)
        (5.6, 5.1)
    """

    parameter_bytes: float = FLOAT_BYTES
    fixed_steps: float = 4
    fixed_slowdown: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("parameter_bytes", "fixed_steps", "fixed_slowdown"):
            require_positive(name, getattr(self, name))

    def calculation_seconds(self, workers: float) -> float:
        """Returns T_calc(K) of a minibatch; one node alone needs no half-batches."""
        require_workers(workers, whole=False)
        halves = 1 if workers == 1 else 2
        samples = self.minibatch_size / halves / workers
        fixed_steps = self.fixed_steps + halves - 1
        operations = 3 * samples * self.minibatch_slowdown(samples)
        operations += fixed_steps * self.fixed_slowdown
        return halves * self._seconds_per_product * operations

    def communication_seconds(self, workers: float) -> float:
        """Returns T_comm(K) of both halves of a minibatch."""
        model_bytes = self.parameters * self.parameter_bytes
        slowdown = self.block_slowdown(model_bytes / workers) * self.connection_slowdown(workers)
        return 2 * 2 * model_bytes / self.bytes_per_second * slowdown

    def optimal_workers(self) -> float:
        # A single node has no half-batches and sends nothing, so K begins just above 1.
        return _crossing(
            lambda workers: self.calculation_seconds(max(workers, math.nextafter(1, 2))),
            self.communication_seconds,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompressedDataParallelism:
    """Data parallelism with compressed gradients ("1-Bit SGD ...", Eq. 3 and 4, section 2.3).

    With double buffering by half-batches, half a minibatch takes the longer of

        T_calc(K) = N / 2 / K * T_frm + C * T_post / K + T_upd
        T_comm    = T_float / Z

    Both are equal at the optimal number of nodes (Eq. 4):

        K = (N / 2 * T_frm + C * T_post) / (T_float / Z - T_upd)

    If T_comm is below T_upd, there is no optimum: the fixed cost limits the speed-up. Without
    double buffering a minibatch takes

        N / K * T_frm + C * T_post / K + T_upd + T_float / Z

    This is less if the second T_upd costs more time than double buffering hides.

    Args:
        minibatch_size: N, number of samples.
        sample_seconds: T_frm, function of the number of samples that a node computes at once.
        post_seconds: C * T_post, time of the owners' work on all gradients.
        update_seconds: T_upd, time of every node's work on the whole model.
        exchange_seconds: T_float, time to exchange gradients in full precision.
        compression: Z, which is 32 for one bit in place of 32.
        double_buffering: whether communication overlaps with computation.

    Raises:
        ValueError: if a number is not positive, or a time is negative.

    Example:
        >>> sgd = CompressedDataParallelism(
        ...     minibatch_size=16384, sample_seconds=lambda _: 118e-6, post_seconds=9.2e-3,
        ...     update_seconds=9e-3, exchange_seconds=1.0, compression=32)
        >>> round(sgd.optimal_workers(), 1)
        43.9
    """

    minibatch_size: float
    sample_seconds: _Function
    post_seconds: float
    update_seconds: float
    exchange_seconds: float
    compression: float = 1.0
    double_buffering: bool = True

    def __post_init__(self) -> None:
        for name in ("minibatch_size", "compression", "exchange_seconds"):
            require_positive(name, getattr(self, name))
        for name in ("post_seconds", "update_seconds"):
            require_at_least_0(self, name, "a time")

    @property
    def _parts(self) -> int:
        return 2 if self.double_buffering else 1

    def calculation_seconds(self, workers: float) -> float:
        """Returns T_calc(K) of a minibatch, or, with double buffering, of half a minibatch."""
        require_workers(workers, whole=False)
        samples = self.minibatch_size / self._parts / workers
        sample_seconds = self.sample_seconds(samples)
        require_positive(f"sample_seconds({samples:g})", sample_seconds)
        variable = samples * sample_seconds + self.post_seconds / workers
        return variable + self.update_seconds

    def communication_seconds(self, workers: float) -> float:
        """Returns T_comm for the samples of `calculation_seconds`, the same for all K > 1."""
        return self.exchange_seconds / self.compression if workers > 1 else 0.0

    def step_seconds(self, workers: float) -> float:
        """Returns the time of a minibatch."""
        if workers == 1:  # nothing to send, nothing to hide
            whole = dataclasses.replace(self, double_buffering=False)
            return whole.calculation_seconds(1)
        calculation = self.calculation_seconds(workers)
        communication = self.communication_seconds(workers)
        if self.double_buffering:
            return 2 * max(calculation, communication)
        return calculation + communication

    def samples_per_second(self, workers: float) -> float:
        """Returns the training speed."""
        return self.minibatch_size / self.step_seconds(workers)

    def speed_up(self, workers: float) -> float:
        """Returns how much faster `workers` nodes are than one."""
        return self.step_seconds(1) / self.step_seconds(workers)

    def optimal_workers(self) -> float:
        """Returns K of Eq. 4: float, at least 1; infinite if T_comm is below the fixed cost."""
        halves = dataclasses.replace(self, double_buffering=True)
        return _crossing(
            halves.calculation_seconds, lambda _: self.exchange_seconds / self.compression
        )


def _crossing(falling: _Function, other: _Function) -> float:
    """Returns where a faster falling function meets another: at least 1, infinite if nowhere."""
    low, high = 1.0, 2.0
    if falling(low) <= other(low):
        return low
    while falling(high) > other(high):
        low, high = high, 2 * high
        if high > _MOST_WORKERS:
            return math.inf
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > other(middle) else (low, middle)
    return high
