"""Keras optimizers with moments whose number of steps can be moved.

The moments of Adam and its variants are exponential moving averages that start at zero. After k
steps they are divided by `1 - beta^k` to correct this bias. In Keras k is `iterations`, which
learning rate schedules use as well. Block momentum (Chen et al. 2020, Algorithm 1) moves a model
and its moments as if more steps had been made. Their number is no integer: `k <- k + eta rho_n`.
So the optimizers of this module count

    k = iterations + moment_steps_ahead

`moment_steps_ahead` is a variable of the optimizer, saved and restored with the others. Schedules,
callbacks, moving averages of weights and gradient accumulation use `iterations`, as in Keras. Until
k is moved, the Keras optimizer of the same name gives the same weights, to the last bit.
"""

import contextlib
import contextvars
import math
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf
from keras import ops

# A number, a schedule, or a function without arguments, as for all optimizers of Keras.
LearningRate: typing.TypeAlias = (
    float | keras.optimizers.schedules.LearningRateSchedule | Callable[[], float]
)

if typing.TYPE_CHECKING:
    from keras.optimizers import Optimizer as _MixedInto
else:
    _MixedInto = object

# Keras' update rules read `iterations`; a strategy runs them in several threads.
_updating = contextvars.ContextVar("updating", default=False)


@contextlib.contextmanager
def _iterations_are_moment_steps() -> Iterator[None]:
    token = _updating.set(True)
    try:
        yield
    finally:
        _updating.reset(token)


class Moment(typing.NamedTuple):
    """Exponential moving averages, one per trainable weight that gets gradients.

    Attributes:
        variables: list of `keras.Variable`.
        decay: float: the share of the past in the average, per step; a beta.
        of_squares: bool: whether the average is of squares, and therefore never negative.
    """

    variables: list[keras.Variable]
    decay: float
    of_squares: bool


class _MomentSteps(_MixedInto):
    """A mixin that counts steps of the moments separately from `iterations`.

    It is for classes of Keras optimizers with `_momentums` and `_velocities`.
    """

    passes_update_step_on = True  # see `update_rule_of`

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._moment_steps_ahead = self.add_variable(
            (),
            # Beyond 2^23 steps float32 cannot count fractions of a step.
            dtype="float64",
            aggregation="only_first_replica",
            name="moment_steps_ahead",
        )

    @property
    def iterations(self) -> keras.Variable | tf.Tensor:
        return self.steps_of_moments() if _updating.get() else super().iterations

    def update_step(
        self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor
    ) -> None:
        with _iterations_are_moment_steps():
            super().update_step(gradient, variable, learning_rate)

    def steps_of_moments(self) -> tf.Tensor:
        """Returns k as float64 tensor. An integral k casts to other types as the integer does."""
        return ops.cast(super().iterations, "float64") + self._moment_steps_ahead

    @property
    def moments(self) -> list[Moment]:
        """List of `Moment`: the averages of gradients, and the averages of their squares."""
        self._require_state("has moments")
        return [
            Moment(_present(self._momentums), float(self.beta_1), of_squares=False),
            Moment(_present(self._velocities), float(self.beta_2), of_squares=True),
        ]

    @property
    def moment_steps(self) -> float:
        """Number of steps in the moments' bias correction, k: float.

        It can be set, which changes only k. Set it after moments and `iterations` were assigned,
        for example as means over workers with different numbers of steps. Nadam's product depends
        on k, too, and is a variable. Average it with the moments: the mean of the workers' products
        fits the mean of their moments. The product at the mean k does not.
        """
        self._require_state("counts steps")
        return float(self.steps_of_moments().numpy())

    @moment_steps.setter
    def moment_steps(self, steps: float) -> None:
        self._require_state("counts steps")
        steps = _number_of_steps("moment_steps", steps)
        self._moment_steps_ahead.assign(steps - float(super().iterations.numpy()))

    def advance_moments(self, steps: float) -> None:
        """Counts steps that the moments have been moved by: `k <- k + steps`.

        The caller moves the moments. Call this between steps, outside of `tf.function`.

        Args:
            steps: float, not negative. With BMUF-Adam `eta rho_n` (Chen et al. 2020, Algorithm 1).

        Raises:
            ValueError: for other steps, and before the optimizer has been built.
        """
        self._require_state("counts steps")
        self._moment_steps_ahead.assign_add(_number_of_steps("steps", steps))

    def reset_moments(self) -> None:
        """Sets k and all moments to zero. `iterations` and weights stay."""
        maxima = _present(getattr(self, "_velocity_hats", []))  # AMSGrad's maxima of second moments
        for variable in sum((moment.variables for moment in self.moments), maxima):
            variable.assign(ops.zeros_like(variable))
        self.moment_steps = 0.0

    def _require_state(self, what: str) -> None:
        if not self.built:
            raise ValueError(
                f"The optimizer {self.name!r} {what} only once it has been built. "
                "Call optimizer.build(model.trainable_variables) first."
            )
        if not tf.executing_eagerly():
            raise ValueError(
                f"The moments of the optimizer {self.name!r} cannot be read within a tf.function. "
                "Read them between steps, for example in a callback."
            )


