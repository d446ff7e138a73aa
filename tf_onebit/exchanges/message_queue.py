"""MessageQueue: messages that wait for a later step."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_onebit.exchanges.state import State


class MessageQueue(tf.Module):
    """Queue of the last steps' messages, kept in variables, the oldest first.

    Args:
        specs: list of `tf.TensorSpec` of a message.
        length: maximum number of messages.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], length: int) -> None:
        super().__init__()
        self._places = [[_variable(spec) for spec in specs] for _ in range(length)]
        # The last `held` places are in use.
        self._held = tf.Variable(0, trainable=False)

    @property
    def length(self) -> int:
        """Maximum number of messages."""
        return len(self._places)

    def is_full(self) -> tf.Tensor:
        """Tells whether the maximum number of messages is held: boolean tensor.

        After a push in the same graph, it waits until that message is kept.
        """
        return self._held >= self.length

    def number_held(self) -> int:
        """Returns the number of messages that are held: int."""
        return int(self._held)

    def oldest(self) -> list[tf.Tensor]:
        """Returns the message in the first place: list of tensors."""
        return self._at(0)

    def pop(self, number: int) -> list[tf.Tensor]:
        """Removes the oldest of the `number` messages that are held, and returns it."""
        # The count decreases first, so that a message with values that are not finite is gone, too.
        with tf.control_dependencies([self._held.assign_sub(1)]):
            return [tf.identity(tensor) for tensor in self._at(self.length - number)]

    def push(self, message: Sequence[tf.Tensor], more: int = 0) -> None:
        """Moves all messages up by one place, and puts another in the last place.

        Args:
            message: list of tensors.
            more: increase of the number of messages that are held.
        """
        moved = [self._at(place) for place in range(1, self.length)]
        for variables, tensors in zip(self._places, [*moved, message], strict=True):
            for variable, tensor in zip(variables, tensors, strict=True):
                variable.assign(tensor)
        # `more` may be 0: then the count keeps its value, but is ready only after the push.
        kept = [tensor for place in range(self.length) for tensor in self._at(place)]
        with tf.control_dependencies(kept):
            self._held.assign_add(more)

    def typed(self, message: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns a message with the types and shapes of the queue's variables."""
        return [
            tf.ensure_shape(tf.cast(tensor, variable.dtype), variable.shape)
            for tensor, variable in zip(message, self._places[0], strict=True)
        ]

    def _at(self, place: int) -> list[tf.Tensor]:
        return [tf.convert_to_tensor(variable) for variable in self._places[place]]

    def state(self) -> State:
        """Returns all messages, and the number that is held: dictionary of NumPy arrays."""
        state = {"held": self._held.numpy()}
        for i, variables in enumerate(self._places):
            for j, variable in enumerate(variables):
                array = variable.numpy()
                # Stored as bytes: messages differ in length, and NumPy's files lack some types.
                state[f"message_{i}/{j}/shape"] = np.array(array.shape, np.int64)
                state[f"message_{i}/{j}/bytes"] = np.void(array.tobytes() + b"\0")
        return state

    def load_state(self, states: Sequence[State], rank: int, world_size: int) -> None:
        """Restores the earlier states of all workers.

        Raises:
            ValueError: if messages are held, and the number of workers has changed.
        """
        as_many = len(states) == world_size
        mine = states[rank if as_many else 0]
        held = int(mine["held"])
        if held and not as_many:
            raise ValueError(
                "Delayed gradients that are not applied yet can only be resumed with as many "
                f"workers as before. Received: a state of {len(states)} workers for {world_size} "
                "workers. Resume with as many as before, or begin again from the model's "
                "weights."
            )
        self._held.assign(held)
        if not held:
            return
        for i, variables in enumerate(self._places):
            for j, variable in enumerate(variables):
                data = np.asarray(mine[f"message_{i}/{j}/bytes"]).tobytes()[:-1]
                array = np.frombuffer(data, variable.dtype.as_numpy_dtype)
                variable.assign(array.reshape(mine[f"message_{i}/{j}/shape"]))


def _variable(spec: tf.TensorSpec) -> tf.Variable:
    """Returns a variable for tensors of this spec; empty at first if the length is unknown."""
    empty = tf.zeros([size or 0 for size in spec.shape], spec.dtype)
    return tf.Variable(empty, shape=spec.shape, trainable=False)
