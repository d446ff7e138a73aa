"""What an exchange is."""

import collections
import dataclasses
import math
import re

import tensorflow as tf

from tf_onebit.configurable import Configurable, serialize
from tf_onebit.exchanges.stages import Stages

FLOAT_BYTES = 4


def all_reduce_bytes(size_bytes, world_size):
    """What each worker sends in an all-reduce of so many bytes."""
    return 2 * (world_size - 1) * size_bytes // world_size


@dataclasses.dataclass(frozen=True)
class GradientSpec:
    """What is known of a gradient before the first step.

    Attributes:
        name: of its variable.
        shape: tuple of ints, of its variable.
        dtype: name of its type, for example "float32".
        sparse: whether it comes as `tf.IndexedSlices`.
    """

    name: str
    shape: tuple
    dtype: str
    sparse: bool = False

    @property
    def size(self):
        return math.prod(self.shape)


class Exchange(Configurable, tf.Module):
    """Turns the list of local gradients into the list of their sums over all workers.

    A user's exchange is a template: it holds hyper-parameters. What runs is a clone, built once
    for a list of gradients, with state of its own (residuals, counters) as variables.

    An exchange has three stages, of which all but the first may communicate: `encode`, `aggregate`
    and `deliver`. Subclasses define these, or `exchange` as a whole, `bytes_sent` and `get_config`,
    and create their variables in `create_state`. Those that define the stages and
    `message_variables` can be `Delayed`.

    Args:
        bucket_bytes: gradients are exchanged in buckets of about this size, in the order in which
            the backward pass produces them, so that the first buckets travel while the rest is
            computed. Counted before compression.
        exclude: regular expressions; gradients of variables with a name in which one is found
            are exchanged in full precision.
    """

    # Gradients of other types are exchanged in full precision.
    dtypes = ("float32", "float16", "bfloat16")
    # Others' `tf.IndexedSlices` are gathered exactly.
    takes_sparse = False
    # By how many steps gradients come back later than they were taken.
    steps_of_delay = 0
    # Of the exchange that was traced last, where others should let its messages pass: int32 tensor
    # that is there as soon as the first of them have come.
    first_answer = None
    stages = Stages()

    def __init__(self, bucket_bytes, exclude=()):
        super().__init__()
        if not bucket_bytes > 0:
            raise ValueError(
                "bucket_bytes must be a positive number of bytes. "
                f"Received: bucket_bytes={bucket_bytes}. "
                "Use a number larger than the model to exchange everything in one bucket."
            )
        if isinstance(exclude, str):
            raise ValueError(
                "exclude must be a list of regular expressions. "
                f"Received: exclude={exclude!r}. Use exclude=[{exclude!r}]."
            )
        excluded = []
        for pattern in exclude:
            try:
                excluded.append(re.compile(pattern))
            except (re.error, TypeError) as error:
                raise ValueError(
                    f"exclude must be a list of regular expressions. Received: {pattern!r} in "
                    f"exclude={list(exclude)!r}: {error}."
                ) from error
        self.bucket_bytes = bucket_bytes
        self.exclude = tuple(exclude)
        self._excluded = tuple(excluded)

    def excludes(self, name):
        """Whether a gradient of this name travels in full precision."""
        return any(pattern.search(name) for pattern in self._excluded)

    def build(self, specs, rank, world_size, scope, unit=1.0):
        """Fixes the layout and creates the variables.

        Args:
            specs: list of `GradientSpec`.
            rank: of this worker, from 0 to `world_size - 1`.
            world_size: number of workers.
            scope: prefix of the names of this exchange's collectives; unique in a job.
            unit: what a gradient of 1 of a worker's mean loss is given as: less than 1 where the
                loss has been divided by the number of workers before the backward pass.

        Raises:
            ValueError: if there are no gradients, no workers, or `rank` is not among them.
        """
        if not specs:
            raise ValueError(
                "An exchange needs at least one gradient. Received an empty list. "
                "Does the model have trainable variables that the loss depends on?"
            )
        if not 0 <= rank < world_size:
            raise ValueError(
                "rank must be from 0 to world_size - 1, and world_size at least 1. "
                f"Received: rank={rank}, world_size={world_size}."
            )
        self.specs = tuple(specs)
        self.rank = rank
        self.world_size = world_size
        self.scope = scope
        self.unit = unit
        with tf.init_scope():
            self.create_state()

    def create_state(self):
        """Creates the variables. Called once, outside of any graph."""

    def exchange(self, gradients, scale=1.0):
        """Generator: yields collectives and returns the exchanged gradients.

        Args:
            gradients: list of tensors, as in `specs`. Sums or means over the local minibatch.
            scale: factor on the sum: `1 / world_size` for the mean over the workers.

        Returns:
            A list of tensors with the shapes and dtypes of `gradients`, the same on all workers,
            and `flags`, int32 `[world_size]`: entry k is 0, or 1 + the index of the first
            gradient in which rank k met a value that is not finite.
        """
        message = self.stages.encode(self, gradients)
        message = yield from self.stages.aggregate(self, message)
        return (yield from self.stages.deliver(self, message, gradients, scale))

    def encode(self, gradients):
        """The first stage: what this worker sends of its gradients. Does not communicate.

        Args:
            gradients: list of tensors, as in `specs`.

        Returns:
            List of tensors.
        """
        raise NotImplementedError(f"{type(self).__name__} must define encode, or exchange.")

    def aggregate(self, message):
        """Generator, the second stage: from what `encode` returned to what is delivered.

        Args:
            message: list of tensors.

        Returns:
            List of tensors: what this worker sends to all, and what else `deliver` needs. If it
            communicates, the last are the flags that came with the workers' messages.
        """
        yield from ()  # a generator that asks for nothing
        return message

    def deliver(self, message, like, scale):
        """Generator, the last stage: from what `aggregate` returned to the exchanged gradients.

        Args:
            message: list of tensors.
            like: list of tensors of the gradients' shapes and dtypes, whose memory may be taken.
            scale: factor on the sum.

        Returns:
            As `exchange`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define deliver, or exchange.")

    def message_variables(self, aggregated):
        """Makes variables that can hold a message: list, once it is built.

        Args:
            aggregated: whether it is what `aggregate` returns, or what `encode` does.
        """
        raise NotImplementedError(f"{type(self).__name__} must define message_variables.")

    def set_stages(self, stages_of):
        """Says who runs the stages of what is traced from now on.

        Args:
            stages_of: function from a bucket's scope to its `Stages`.
        """
        stages = stages_of(self.scope)
        for part in (self, *self.submodules):
            if isinstance(part, Exchange):
                part.stages = stages

    def set_early(self, early):
        """Tells, before it is built, when in a backward pass its gradients come.

        Args:
            early: whether there is still time in the step to aggregate them.
        """

    def deliver_after(self, answers):
        """Tells, before an exchange is traced, what its last messages let pass.

        Args:
            answers: list of tensors, each `first_answer` of another exchange.
        """

    def alongside(self, exchange):
        """The exchange of those gradients of a model that this one does not take.

        Args:
            exchange: exchange that takes them.

        Returns:
            One that gives them back in the same step as this one does its own.
        """
        return exchange

    def delivers(self):
        """Whether the next step gives gradients back: boolean or boolean tensor.

        Where it does not, `hold` takes the place of `exchange`. The same on all workers.
        """
        return True

    def hold(self, gradients):
        """Generator: takes the gradients of a step that gives none back."""
        raise NotImplementedError(f"{type(self).__name__} gives gradients back in every step.")

    def number_held(self):
        """Number of steps whose gradients have been taken and not given back: integer."""
        return 0

    def release(self, number, like, scale):
        """Generator: gives back the oldest gradients that are held, and takes none.

        Args:
            number: `number_held()`, positive.
            like, scale: see `deliver`.

        Returns:
            As `exchange`.
        """
        raise NotImplementedError(f"{type(self).__name__} gives gradients back in every step.")

    def set_delay(self, on):
        """Turns delay on or off, where there is any. While it changes nothing may be held."""

    def in_full_precision(self):
        """An `Exchange` that does the same to gradients without compressing them.

        Once this one has been built, both share what they have learned of the gradients. None, as
        by default, for the mere sum.
        """
        return None

    def set_global_batch_size(self, samples):
        """Tells how many samples the workers' gradients of a step are of, from the next step on.

        For those whose rules count samples, and not steps. May be called between steps, once the
        exchange has been built; nothing is traced anew.

        Args:
            samples: number of samples that all workers together take per step.
        """

    def bytes_sent(self):
        """Bytes that this worker sent in the last exchange."""
        raise NotImplementedError(f"{type(self).__name__} must define bytes_sent.")

    def full_precision_bytes(self):
        """What the same exchange would send in float32."""
        size_bytes = FLOAT_BYTES * sum(spec.size for spec in self.specs)
        return all_reduce_bytes(size_bytes, self.world_size)

    def residual_sum_of_squares(self):
        """Of all that this worker has not sent yet."""
        return 0.0

    def residual_squares(self):
        """As `residual_sum_of_squares`, by name of the gradient: dictionary of floats.

        Takes a pass over the residual. Of what has no residual there is nothing.
        """
        return {}

    def measures(self):
        """Further figures of the last exchange: dictionary of floats, for the Monitor."""
        return {}

    def advice(self):
        """Returns advice to the user if training ends now: a text, or None."""
        return None

    def state(self):
        """What must be kept for training to go on as if it had not been interrupted.

        Returns:
            Dictionary of NumPy arrays. Exchanges that contain others prefix their names.
        """
        return {}

    def load_state(self, states, ratio=1.0):
        """Takes over what `state` returned on all workers of an earlier run.

        Args:
            states: list of dictionaries, by rank. With as many as there are workers, each takes
                its own, and those of others may be empty. With another number, what has not been
                sent yet is divided among the workers anew.
            ratio: by what factor unsent gradients have to grow for the update that they will
                make to stay the same.
        """

    def request_name(self, stage):
        return f"{self.scope}/{stage}"


def squares_of_runs(residual, runs):
    """The sums of squares of the runs that a residual is made of: dictionary of floats.

    Args:
        residual: float32 vector or variable.
        runs: list of (name, number of values).
    """
    if not runs:
        return {}
    names, sizes = zip(*runs, strict=True)
    squares = dict.fromkeys(names, 0.0)
    # A run is a view then, and its squares are not kept.
    for name, run in zip(names, tf.split(residual[: sum(sizes)], sizes), strict=True):
        squares[name] += 2.0 * float(tf.nn.l2_loss(run))
    return squares


def summed(dictionaries):
    """One dictionary of what several have under the same names, added up.

    >>> summed([{"kernel": 1.0}, {"kernel": 2.0, "bias": 0.0}])
    {'kernel': 3.0, 'bias': 0.0}
    """
    sums = collections.Counter()
    for dictionary in dictionaries:
        sums.update(dictionary)
    return dict(sums)


def part_of(state, prefix):
    """The state of the exchange whose names have a prefix, without it."""
    prefix += "/"
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def has_unsent(state):
    """Whether there is room for what has not been sent in the state of an exchange."""
    return any(array.size for name, array in state.items() if name.endswith("residual"))


def require_same_kind(exchange, states):
    """Raises ValueError for states of another exchange: what it has not sent would be lost."""
    with_as_many = len(states) == exchange.world_size
    saved = states[exchange.rank if with_as_many else 0]
    shapes, expected = ({k: v.shape for k, v in s.items()} for s in (saved, exchange.state()))
    if shapes.keys() != expected.keys() or (with_as_many and shapes != expected):
        raise ValueError(
            "Training goes on with the exchange that it began with, which keeps what has not been "
            f"sent yet. Received: the state of another one, with {shapes}, where "
            f"{serialize(exchange)} has {expected}. Use the earlier one, with its bucket_bytes and "
            "exclude, asynchronously if it was, or begin anew from the model's weights."
        )
