"""Delayed: applies gradients a step later, so that they travel during the next step."""

import dataclasses
import numbers
from typing import Any

from tf_onebit._configurable import deserialize, serialize
from tf_onebit.exchanges.schedule import AnyExchange, Recipe, Schedule, is_exchange, schedule_of


class Delayed(Recipe):
    """Double buffering: messages of a step travel during the next (Seide et al. 2014, 2.2).

    Step t encodes its gradients g_t, bucket by bucket as they are computed, and keeps the
    messages. They travel while step t + 1 computes. They depend on nothing in that step, and so
    take no extra time unless they take longer than the step. Early buckets are aggregated in
    step t already, which keeps the links busy until its end. Their encoded aggregate is kept
    instead. Weights are changed by the gradients of an earlier model::

        w_(t+1) = w_t - learning_rate * sum over workers of g(w_(t-steps))

    where g is the gradient that `exchange` returns. The paper halves the minibatch, which keeps
    the delay at N samples for a minibatch of N. `Delayed` does not change the batch size: the
    user or the program does. With half the batch size, a learning rate per sample stays the same.

    The first `steps` steps, and those after a flush, have no gradients to apply. They change
    neither the weights nor the optimizer. If workers exchange updates (see `moments` in
    `Exchange`), these steps move moments, and count as iterations.

    A flush applies the gradients that are still under way. `fit` flushes at the end of each epoch,
    and before the model is evaluated, used for prediction or saved. Other programs call
    `tf_onebit.flush`.

    A single worker has nothing to wait for, and its optimizer delays nothing.

    Args:
        exchange: the exchange that is delayed. Put `WarmStart` around `Delayed`; the delay then
            begins when the warm start is over.
        steps: number of steps after which gradients are applied; more than one if messages take
            longer than a step.

    Raises:
        ValueError: if `steps` is not a positive whole number, or `exchange` is not an exchange or
            cannot be delayed.

    Example:
        >>> from tf_onebit.exchanges import OneBit
        >>> Delayed(OneBit()).steps
        1
    """

    def __init__(self, exchange: AnyExchange, steps: int = 1) -> None:
        exchange = deserialize(exchange)
        if not is_exchange(exchange):
            raise ValueError(
                "Delayed needs an exchange, for example Delayed(OneBit()). "
                f"Received: exchange={exchange!r}."
            )
        if isinstance(exchange, Recipe) or not exchange.can_be_delayed:
            name = type(exchange).__name__
            raise ValueError(
                f"{name} cannot run its stages in different steps. Received: "
                f"exchange={exchange!r}. {_REMEDIES.get(name, '')}Delayed takes for example "
                "OneBit, Threshold or FullPrecision."
            )
        is_whole = isinstance(steps, numbers.Integral) and not isinstance(steps, bool)
        if not is_whole or steps < 1:
            raise ValueError(
                f"steps must be a whole number of steps, at least 1. Received: steps={steps!r}. "
                "Leave Delayed out to apply gradients at once."
            )
        super().__init__(exchange)
        self.steps = self.delay = int(steps)

    def get_config(self) -> dict[str, Any]:
        return {"exchange": serialize(self.inner), "steps": self.steps}

    def schedule(self) -> Schedule:
        return dataclasses.replace(schedule_of(self.inner), delay=self.steps)

    def uncompressed(self) -> AnyExchange | None:
        return self.inner.uncompressed()  # only one worker runs it, and it delays nothing


_REMEDIES = {
    "WarmStart": "Use WarmStart(Delayed(...), ...): the delay begins when the warm start is over. ",
    "Delayed": "Use steps= for a longer delay. ",
    "Auto": "Use Auto(Delayed(OneBit())). ",
    "Local": "It exchanges nothing, so no step can wait for it. ",
}
