"""NormalizedAdaGrad: gradients in units of their own standard deviation."""

import collections
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_onebit import ops
from tf_onebit._layout import Layout
from tf_onebit._validation import number_of_samples, time_constant_in_samples
from tf_onebit.collectives.requests import AllReduce, Exchanging
from tf_onebit.transforms.base import Transform


class NormalizedAdaGrad(Transform):
    """AdaGrad that forgets, and keeps the overall size of gradients (Seide et al. 2014).

    Equation ("On parallelizability of stochastic gradient descent for speech DNNs", section 4), for
    the gradient g of weight (i, j) of a matrix::

        g' = g / (sigma / mean(sigma))          sigma^2 = h * g^2

    The mean is over the whole matrix. h is a first-order low-pass filter of unit gain, with a time
    constant in samples. For a step of n samples, of which g is the sum or the mean::

        sigma^2 <- sigma^2 + a (g^2 - sigma^2)
        a = (1 - exp(-n / time_constant)) / (1 - exp(-s / time_constant))

    where s is the number of samples up to the end of the step. So the average counts only squares
    that have occurred, and after the first step sigma is `|g|`. Each tensor of the list of
    gradients counts as a matrix, also a bias.

    A change of the batch size does not rescale the average, though smaller batches have gradients
    with larger variance.

    Args:
        time_constant: number of samples. In the paper two hours of speech, 720000 frames.
        global_batch_size: number of samples that all workers together take per step;
            `set_global_batch_size` changes it.
        epsilon: lower bound of the divisor `sigma / mean(sigma)`, for weights with almost no
            gradient. A matrix without gradients keeps its zeros.

    Raises:
        ValueError: if a number is not positive.

    Example:
        >>> from tf_onebit import OneBit
        >>> adagrad = NormalizedAdaGrad(time_constant=720_000, global_batch_size=1024)
        >>> OneBit(transforms=[adagrad]).get_config()["transforms"][0]["config"]["time_constant"]
        720000.0
    """

    def __init__(self, time_constant: float, global_batch_size: int, epsilon: float = 1e-3) -> None:
        super().__init__()
        self.time_constant = time_constant_in_samples(time_constant)
        self.global_batch_size = number_of_samples("global_batch_size", global_batch_size)
        if not 0 < epsilon < math.inf:
            raise ValueError(
                "epsilon must be positive. It is the smallest divisor of gradients, in units of "
                f"the mean standard deviation. Received: epsilon={epsilon!r}."
            )
        self.epsilon = float(epsilon)

    def get_config(self) -> dict[str, Any]:
        return {
            "time_constant": self.time_constant,
            "global_batch_size": self.global_batch_size,
            "epsilon": self.epsilon,
        }

    def build(self, layout: Layout, rank: int, scope: str) -> None:
        self._scope = scope
        self._others = layout.world_size - 1
        self._sizes = layout.sizes
        self._runs = layout.shard_runs(rank), layout.plain_runs
        shards = [tensor for k in range(layout.world_size) for tensor, _ in layout.shard_runs(k)]
        # Matrices that are spread over several shards, in the order of the list.
        self._straddling = sorted(t for t, n in collections.Counter(shards).items() if n > 1)
        self._averages = [
            tf.Variable(tf.zeros([size]), trainable=False)
            for size in (layout.shard_sizes[rank], layout.plain_size)
        ]
        # Samples in one step, and in all steps so far.
        self._samples_per_step, self._samples = (
            tf.Variable(samples, dtype=tf.int64, trainable=False)
            for samples in (self.global_batch_size, 0)
        )

    @property
    def sharded(self) -> Sequence[tf.Variable]:  # type: ignore[override]  # others may assign it
        return self._averages[:1]

    def transform(
        self, aggregate: tf.Tensor, plain: tf.Tensor
    ) -> Exchanging[tuple[tf.Tensor, tf.Tensor]]:
        share = self._next_share()
        sizes = [[size for _, size in runs] for runs in self._runs]
        totals: dict[int, tf.Tensor] = {}
        parts = list(zip((aggregate, plain), self._averages, sizes, self._runs, strict=True))
        for gradient, average, run_sizes, runs in parts:
            sums = ops.adagrad_accumulate(gradient, average, share, run_sizes)
            totals |= {t: sums[i] for i, (t, _) in enumerate(runs)}
        if self._straddling:
            zero = tf.zeros([], tf.float64)
            mine = tf.stack([totals.get(t, zero) for t in self._straddling])
            (sums,) = yield AllReduce([mine], f"{self._scope}/deviations")
            totals |= dict(zip(self._straddling, tf.unstack(sums), strict=True))
        return tuple(
            ops.adagrad_normalize(
                gradient,
                average,
                tf.stack([totals[t] / self._sizes[t] for t, _ in runs]) if runs else [],
                run_sizes,
                self.epsilon,
            )
            for gradient, average, run_sizes, runs in parts
        )

    def _next_share(self) -> tf.Tensor:
        """Returns the weight of this step's squares in the average: float64 scalar."""
        samples = self._samples_per_step, self._samples.assign_add(self._samples_per_step)
        per_step, up_to_now = (
            tf.math.expm1(-tf.cast(number, tf.float64) / self.time_constant) for number in samples
        )
        return per_step / up_to_now

    def set_global_batch_size(self, samples: int) -> None:
        self._samples_per_step.assign(samples)

    def bytes_sent(self) -> int:
        return 2 * self._others * tf.float64.size * len(self._straddling) // (1 + self._others)
