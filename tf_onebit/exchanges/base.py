"""The base class of exchanges: how the gradients of all workers become their sum."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from tf_onebit._configurable import Configurable
from tf_onebit.collectives.requests import Exchanging
from tf_onebit.exchanges import tracing
from tf_onebit.exchanges.arguments import (
    Moments,
    require_bucket_bytes,
    require_gradients_and_rank,
    require_patterns,
)
from tf_onebit.exchanges.deprecated_names import DeprecatedNames
from tf_onebit.exchanges.gradients import Gradient, GradientSpec
from tf_onebit.exchanges.residuals import sum_of_squares
from tf_onebit.exchanges.stages import Delivered
from tf_onebit.exchanges.state import State
from tf_onebit.exchanges.velocities import Velocities

FLOAT_BYTES = 4

# Type of the 32-bit words of messages during a collective. TensorFlow keeps the int32 tensors of a
# GPU in host memory, and floats on the GPU. So words travel as floats with the same bits. No
# arithmetic is done with them.
WIRE_DTYPE = tf.float32


class Exchange(DeprecatedNames, Configurable, tf.Module):
    """An algorithm that turns the gradients of each worker into their sum over all workers.

    A user's exchange is a template that holds hyper-parameters. Clones of it run, one per bucket
    of gradients. Each clone is built once, and keeps its state (residuals, counters) in variables.

    A subclass defines `get_config`, `create_state`, `encode`, `deliver` and `bytes_sent`. It also
    defines `residuals` if it keeps variables, and `aggregate` if it exchanges messages in two
    stages. docs/your_own_exchange.md shows a whole one. An exchange does not decide when its
    stages run: `WarmStart` and `Delayed` work with every exchange.

    **Moments.** Optimizers with momentum, and optimizers such as Adam, keep moments: averages of
    gradients, or of their squares. With `moments="after"`, workers exchange gradients, and all have
    the moments of the exchanged ones. With `moments="local"`, worker k of K keeps moments of its
    own gradients, and workers exchange the updates u_k of the weights w. `OneBit` and `Threshold`
    do so by default, except with transforms, with a fixed tau, for a `tf.GradientTape` and in
    `BlockMomentum`. For example Adam in step t::

        d_k = g_k - m_k / (1 - beta_1^(t-1))
        v_k <- beta_2 v_k + (1 - beta_2) (g_k^2 - n d_k^2)
        m_k <- beta_1 m_k + (1 - beta_1) g_k
        u_k = -learning_rate m_k / (1 - beta_1^t) / (sqrt(v_k / (1 - beta_2^t)) + epsilon)
        w   <- w + (u_1 + ... + u_K) / K

        n = (1 - 1/K) (1 + beta_1) / 2 * (1 - beta_1^(t-1)) / (1 - beta_1^t)

    The sum is what the exchange makes of it. Weight decay is not a part of u. For momentum this is
    the momentum correction of Lin et al. (2018, "Deep Gradient Compression", section 3.2), and for
    Adam with two quantizations Efficient-Adam (Chen et al. 2022). Compression then disturbs
    updates, but no moments.

    The term n d_k^2 is not in these papers. Squares of a worker's gradients contain the noise of a
    small minibatch, which is K times that of all workers together. Its trace is d_k, the
    deviation from earlier gradients. So v_k follows the squares of the mean of all workers'
    gradients, as in full precision. It stays above `m_k^2 (1 - beta_2) (1 - beta_1^2 / beta_2) /
    (1 - beta_1)^2`, the least that n = 0 allows. Adam and AdamW do so in float32, unless they have
    `amsgrad`, or `beta_1^2 >= beta_2`. Other optimizers square each worker's gradients.

    In a `WarmStart`, workers exchange gradients, and all make the same update of their mean, as in
    full precision. So moments are those of all workers when compression begins. From then on no
    warm start begins again, also not for other variables, or after a restart with a longer one.

    Local moments have a price:

    - In full precision, momentum gives the same updates either way. Adam's are only much alike.
      So "local" is not better for every model. Compare both.
    - After a warm start, clipping acts on the gradients of each worker.
    - Residuals have the learning rate of the step in which they arose.
    - `tf.IndexedSlices` are exchanged themselves, and exactly, so that their moments are those of
      exchanged gradients.
    - The optimizer's state differs between workers. A saved model has that of worker 0, and so
      have all workers after a broadcast of variables. `tf_onebit.callbacks.BackupAndRestore` keeps
      the state of each worker. Other numbers of workers go on with the mean of their moments.

    "local" works with all optimizers of Keras and of this package, except with Ftrl and
    ScheduleFreeAdamW. With these, and with an optimizer that has an `update_step` of its own,
    workers exchange gradients, and get a warning. To use "local", write `adds_updates = True` in
    the body of its class. It says that `update_step` changes the variable only once, by
    `self.assign_add` or `self.assign_sub`, and does not read it after that.

    Args:
        bucket_bytes: size of a bucket of gradients, before compression. A bucket travels while
            the backward pass computes the gradients of the next.
        exclude: list of regular expressions. A gradient travels in full precision if one of them
            is found in the name of its variable.

    Attributes:
        dtypes: names of the gradient types that it takes. Gradients of other types are exchanged
            in full precision.
        takes_sparse: whether it takes `tf.IndexedSlices`. If not, these are gathered exactly.
        carries_flags: whether its messages say that a gradient was not finite. Otherwise a flag is
            sent beside them, which costs a small all-gather per bucket.
        compresses: whether its messages are shorter than those in full precision.
        can_be_delayed: whether a later step can deliver its messages.
        trains_apart: whether workers keep their own gradients.
        moments: "local" or "after", see above. Without moments, as in plain SGD, both are the same.
            None is "local" where that is possible, and otherwise "after".
        advised_warm_up: number of steps in full precision that a plan advises before it.
        velocities: `Velocities` of this worker's optimizer, or None. An exchange that lets values
            wait clears them where it sends.
        built: whether `build` has been called, which sets `specs`, `rank`, `world_size`, `scope`
            and `unit` to its arguments.

    Raises:
        ValueError: if `bucket_bytes` is not positive, or `exclude` is not a list of regular
            expressions.
    """

    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    takes_sparse = False
    carries_flags = False
    compresses = True
    can_be_delayed = True
    trains_apart = False
    moments: Moments | None = "after"
    advised_warm_up = 0
    velocities: Velocities | None = None
    built = False
    specs: tuple[GradientSpec, ...]
    rank: int
    world_size: int
    scope: str
    unit: float

    def __init__(self, bucket_bytes: int = 32 * 2**20, exclude: Iterable[str] = ()) -> None:
        super().__init__()
        require_bucket_bytes(bucket_bytes)
        require_patterns(exclude)
        self.bucket_bytes = bucket_bytes
        self.exclude = tuple(exclude)

    def build(
        self,
        specs: Sequence[GradientSpec],
        rank: int,
        world_size: int,
        scope: str,
        unit: float = 1.0,
    ) -> None:
        """Creates the state for a list of gradients.

        Args:
            specs: list of `GradientSpec`.
            rank: rank of this worker, from 0 to `world_size - 1`.
            world_size: number of workers.
            scope: prefix of the names of this exchange's collectives; unique in a job.
            unit: scale of the given gradients: the value that stands for 1 in the gradient of a
                worker's mean loss. It is less than 1 if the loss was divided by the number of
                workers before the backward pass.

        Raises:
            ValueError: if there are no gradients or no workers, or `rank` is out of range.
        """
        require_gradients_and_rank(specs, rank, world_size)
        self.specs = tuple(specs)
        self.rank = rank
        self.world_size = world_size
        self.scope = scope
        self.unit = unit
        with tf.init_scope():
            self.create_state()
        self.built = True
        self.residuals()  # an exchange that must define it raises now, and not during a backup

    def create_state(self) -> None:
        """Creates the variables. `build` calls it once, outside of any graph."""

    def encode(self, gradients: Sequence[Gradient]) -> Sequence[tf.Tensor]:
        """Returns the message of this worker. This first stage does not communicate.

        Args:
            gradients: list of tensors, as in `specs`. Sums or means over the local minibatch.

        Returns:
            List of tensors.
        """
        raise NotImplementedError(f"{type(self).__name__} must define encode.")

    def aggregate(self, message: Sequence[tf.Tensor]) -> Exchanging[Sequence[tf.Tensor]]:
        """Generator: combines the messages of all workers, if that takes a stage of its own.

        Args:
            message: list of tensors that `encode` returned.

        Returns:
            List of tensors, for `deliver`. By default the unchanged message.
        """
        yield from ()  # makes this a generator; it requests nothing
        return message

    def deliver(
        self, message: Sequence[tf.Tensor], like: Sequence[Gradient], scale: float
    ) -> Exchanging[Delivered]:
        """Generator: returns the exchanged gradients. This is the last stage.

        Args:
            message: list of tensors that `aggregate` returned, in this step or an earlier one.
            like: list of tensors with the gradients' shapes and dtypes. Their memory may be
                reused for the result.
            scale: factor on the sum: `1 / world_size` for the mean over the workers.

        Returns:
            List of tensors with the shapes and dtypes of `like`, the same on all workers. If the
            exchange `carries_flags`, a pair of this list and the flags, int32 `[world_size]`.
            Flag k is 0 if all gradients of rank k are finite. Otherwise it is 1 + the index of
            the first gradient that is not.
        """
        raise NotImplementedError(f"{type(self).__name__} must define deliver.")

    def uncompressed(self) -> "Exchange | None":
        """Returns an exchange that does the same without compression, or None for a plain sum.

        If this exchange is built, the returned one shares its state.
        """
        return None

    def learn(self, updates: Sequence[Gradient]) -> None:
        """Takes note of the updates of a step of a warm-up, where workers exchange updates.

        Args:
            updates: list of tensors, as in `specs`, the same on all workers.
        """

    def set_global_batch_size(self, samples: int) -> None:
        """Sets the number of samples per step, for rules that count samples and not steps.

        It may be called between steps. Nothing is traced again.

        Args:
            samples: number of samples that all workers together take per step.
        """

    def bytes_sent(self) -> int:
        """Returns the bytes that this worker sent in the last exchange."""
        raise NotImplementedError(f"{type(self).__name__} must define bytes_sent.")

    @property
    def measured_with(self) -> Mapping[str, Any]:
        """Dictionary of arguments that differ while its time is measured with random gradients."""
        return {}

    def expected_bytes(self, specs: Sequence[GradientSpec], world_size: int) -> dict[str, float]:
        """Returns the bytes that each worker will send per step, by kind of collective.

        By default it builds a clone and looks at the shapes of its messages.

        Args:
            specs: list of `GradientSpec` of one bucket.
            world_size: number of workers.

        Returns:
            Dictionary from "all_to_all", "all_gather" and "all_reduce" to numbers of bytes, in
            the order in which a step waits for them.

        Raises:
            ValueError: if the length of a message is not known before it is made.
        """
        return tracing.expected_bytes(self.clone(), specs, world_size)

    def residuals(self) -> Iterable[tuple[str, tf.Tensor | tf.Variable]]:
        """Returns what this worker has not sent yet: iterable of (name of the gradient, values).

        Values are tensors or variables. `load_state` scales the variables among them, and divides
        them between the workers if their number has changed.

        Raises:
            NotImplementedError: if the exchange has variables but does not define this method.
        """
        if self.variables:
            raise NotImplementedError(
                f"{type(self).__name__} keeps variables, and must define residuals. It returns a "
                "list of (name of the gradient, variable with the part that is not sent yet), or "
                "[] if everything is sent."
            )
        return []

    def residual_sum_of_squares(self) -> float:
        """Returns the sum of squares of the residuals: a float."""
        return sum(sum_of_squares(values) for _, values in self.residuals())

    def metrics(self) -> dict[str, float]:
        """Returns further metrics of the last exchange, for the Monitor: dictionary of floats."""
        return {}

    def state(self) -> State:
        """Returns the state with which training continues as if it had not been interrupted.

        Returns:
            Dictionary of NumPy arrays: by default all variables of the exchange. The names of
            residuals end in "residual": a run that would lose them says so.
        """
        names = self._state_names()
        return {name: v.numpy() for name, v in zip(names, self.variables, strict=True)}

    def _state_names(self) -> list[str]:
        unsent = {id(values) for _, values in self.residuals()}
        kinds = ["residual" if id(v) in unsent else "variable" for v in self.variables]
        return [f"{i}/{kind}" for i, kind in enumerate(kinds)]

    def load_state(self, states: Sequence[State], ratio: float = 1.0) -> None:
        """Restores what `state` returned on all workers of an earlier run.

        Args:
            states: list of dictionaries, by rank. If there are as many as workers, each worker
                takes its own, and the others may be empty. If their number differs, residuals
                are summed and divided between the workers.
            ratio: factor on the residuals, which keeps the update that they will make.

        Raises:
            ValueError: if the number of workers differs or `ratio` is not 1, and there are
                variables that `residuals` does not list.
        """
        unsent = {id(values) for _, values in self.residuals()}
        others = [variable for variable in self.variables if id(variable) not in unsent]
        as_many = len(states) == self.world_size
        if others and (ratio != 1.0 or not as_many):
            raise ValueError(
                f"{type(self).__name__} can only be resumed with as many workers as before, and "
                f"at the same learning rate. Received: a state of {len(states)} workers for "
                f"{self.world_size} workers, and a factor of {ratio} for the residuals. To allow "
                "more, list all variables in residuals, or define load_state."
            )
        for name, variable in zip(self._state_names(), self.variables, strict=True):
            if as_many:
                array: npt.NDArray[Any] | float = states[self.rank][name]
            else:
                array = sum(state[name] for state in states) / self.world_size
            variable.assign(ratio * array if id(variable) in unsent else array)


def integers(words: tf.Tensor) -> tf.Tensor:
    """Returns the words of a message as int32 with the same bits, to read them."""
    return tf.bitcast(words, tf.int32)