def _present(variables: Iterable[keras.Variable | None]) -> list[keras.Variable]:
    # Keras has None for weights whose gradients overwrite them.
    return [variable for variable in variables if variable is not None]


def _number_of_steps(name: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"{name} must be a number of steps, at least 0. Received: {name}={value!r}. To start "
            "from zero moments, call reset_moments()."
        )
    return float(value)


@keras.saving.register_keras_serializable(package="tf_onebit")
class Adam(_MomentSteps, keras.optimizers.Adam):
    """`keras.optimizers.Adam` with its own count of steps for the bias correction.

    Equation (Kingma and Ba 2015, as in Keras; k as in Chen et al. 2020, Algorithm 1)::

        m <- beta_1 m + (1 - beta_1) g          v <- beta_2 v + (1 - beta_2) g^2
        theta <- theta - learning_rate sqrt(1 - beta_2^(k+1)) / (1 - beta_1^(k+1)) m
                         / (sqrt(v) + epsilon)

    `k = iterations` until `advance_moments`, `moment_steps` or `reset_moments` change it.

    Args:
        **kwargs: see `keras.optimizers.Adam`.

    Attributes:
        moments: list of `Moment`: m and v of all weights.
        moment_steps: float k.

    Example:
        >>> optimizer = Adam(0.1)
        >>> weight = keras.Variable([1.0])
        >>> optimizer.apply([tf.constant([2.0])], [weight])
        >>> optimizer.advance_moments(2.5)
        >>> optimizer.moment_steps, int(optimizer.iterations)
        (3.5, 1)
        >>> [(moment.decay, moment.of_squares) for moment in optimizer.moments]
        [(0.9, False), (0.999, True)]
    """


@keras.saving.register_keras_serializable(package="tf_onebit")
class AdamW(_MomentSteps, keras.optimizers.AdamW):
    """`keras.optimizers.AdamW` with its own count of steps for the bias correction.

    Each step computes `theta <- theta - learning_rate weight_decay theta` (Loshchilov and Hutter
    2019), which does not depend on k. Then it updates the model like `Adam`.

    Args:
        **kwargs: see `keras.optimizers.AdamW`.

    Attributes:
        moments: list of `Moment`: m and v of all weights.
        moment_steps: float k.

    Example:
        >>> optimizer = AdamW(0.1, weight_decay=0.01)
        >>> optimizer.build([keras.Variable([1.0])])
        >>> optimizer.moment_steps = 12.5
        >>> optimizer.reset_moments()
        >>> optimizer.moment_steps
        0.0
    """


@keras.saving.register_keras_serializable(package="tf_onebit")
class Nadam(_MomentSteps, keras.optimizers.Nadam):
    """`keras.optimizers.Nadam` with its own count of steps for the bias correction.

    Equation (Dozat 2015, as in Keras; k as in Chen et al. 2020, Algorithm 1)::

        u(j) = beta_1 (1 - 0.5 * 0.96^j)        U <- U u(k+1)
        m <- beta_1 m + (1 - beta_1) g          v <- beta_2 v + (1 - beta_2) g^2
        m_hat = u(k+2) m / (1 - U u(k+2)) + (1 - u(k+1)) g / (1 - U)
        theta <- theta - learning_rate m_hat / (sqrt(v / (1 - beta_2^(k+1))) + epsilon)

    The product U over all steps is a variable. `advance_moments(s)` multiplies it by the factors of
    s steps. If s is no integer, the last factor has a fractional exponent::

        U <- U u(k+1) ... u(k+n) u(k+n+1)^(s-n)         n = floor(s)

    `reset_moments` sets U to 1. Setting `moment_steps` does not change it.

    Args:
        **kwargs: see `keras.optimizers.Nadam`.

    Attributes:
        moments: list of `Moment`: m and v of all weights.
        moment_steps: float k.

    Example:
        >>> optimizer = Nadam(0.1)
        >>> optimizer.build([keras.Variable([1.0])])
        >>> optimizer.advance_moments(0.5)
        >>> optimizer.moment_steps
        0.5
    """

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        # Within a LossScaleOptimizer Keras does not track the product, and would not save it.
        if not any(variable is self._u_product for variable in self.variables):
            self._track_variable(self._u_product)

    def _backend_update_step(
        self,
        grads: Sequence[tf.Tensor],
        trainable_variables: Sequence[keras.Variable],
        learning_rate: tf.Tensor,
    ) -> None:
        # Keras' method multiplies the product of momenta by this step's factor.
        with _iterations_are_moment_steps():
            super()._backend_update_step(grads, trainable_variables, learning_rate)

    def advance_moments(self, steps: float) -> None:
        before = self.moment_steps
        super().advance_moments(steps)
        whole = math.floor(steps)
        momenta = self.beta_1 * (1.0 - 0.5 * 0.96 ** (before + np.arange(1, whole + 2)))
        exponents = np.append(np.ones(whole), steps - whole)
        product = float(self._u_product.numpy()) * np.prod(momenta**exponents)
        self._u_product.assign(product)

    def reset_moments(self) -> None:
        super().reset_moments()
        self._u_product.assign(1.0)


