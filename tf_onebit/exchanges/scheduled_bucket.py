"""ScheduledBucket: the exchange of one bucket's gradients, at the times of a schedule."""

from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from tf_onebit.collectives.requests import Cond, Exchanging
from tf_onebit.exchanges.adding import Adding
from tf_onebit.exchanges.base import Exchange
from tf_onebit.exchanges.full_precision import FullPrecision
from tf_onebit.exchanges.gradients import Gradient, GradientSpec, after, not_finite_flag
from tf_onebit.exchanges.message_queue import MessageQueue
from tf_onebit.exchanges.schedule import Schedule
from tf_onebit.exchanges.stages import Stages, flag_bytes, run_stages
from tf_onebit.exchanges.state import State, part_of, prefixed
from tf_onebit.exchanges.tracing import message_specs
from tf_onebit.exchanges.warm_up import WarmUpProgress

# Exchanged gradients, the flags of all workers, and a tensor that is ready with the first answer.
Answered: TypeAlias = tuple[list[Gradient], tf.Tensor, tf.Tensor]


class ScheduledBucket(tf.Module):
    """Exchange of a bucket, whose stages run in the steps that a schedule says.

    During the warm-up the uncompressed exchange runs all its stages in one step. If the bucket
    takes updates, the optimizer calls for that by `run_uncompressed` and `run_alike`. With a delay,
    `encode` then runs in the step of the gradients, and `deliver` that many steps later. In
    between, the message waits in variables. `aggregate` also runs in the step of the gradients
    if they come early in the backward pass. Otherwise it runs directly before `deliver`.

    Args:
        schedule: `Schedule`, whose exchange is cloned.
        indices: list of its gradients' places in the list of the model's gradients.
        is_early: whether its gradients come early in the backward pass.
        takes_updates: whether `run` takes updates of optimizers in place of gradients.

    Attributes:
        exchange: `Exchange`, built.
        stages: `Stages` that runs the stages in graphs traced from now on.
    """

    _queue: MessageQueue  # with a delay only

    def __init__(
        self, schedule: Schedule, indices: list[int], is_early: bool, takes_updates: bool
    ) -> None:
        super().__init__()
        self.exchange = schedule.exchange.clone()
        self.indices = indices
        self.is_early = is_early
        self.stages = Stages()
        self._schedule = schedule
        self._takes_updates = takes_updates
        self._warm_up: WarmUpProgress | None = None
        self._uncompressed: Exchange | None = None

    def build(
        self,
        specs: Sequence[GradientSpec],
        rank: int,
        world_size: int,
        scope: str,
        unit: float,
    ) -> None:
        """Creates the state. See `Exchange.build`."""
        self.scope = scope
        self._rank, self._world_size = rank, world_size
        warm_up, delay = self._schedule.warm_up, self._schedule.delay
        inner_scope = f"{scope}/compressed" if warm_up else scope
        full_scope = f"{scope}/full_precision"
        delayed_scope = f"{inner_scope}/delayed" if delay else inner_scope
        self.exchange.build(specs, rank, world_size, delayed_scope, unit)
        if delay:
            self._queue = MessageQueue(message_specs(self.exchange, self.is_early), delay)
            self._is_on = tf.Variable(True, trainable=False)
        if warm_up:
            self._warm_up = WarmUpProgress(warm_up)
            full = self.exchange.uncompressed() or FullPrecision(self.exchange.bucket_bytes)
            if not full.built:
                full.build(specs, rank, world_size, full_scope, unit)
            # If both would do the same, no branch is needed.
            self._uncompressed = None if full is self.exchange and not delay else full

    @property
    def delay(self) -> int:
        """Number of steps by which gradients are delayed."""
        return self._schedule.delay

    def delivers(self) -> tf.Tensor | bool:
        """Tells whether the next step returns gradients: boolean or boolean tensor."""
        if not self.delay:
            return True
        delivers = self._queue.is_full() | ~self._is_on
        if self._warm_up is None or self._takes_updates:
            return delivers
        return self._warm_up.is_warm() | delivers

    def is_warm(self) -> tf.Tensor | bool:
        """Tells whether the next step is within the warm-up: boolean or boolean tensor."""
        return False if self._warm_up is None else self._warm_up.is_warm()

    @property
    def adds(self) -> bool:
        """True if `add_to` can take the place of exchanged gradients."""
        return isinstance(self.exchange, Adding) and all(
            spec.dtype == "float32" for spec in self.exchange.specs
        )

    def run_uncompressed(self, gradients: Sequence[Gradient], scale: float) -> Exchanging[Answered]:
        """Generator: exchanges gradients without compression, and counts no step."""
        exchange = self._uncompressed or self.exchange
        exchanged, flags = yield from run_stages(exchange, gradients, scale, self.stages)
        return exchanged, flags, _nothing()

    def run_alike(self, updates: Sequence[Gradient]) -> Exchanging[Answered]:
        """Generator: returns updates that are alike on all workers, in a step of the warm-up."""
        yield from ()
        if self._warm_up is not None:
            with tf.control_dependencies(tf.nest.flatten(updates, expand_composites=True)):
                self._warm_up.count(True)
        self.exchange.learn(updates)
        flags = tf.repeat(not_finite_flag(updates), self._world_size)
        return list(updates), flags, _nothing()

    def run(
        self,
        gradients: Sequence[Gradient],
        scale: float,
        answers: Sequence[tf.Tensor],
        decodes: bool = True,
    ) -> Exchanging[Answered]:
        """Generator: takes gradients, and returns exchanged ones, with a delay earlier ones.

        Updates are never those of a step of the warm-up: see `Bucketed.run_alike`.

        Args:
            gradients: list of tensors.
            scale: factor on the sum.
            answers: list of tensors. The last messages of early gradients wait for them.
            decodes: if False, it returns tensors for `add_to` in place of exchanged gradients.

        Returns:
            The exchanged gradients, the flags of all workers, and an empty tensor. If the
            gradients are late ones, it is ready as soon as their first collective has completed.
        """
        if self._warm_up is None:
            return (yield from self._scheduled(gradients, scale, answers, decodes))
        warm = not self._takes_updates and self._warm_up.is_warm()
        # After the end of the data there are no gradients, and nothing must be counted.
        with tf.control_dependencies(tf.nest.flatten(gradients, expand_composites=True)):
            self._warm_up.count(warm)
        uncompressed = self._uncompressed
        if uncompressed is None or self._takes_updates:
            return (yield from self._scheduled(gradients, scale, answers, decodes))
        # Both branches return as many tensors: gradients, and without `decodes` gathered ones.
        before, behind = (0, 0) if decodes else (len(gradients), self._num_gathered)

        def in_full_precision() -> Exchanging[Answered]:
            exchanged, flags = yield from run_stages(uncompressed, gradients, scale, self.stages)
            return [*exchanged, *[_nothing()] * behind], flags, _nothing()

        def scheduled() -> Exchanging[Answered]:
            exchanged, *others = yield from self._scheduled(gradients, scale, answers, decodes)
            return [*[_nothing()] * before, *exchanged], *others

        return (yield Cond(warm, in_full_precision, scheduled))

    def add_to(
        self,
        variables: Sequence[tf.Variable],
        exchanged: Sequence[tf.Tensor],
        scale: float,
        factor: tf.Tensor | float,
    ) -> None:
        """Adds `factor` times the exchanged gradients to variables: see `Adding.add_to`.

        Args:
            variables: list of float32 variables.
            exchanged: list of tensors that `run` returned without `decodes`.
            scale: the same as in `run`.
            factor: float32 scalar.
        """
        gradients, gathered = exchanged[: -self._num_gathered], exchanged[-self._num_gathered :]

        def add_gathered() -> bool:
            self.exchange.add_to(variables, gathered, scale, factor)
            return True

        def add_gradients() -> bool:
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.assign_add(factor * tf.ensure_shape(gradient, variable.shape))
            return True

        if gradients:
            tf.cond(tf.equal(tf.size(gathered[0]), 0), add_gradients, add_gathered)
        else:
            add_gathered()

    @property
    def _num_gathered(self) -> int:
        return self.exchange.num_gathered

    def _scheduled(
        self,
        gradients: Sequence[Gradient],
        scale: float,
        answers: Sequence[tf.Tensor],
        decodes: bool,
    ) -> Exchanging[Answered]:
        if not self.delay:
            exchanged, flags = yield from run_stages(
                self.exchange, gradients, scale, self.stages, decodes
            )
            return exchanged, flags, _nothing()
        like, newest = yield from self._taken(gradients)
        oldest = self._queue.oldest()
        # Only the choice is in the branch, so that an old message does not wait for the new one.
        message = tf.cond(self._is_on, lambda: oldest, lambda: newest)
        message = self._queue.typed(message)
        delivered = yield from self._deliver(message, like, scale, answers, self.stages, decodes)
        self._queue.push(newest)
        return delivered

    def hold(self, gradients: Sequence[Gradient]) -> Exchanging[None]:
        """Generator: takes gradients in a step that returns none."""
        _, newest = yield from self._taken(gradients)
        if self._warm_up is not None:
            with tf.control_dependencies(newest):
                self._warm_up.count(False)
        self.stages.hold(newest)
        self._queue.push(newest, more=1)

    def release(
        self,
        number: int,
        like: Sequence[Gradient],
        scale: float,
        answers: Sequence[tf.Tensor],
    ) -> Exchanging[Answered]:
        """Generator: returns the oldest gradients that are held, and takes none.

        Args:
            number: `number_held()`, positive.
            like, scale: see `Exchange.deliver`.
            answers: see `run`.

        Returns:
            The same as `run`.
        """
        message = self._queue.pop(number)
        # No times are recorded, because a flush is no part of a step.
        return (yield from self._deliver(message, like, scale, answers, Stages()))

    def number_held(self) -> int:
        """Returns the number of steps whose gradients have been taken and not yet returned."""
        return self._queue.number_held() if self.delay else 0

    def set_delay(self, on: bool) -> None:
        """Turns the delay on or off. No gradients may be held at that time."""
        if self.delay:
            self._is_on.assign(on)

    def _taken(
        self, gradients: Sequence[Gradient]
    ) -> Exchanging[tuple[list[Gradient], list[tf.Tensor]]]:
        """Generator: encodes gradients. Returns them, free for reuse, and their message."""
        message = self.stages.encode(self.exchange, gradients)
        # The result takes the memory of the gradients, which must have been read by then.
        like = after(message, list(gradients))
        if self.is_early:
            message = yield from self.stages.aggregate(self.exchange, message)
        return like, self._queue.typed(message)

    def _deliver(
        self,
        message: Sequence[tf.Tensor],
        like: Sequence[Gradient],
        scale: float,
        answers: Sequence[tf.Tensor],
        stages: Stages,
        decodes: bool = True,
    ) -> Exchanging[Answered]:
        if self.is_early:
            message, first_answer = after(answers, list(message)), _nothing()
        else:
            message, first_answer = yield from _with_first_answer(
                stages.aggregate(self.exchange, message)
            )
        exchanged, flags = yield from stages.deliver(self.exchange, message, like, scale, decodes)
        return exchanged, flags, first_answer

    def set_global_batch_size(self, samples: int) -> None:
        """See `Exchange`."""
        if self._warm_up is not None:
            self._warm_up.set_global_batch_size(samples)
        self.exchange.set_global_batch_size(samples)

    def _last(self) -> Exchange:
        """Returns the exchange that ran last."""
        if self._uncompressed is None or self._warm_up is None or not self._warm_up.was_warm():
            return self.exchange
        return self._uncompressed

    def bytes_sent(self) -> int:
        """Returns the bytes that this worker sent in the last exchange, flags included."""
        last = self._last()
        return last.bytes_sent() + flag_bytes(last)

    def residual_sum_of_squares(self) -> float:
        """See `Exchange`."""
        return self.exchange.residual_sum_of_squares()

    def metrics(self) -> dict[str, float]:
        """See `Exchange`."""
        return self._last().metrics()

    def advice(self) -> str | None:
        """Returns advice for the user, if training ends now: a text, or None."""
        if self._uncompressed is None or self._warm_up is None:
            return None
        return self._warm_up.advice()

    def state(self) -> State:
        """See `Exchange`."""
        state = self.exchange.state()
        if self.delay:
            state = prefixed("exchange", state) | self._queue.state()
        if self._warm_up is not None:
            state = self._warm_up.state() | prefixed("compressed", state)
        return state

    def load_state(self, states: Sequence[State], ratio: float = 1.0) -> None:
        """See `Exchange`."""
        if self._warm_up is not None:
            as_many = len(states) == self._world_size
            self._warm_up.load_state(states[self._rank if as_many else 0])
            states = [part_of(state, "compressed") for state in states]
        if self.delay:
            self._queue.load_state(states, self._rank, self._world_size)
            states = [part_of(state, "exchange") for state in states]
        self.exchange.load_state(states, ratio)


def _nothing() -> tf.Tensor:
    return tf.zeros([0])


def _with_first_answer(
    generator: Exchanging[Sequence[tf.Tensor]],
) -> Exchanging[tuple[Sequence[tf.Tensor], tf.Tensor]]:
    """Generator: runs another, and returns its result and an empty tensor.

    The tensor is ready when the first answer is. To wait for it keeps no answer in memory.
    """
    answer = first = None
    while True:
        try:
            request = generator.send(answer)
        except StopIteration as stop:
            return stop.value, _nothing() if first is None else first
        answer = yield request
        if first is None:
            tensor, *_ = tf.nest.flatten(answer)
            first = tf.cast(tf.reshape(tensor, [-1])[:0], tf.float32)
