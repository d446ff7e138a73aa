"""Echo: runs an exchange without other workers, as if all workers sent the same."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_onebit.collectives.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    Cond,
    Exchanging,
    Request,
    T,
    Within,
    drive,
)


def run(
    generator: Exchanging[T],
    world_size: int,
    note: Callable[[Collective], None] = lambda request: None,
) -> T:
    """Runs the exchange of one worker, and answers as if all workers sent the same messages.

    Args:
        generator: exchange of one of `world_size` workers.
        world_size: number of workers.
        note: function that is called with each request except `Cond`, of which `then` is run.

    Returns:
        The return value of the generator.
    """

    def noted_answer(request: Request) -> Any:
        if isinstance(request, Cond):
            return run(request.then(), world_size, note)
        if isinstance(request, Within):
            raise TypeError(f"An echo knows no nodes. Received: {request!r}.")
        note(request)
        return answer_to(request, world_size)

    return drive(generator, noted_answer)


def answer_to(request: Collective, world_size: int) -> tf.Tensor | list[tf.Tensor]:
    """Returns the answer to a request if all workers send the same tensors."""
    if isinstance(request, AllToAll):
        return tf.stack([request.tensor[0]] * world_size)
    if isinstance(request, AllGather):
        return tf.concat([request.tensor] * world_size, axis=0)
    if isinstance(request, AllReduce):
        return list(request.tensors)
    raise TypeError(f"An exchange of gradients cannot yield this request. Received: {request!r}.")