@keras.saving.register_keras_serializable(package="tf_onebit")
class RectifiedAdam(_MomentSteps, keras.optimizers.Optimizer):
    """Rectified Adam (RAdam), which adapts its steps only once second moments are reliable.

    Equation (Liu et al. 2020, arXiv:1908.03265, Algorithm 2), with t = k + 1::

        m <- beta_1 m + (1 - beta_1) g          m_hat = m / (1 - beta_1^t)
        v <- beta_2 v + (1 - beta_2) g^2        v_hat = v / (1 - beta_2^t)
        rho_inf = 2 / (1 - beta_2) - 1
        rho = rho_inf - 2 t beta_2^t / (1 - beta_2^t)
        r = sqrt((rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho))
        theta <- theta - learning_rate r m_hat / (sqrt(v_hat) + epsilon)    if rho > 4
        theta <- theta - learning_rate m_hat                                otherwise

    With beta_2 = 0.999 the first four steps are of the second kind, and as large as the steps of
    SGD with momentum. The paper has no epsilon; it stands where Keras' optimizers have it. k is
    counted as in `Adam`.

    Args:
        learning_rate: float, schedule or function without arguments.
        beta_1: float: decay of the averages of gradients.
        beta_2: float: decay of the averages of their squares.
        epsilon: float, for gradients that are zero.
        **kwargs: see `keras.optimizers.Optimizer`.

    Attributes:
        moments: list of `Moment`: m and v of all weights.
        moment_steps: float k.

    Example:
        >>> optimizer = RectifiedAdam(0.25)
        >>> weight = keras.Variable([1.0])
        >>> optimizer.apply([tf.constant([2.0])], [weight])
        >>> float(weight[0])
        0.5
    """

    adds_updates = True  # see `moments_of` in _training/local_updates.py

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )

    def update_step(
        self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor
    ) -> None:
        step_size, second_correction, adapts = self._corrections(learning_rate)
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(m, ops.multiply(ops.subtract(gradient, m), 1 - self.beta_1))
        self.assign_add(v, ops.multiply(ops.subtract(ops.square(gradient), v), 1 - self.beta_2))
        v_hat = ops.divide(v, ops.cast(second_correction, variable.dtype))
        denominator = ops.where(adapts, ops.add(ops.sqrt(v_hat), self.epsilon), 1.0)
        step = ops.multiply(m, ops.cast(step_size, variable.dtype))
        self.assign_sub(variable, ops.divide(step, denominator))

    def _corrections(self, learning_rate: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Computes the factor of m, the divisor of v, and whether v is used: scalar tensors."""
        # rho is a difference of large numbers, so it is float64. (`ops.cast` makes floats float32.)
        t = self.steps_of_moments() + 1
        second_power = self.beta_2**t
        second_correction = 1 - second_power
        rho_inf = 2 / (1 - self.beta_2) - 1
        rho = rho_inf - 2 * t * second_power / second_correction
        adapts = rho > 4
        squared = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
        rectification = ops.where(adapts, ops.sqrt(squared), 1.0)
        first_correction = 1 - self.beta_1**t
        step_size = ops.cast(learning_rate, "float64") * rectification / first_correction
        return step_size, second_correction, adapts

    def get_config(self) -> dict[str, typing.Any]:
        moments = {"beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}
        return {**super().get_config(), **moments}
