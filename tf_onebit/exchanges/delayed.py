"""Delayed: gradients come back a step later, and travel meanwhile."""

import numbers

import numpy as np
import tensorflow as tf

from tf_onebit.configurable import deserialize, serialize
from tf_onebit.exchanges.base import Exchange, part_of


class Delayed(Exchange):
    """Double buffering: what a step exchanges travels during the next (Seide et al. 2014, 2.2).

    Step t encodes its gradients g_t, bucket by bucket as they come, and keeps the messages. They
    travel while step t + 1 computes: what they need of it is nothing, and so they take no time of
    their own unless they take longer than the step. Buckets that come early are aggregated in step
    t already, so that links are in use until its end; the encoded aggregate is kept then. Weights
    are changed by gradients of the model that was there before::

        w_(t+1) = w_t - learning_rate * sum over workers of g(w_(t-steps))

    with g as `exchange` gives it. The paper halves the minibatch, which keeps the delay at N
    samples for a minibatch of N; so do the user or the program: `Delayed` leaves batches as they
    are. With half of the batch size, a learning rate per sample stays what it was.

    A step at first, or after a flush, has nothing to apply, and changes neither weights nor the
    optimizer. `fit` flushes, which applies what is under way, at the end of each epoch and before
    the model is evaluated, used for prediction or saved; other programs call
    `tf_onebit.training.model_optimizers.flush`.

    With one worker there is nothing to wait for, and optimizers delay nothing.

    Args:
        exchange: the exchange that is delayed. Put `WarmStart` around `Delayed`, which then begins
            when the warm start is over.
        steps: after how many steps gradients are applied; more than one where messages take longer
            than a step.

    Raises:
        ValueError: if `steps` is not a positive whole number, or for what is no exchange, or cannot
            be delayed.

    Example:
        >>> from tf_onebit.exchanges import OneBit
        >>> Delayed(OneBit()).steps
        1
    """

    def __init__(self, exchange, steps=1):
        exchange = deserialize(exchange)
        if not isinstance(exchange, Exchange):
            raise ValueError(
                "Delayed needs an exchange, for example Delayed(OneBit()). "
                f"Received: exchange={exchange!r}."
            )
        if type(exchange).message_variables is Exchange.message_variables:
            raise ValueError(
                f"{type(exchange).__name__} has no stages that could run in different steps. "
                f"Received: exchange={exchange!r}. {_REMEDIES.get(type(exchange).__name__, '')}"
                "Delayed takes for example OneBit, Threshold or FullPrecision."
            )
        is_whole = isinstance(steps, numbers.Integral) and not isinstance(steps, bool)
        if not is_whole or steps < 1:
            raise ValueError(
                f"steps must be a whole number of steps, at least 1. Received: steps={steps!r}. "
                "Leave Delayed out to apply gradients at once."
            )
        super().__init__(exchange.bucket_bytes, exchange.exclude)
        self.steps = self.steps_of_delay = int(steps)
        self.wrapped = exchange
        self._early = True
        self._passing = ()
        self.dtypes, self.takes_sparse = exchange.dtypes, exchange.takes_sparse

    def get_config(self):
        return {"exchange": serialize(self.wrapped), "steps": self.steps}

    def set_early(self, early):
        self._early = early

    def deliver_after(self, answers):
        self._passing = tuple(answers)

    def create_state(self):
        self.wrapped.build(
            self.specs, self.rank, self.world_size, self.request_name("delayed"), self.unit
        )
        # The oldest message first. Of `steps` places the last `held` are in use.
        self._messages = [self.wrapped.message_variables(self._early) for _ in range(self.steps)]
        self._held = tf.Variable(0, trainable=False)
        self._is_on = tf.Variable(True, trainable=False)

    def delivers(self):
        return (self._held >= self.steps) | ~self._is_on

    def exchange(self, gradients, scale=1.0):
        """As `Exchange.exchange`, where `delivers()`: else `hold` takes its place."""
        like, newest = yield from self._newest(gradients)
        oldest = self._held_at(0)
        # Not a choice between all: what has been held for long does not wait for what is new.
        message = tf.cond(self._is_on, lambda: oldest, lambda: newest)
        exchanged = yield from self._deliver(self._typed(message), like, scale)
        self._push(newest)
        return exchanged

    def hold(self, gradients):
        _, newest = yield from self._newest(gradients)
        self.stages.hold(newest)
        self._push(newest)
        self._held.assign_add(1)

    def _newest(self, gradients):
        """Generator: the gradients, once nobody needs them any more, and their message."""
        message = self.stages.encode(self.wrapped, gradients)
        # What is delivered takes the memory of the gradients, which must have been read by then.
        with tf.control_dependencies(message):
            like = [
                tf.nest.map_structure(tf.identity, g, expand_composites=True) for g in gradients
            ]
        if self._early:
            message = yield from self.stages.aggregate(self.wrapped, message)
        return like, self._typed(message)

    def _deliver(self, message, like, scale):
        """Generator: `Exchange.deliver`, after all that must be done before it."""
        if self._early:
            # Within a branch tensors of the graph around can be awaited only as its own.
            with tf.control_dependencies([tf.identity(answer) for answer in self._passing]):
                message = [tf.identity(tensor) for tensor in message]
        else:
            message = yield from self.stages.aggregate(self.wrapped, message)
            if type(self.wrapped).aggregate is not Exchange.aggregate:
                self.first_answer = message[-1]
        return (yield from self.stages.deliver(self.wrapped, message, like, scale))

    def _typed(self, message):
        """A message of the types and shapes of the variables that hold it."""
        return [
            tf.ensure_shape(tf.cast(tensor, variable.dtype), variable.shape)
            for tensor, variable in zip(message, self._messages[0], strict=True)
        ]

    def _held_at(self, place):
        return [tf.convert_to_tensor(variable) for variable in self._messages[place]]

    def _push(self, newest):
        moved = [self._held_at(place) for place in range(1, self.steps)]
        for variables, message in zip(self._messages, [*moved, newest], strict=True):
            for variable, tensor in zip(variables, message, strict=True):
                variable.assign(tensor)
        # Of the same value, but later: who asks `delivers` now waits until all is kept.
        kept = [tensor for place in range(self.steps) for tensor in self._held_at(place)]
        with tf.control_dependencies(kept):
            self._held.assign_add(0)

    def number_held(self):
        return int(self._held)

    def release(self, number, like, scale):
        # First: it is gone, also if it turns out not to be finite.
        with tf.control_dependencies([self._held.assign_sub(1)]):
            message = [tf.identity(tensor) for tensor in self._held_at(self.steps - number)]
        return (yield from self._deliver(message, like, scale))

    def set_delay(self, on):
        self._is_on.assign(on)

    def alongside(self, exchange):
        return Delayed(exchange, self.steps)

    def in_full_precision(self):
        return self.wrapped.in_full_precision()

    def set_global_batch_size(self, global_batch_size):
        self.wrapped.set_global_batch_size(global_batch_size)

    def state(self):
        state = {f"exchange/{name}": array for name, array in self.wrapped.state().items()}
        state["held"] = self._held.numpy()
        for i, variables in enumerate(self._messages):
            for j, variable in enumerate(variables):
                array = variable.numpy()
                # As bytes: messages differ in length, and NumPy's files do not know all types.
                state[f"message_{i}/{j}/shape"] = np.array(array.shape, np.int64)
                state[f"message_{i}/{j}/bytes"] = np.void(array.tobytes() + b"\0")
        return state

    def load_state(self, states, ratio=1.0):
        as_many = len(states) == self.world_size
        mine = states[self.rank if as_many else 0]
        held = int(mine["held"])
        if held and not as_many:
            raise ValueError(
                "Gradients that are under way can only be resumed with as many workers as before. "
                f"Received: a state of {len(states)} workers for {self.world_size}, with messages "
                "of Delayed. Resume with as many, or begin anew from the model's weights."
            )
        self._held.assign(held)
        self.wrapped.load_state([part_of(state, "exchange") for state in states], ratio)
        if not held:
            return
        for i, variables in enumerate(self._messages):
            for j, variable in enumerate(variables):
                data = np.asarray(mine[f"message_{i}/{j}/bytes"]).tobytes()[:-1]
                array = np.frombuffer(data, variable.dtype.as_numpy_dtype)
                variable.assign(array.reshape(mine[f"message_{i}/{j}/shape"]))

    def bytes_sent(self):
        return self.wrapped.bytes_sent()

    def residual_sum_of_squares(self):
        return self.wrapped.residual_sum_of_squares()

    def residual_squares(self):
        return self.wrapped.residual_squares()

    def measures(self):
        return self.wrapped.measures()


_REMEDIES = {
    "WarmStart": "Use WarmStart(Delayed(...), ...): delay begins when the warm start is over. ",
    "Delayed": "Use steps= for a longer delay. ",
    "Auto": "Use Auto(Delayed(OneBit())). ",
    "Local": "It exchanges nothing, and so there is nothing to wait for. ",
}
