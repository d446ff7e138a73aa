"""Messages that wait for a later step."""

import numpy as np
import tensorflow as tf


class MessageQueue(tf.Module):
    """Holds the messages of the last steps in variables, the oldest first.

    Args:
        specs: list of `tf.TensorSpec`, of a message.
        length: number of messages.
    """

    def __init__(self, specs, length):
        super().__init__()
        self._places = [[_variable(spec) for spec in specs] for _ in range(length)]
        # The last `held` of the places are in use.
        self._held = tf.Variable(0, trainable=False)

    @property
    def length(self):
        """Number of messages that it has room for."""
        return len(self._places)

    def is_full(self):
        """Returns whether as many messages are held as it has room for: boolean tensor.

        Where messages are pushed before in a graph, it waits until they are kept.
        """
        return self._held >= self.length

    def number_held(self):
        """Returns the number of messages that are held: integer."""
        return int(self._held)

    def oldest(self):
        """Returns the message in the first place: list of tensors."""
        return self._at(0)

    def pop(self, number):
        """Removes the oldest of `number` messages that are held, and returns it."""
        # First: it is gone, also if it turns out not to be finite.
        with tf.control_dependencies([self._held.assign_sub(1)]):
            return [tf.identity(tensor) for tensor in self._at(self.length - number)]

    def push(self, message, more=0):
        """Moves all messages up by a place, and keeps another in the last.

        Args:
            message: list of tensors.
            more: by how many messages more are held then.
        """
        moved = [self._at(place) for place in range(1, self.length)]
        for variables, tensors in zip(self._places, [*moved, message], strict=True):
            for variable, tensor in zip(variables, tensors, strict=True):
                variable.assign(tensor)
        # What is added may be 0: then the value stays, but comes later.
        kept = [tensor for place in range(self.length) for tensor in self._at(place)]
        with tf.control_dependencies(kept):
            self._held.assign_add(more)

    def typed(self, message):
        """Returns a message with the types and shapes of what is held."""
        return [
            tf.ensure_shape(tf.cast(tensor, variable.dtype), variable.shape)
            for tensor, variable in zip(message, self._places[0], strict=True)
        ]

    def _at(self, place):
        return [tf.convert_to_tensor(variable) for variable in self._places[place]]

    def state(self):
        """Returns all messages, and how many are held: dictionary of NumPy arrays."""
        state = {"held": self._held.numpy()}
        for i, variables in enumerate(self._places):
            for j, variable in enumerate(variables):
                array = variable.numpy()
                # As bytes: messages differ in length, and NumPy's files do not know all types.
                state[f"message_{i}/{j}/shape"] = np.array(array.shape, np.int64)
                state[f"message_{i}/{j}/bytes"] = np.void(array.tobytes() + b"\0")
        return state

    def load_state(self, states, rank, world_size):
        """Goes on from the earlier states of all workers.

        Raises:
            ValueError: if messages are held, and the number of workers is another.
        """
        as_many = len(states) == world_size
        mine = states[rank if as_many else 0]
        held = int(mine["held"])
        if held and not as_many:
            raise ValueError(
                "Gradients that are under way can only be resumed with as many workers as before. "
                f"Received: a state of {len(states)} workers for {world_size}, with messages "
                "of Delayed. Resume with as many, or begin anew from the model's weights."
            )
        self._held.assign(held)
        if not held:
            return
        for i, variables in enumerate(self._places):
            for j, variable in enumerate(variables):
                data = np.asarray(mine[f"message_{i}/{j}/bytes"]).tobytes()[:-1]
                array = np.frombuffer(data, variable.dtype.as_numpy_dtype)
                variable.assign(array.reshape(mine[f"message_{i}/{j}/shape"]))


def _variable(spec):
    """A variable for tensors like this; one whose length is not known is empty at first."""
    empty = tf.zeros([size or 0 for size in spec.shape], spec.dtype)
    return tf.Variable(empty, shape=spec.shape, trainable=False)
