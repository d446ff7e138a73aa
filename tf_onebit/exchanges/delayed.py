"""Delayed: gradients come back a step later, and travel meanwhile."""

import dataclasses
import numbers

from tf_onebit.configurable import deserialize, serialize
from tf_onebit.exchanges.schedule import Recipe, is_exchange, schedule_of


class Delayed(Recipe):
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
    `tf_onebit.flush`.

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
        if not is_exchange(exchange):
            raise ValueError(
                "Delayed needs an exchange, for example Delayed(OneBit()). "
                f"Received: exchange={exchange!r}."
            )
        if isinstance(exchange, Recipe) or not exchange.can_be_delayed:
            name = type(exchange).__name__
            raise ValueError(
                f"{name} has no stages that could run in different steps. "
                f"Received: exchange={exchange!r}. {_REMEDIES.get(name, '')}"
                "Delayed takes for example OneBit, Threshold or FullPrecision."
            )
        is_whole = isinstance(steps, numbers.Integral) and not isinstance(steps, bool)
        if not is_whole or steps < 1:
            raise ValueError(
                f"steps must be a whole number of steps, at least 1. Received: steps={steps!r}. "
                "Leave Delayed out to apply gradients at once."
            )
        super().__init__(exchange)
        self.steps = self.delay = int(steps)

    def get_config(self):
        return {"exchange": serialize(self.inner), "steps": self.steps}

    def schedule(self):
        return dataclasses.replace(schedule_of(self.inner), delay=self.steps)

    def uncompressed(self):
        return self.inner.uncompressed()  # of one worker, whose gradients are never late


_REMEDIES = {
    "WarmStart": "Use WarmStart(Delayed(...), ...): delay begins when the warm start is over. ",
    "Delayed": "Use steps= for a longer delay. ",
    "Auto": "Use Auto(Delayed(OneBit())). ",
    "Local": "It exchanges nothing, and so there is nothing to wait for. ",
}
