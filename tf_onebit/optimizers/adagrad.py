"""Normalized AdaGrad as a Keras optimizer."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tf_onebit._validation import number_of_samples, time_constant_in_samples
from tf_onebit.optimizers.moments import LearningRate


@keras.saving.register_keras_serializable(package="tf_onebit")
class NormalizedAdaGrad(keras.optimizers.Optimizer):
    """SGD, with or without momentum, on gradients normalized by their own standard deviation.

    Equation (Seide et al. 2014, "On parallelizability of stochastic gradient descent for speech
    DNNs", section 4), with n samples in a step and s samples up to its end::

        sigma^2 <- sigma^2 + a (g^2 - sigma^2)
        a = (1 - exp(-n / time_constant)) / (1 - exp(-s / time_constant))
        g' = g / max(sigma / mean(sigma), epsilon)

    sigma^2 is the average of all squared gradients so far, with weights that decay. The weights sum
    to 1 from the first step on. The mean of sigma is over the whole tensor, so that the gradient
    keeps its scale and the learning rate its meaning. With momentum::

        adagrad_on="gradient":   velocity <- momentum * velocity + g'
                                 theta <- theta - learning_rate velocity
        adagrad_on="momentum":   velocity <- momentum * velocity + g
                                 theta <- theta - learning_rate velocity'

    velocity' results from velocity as g' from g. Nesterov's momentum uses
    (g or g') + momentum * velocity instead of the velocity.

    Gradients are exchanged first, so all workers have the same state, unless the exchange has
    `moments="local"`.
    `tf_onebit.transforms.NormalizedAdaGrad` can normalize each worker's own gradients, or normalize
    1 / world_size of the model per worker. `tf.IndexedSlices` are made dense, because the averages
    of rows without gradients decay, too. Averages are at least float32 for every type of variables.

    Attributes:
        global_batch_size: int, the current one: given, set or restored.

    Args:
        learning_rate: float, schedule or function without arguments.
        time_constant: in samples. In the paper two hours of speech, 720000 frames.
        global_batch_size: number of samples of an update, over all workers.
        momentum: float, at least 0 and less than 1.
        nesterov: bool.
        adagrad_on: "gradient" or "momentum".
        epsilon: float, positive: the least divisor of gradients.
        **kwargs: see `keras.optimizers.Optimizer`.

    Raises:
        ValueError: for other values.

    Example:
        >>> optimizer = NormalizedAdaGrad(0.5, time_constant=720_000, global_batch_size=1024)
        >>> weight = keras.Variable([1.0, 1.0])
        >>> optimizer.apply([tf.constant([3.0, -1.0])], [weight])
        >>> weight.numpy().tolist()  # both divided by their size, times the mean size
        [0.0, 2.0]
        >>> optimizer.set_global_batch_size(4096)
    """

    adds_updates = True  # see `moments_of` in _training/local_updates.py

    def __init__(
        self,
        learning_rate: LearningRate,
        time_constant: float,
        global_batch_size: int,
        momentum: float = 0.0,
        nesterov: bool = False,
        adagrad_on: str = "gradient",
        epsilon: float = 1e-3,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        if adagrad_on not in ("gradient", "momentum"):
            raise ValueError(
                f'adagrad_on must be "gradient" or "momentum". Received: adagrad_on={adagrad_on!r}.'
            )
        if not 0 <= momentum < 1:
            raise ValueError(
                f"momentum must be at least 0 and less than 1. Received: momentum={momentum!r}."
            )
        if not 0 < epsilon < math.inf:
            raise ValueError(
                "epsilon must be positive. It is the smallest divisor of gradients, in units of "
                f"the mean standard deviation. Received: epsilon={epsilon!r}."
            )
        self.time_constant = time_constant_in_samples(time_constant)
        self._initial_batch_size = number_of_samples("global_batch_size", global_batch_size)
        self.momentum = float(momentum)
        self.nesterov = bool(nesterov)
        self.adagrad_on = adagrad_on
        self.epsilon = float(epsilon)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._averages = [self._add_average(variable) for variable in variables]
        self._velocities = []
        if self.momentum:
            self._velocities = self.add_optimizer_variables(variables, "velocity")
        # Numbers of samples: of a step, and of all steps.
        self._samples_per_step, self._samples = (
            self.add_variable(
                (),
                initializer=keras.initializers.Constant(value),
                dtype="int64",
                aggregation="only_first_replica",
                name=name,
            )
            for name, value in (("samples_per_step", self._initial_batch_size), ("samples", 0))
        )

    def _add_average(self, variable: keras.Variable) -> keras.Variable:
        # Like Keras' add_variable_from_reference, but at least float32. In bfloat16 an average
        # would lose changes below half of its last digit.
        value, path = variable, variable.name
        if isinstance(variable, keras.Variable):
            value, path = variable.value, variable.path
        with self._distribution_strategy.extended.colocate_vars_with(value):
            return self.add_variable(
                variable.shape,
                dtype=keras.backend.result_type(variable.dtype, "float32"),
                name=f"{path.replace('/', '_').replace(':', '_')}_average",
            )

    @property
    def global_batch_size(self) -> int:
        return int(self._samples_per_step.numpy()) if self.built else self._initial_batch_size

    def set_global_batch_size(self, samples: int) -> None:
        """Sets the number of samples of an update, from the next update on.

        May be called between steps, or before the first. Nothing is traced again.

        Args:
            samples: number of samples of an update, over all workers.

        Raises:
            ValueError: if it is not a positive whole number.
        """
        samples = number_of_samples("global_batch_size", samples)
        if self.built:
            self._samples_per_step.assign(samples)
        else:
            self._initial_batch_size = samples

    @property
    def velocities(self) -> list[keras.Variable]:
        """List of variables of gradients that later steps will multiply by their learning rate."""
        return list(self._velocities) if self.built else []

    def _backend_update_step(
        self,
        grads: Sequence[tf.Tensor],
        trainable_variables: Sequence[keras.Variable],
        learning_rate: tf.Tensor,
    ) -> None:
        self._samples.assign_add(ops.convert_to_tensor(self._samples_per_step))
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def update_step(
        self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor
    ) -> None:
        index = self._get_variable_index(variable)
        gradient = ops.cast(tf.convert_to_tensor(gradient), variable.dtype)
        if self.adagrad_on == "gradient":
            gradient = self._normalized(gradient, self._averages[index])
        if self.momentum:
            gradient = self._moved(gradient, self._velocities[index])
        if self.adagrad_on == "momentum":
            gradient = self._normalized(gradient, self._averages[index])
        self.assign_sub(variable, gradient * ops.cast(learning_rate, variable.dtype))

    def _moved(self, gradient: tf.Tensor, velocity: keras.Variable) -> tf.Tensor:
        momentum = ops.cast(self.momentum, gradient.dtype)
        moved = momentum * velocity + gradient
        self.assign(velocity, moved)
        return momentum * moved + gradient if self.nesterov else moved

    def _normalized(self, given: tf.Tensor, average: keras.Variable) -> tf.Tensor:
        gradient = ops.cast(given, average.dtype)
        followed = average + ops.cast(self._share(), gradient.dtype) * (
            ops.square(gradient) - average
        )
        # The average excludes gradients that are not finite, or whose squares are not.
        followed = ops.where(ops.isfinite(followed), followed, average)
        self.assign(average, followed)
        deviation = ops.sqrt(followed)
        # The mean is by rows, and then in float64: one sum over all would depend on the number of
        # threads, which may differ between workers.
        rows = ops.mean(deviation, axis=-1) if deviation.shape.rank else deviation
        mean = ops.cast(ops.mean(ops.cast(rows, "float64")), gradient.dtype)
        relative = ops.maximum(deviation / ops.where(mean > 0, mean, 1), self.epsilon)
        return ops.cast(ops.where(mean > 0, gradient / relative, gradient), given.dtype)

    def _share(self) -> tf.Tensor:
        """Computes the weight of this step's squares in the average: float64 tensor."""
        per_step, up_to_now = (
            ops.expm1(-ops.cast(samples, "float64") / self.time_constant)
            for samples in (self._samples_per_step, self._samples)
        )
        return per_step / up_to_now

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "time_constant": self.time_constant,
            "global_batch_size": self.global_batch_size,
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "adagrad_on": self.adagrad_on,
            "epsilon": self.epsilon,
        }
