"""Gradients of variables that the members of a model-parallel group hold together."""

import tensorflow as tf

from tf_onebit._shares import group_of, is_part, share_of
from tf_onebit.collectives.requests import AllReduce, one_request
from tf_onebit.exchanges.gradients import scaled, values_of, with_values


def mean_over_members(gradients, variables):
    """Returns the gradients of the mean of the members' losses, which are all the same.

    Each member has computed the gradient of their sum with respect to its own variables. Members
    that hold copies of a variable have computed the terms of its gradient.

    Args:
        gradients: list of gradients or None.
        variables: list of their variables.

    Returns:
        List like `gradients`. Those of copies have the same bits on all members.
    """
    group = group_of(variables)
    if group is None:
        return gradients
    gradients = list(gradients)
    pairs = list(enumerate(zip(gradients, variables, strict=True)))
    held = [i for i, (g, v) in pairs if g is not None and share_of(v) is not None]
    copies = [i for i in held if not is_part(variables[i])]
    if copies:
        # Copies of an embedding have gradients for the same rows, because the data are the same.
        terms = [values_of(gradients[i]) for i in copies]
        for i, total in zip(copies, _sums(terms, group, "copies"), strict=True):
            gradients[i] = with_values(gradients[i], total)
    for i in held:
        gradients[i] = scaled(gradients[i], 1 / group.members)
    return gradients


class ClipsParts:
    """Mixin for Keras optimizers that clips by the norms of whole weights.

    `_variables_to_clip` returns the variables of the gradients that `_clip_gradients` gets.
    """

    def _clip_gradients(self, grads):
        variables = self._variables_to_clip()
        by_norm = self.clipnorm or self.global_clipnorm
        group = group_of(variables or ())
        if group is None or not by_norm or not any(map(is_part, variables)):
            return super()._clip_gradients(grads)
        grads = [tf.convert_to_tensor(gradient) for gradient in grads]
        squares = _squares_of_whole(grads, variables, group)
        if self.clipnorm:
            norms = [tf.sqrt(square) for square in squares]
        else:
            norms = [tf.sqrt(tf.add_n(squares))] * len(squares)
        return [
            gradient * tf.cast(by_norm / tf.maximum(norm, by_norm), gradient.dtype)
            for gradient, norm in zip(grads, norms, strict=True)
        ]

    def _variables_to_clip(self):
        raise NotImplementedError(f"{type(self).__name__} must define _variables_to_clip.")


def _squares_of_whole(gradients, variables, group):
    """Returns the sums of squares of whole gradients, the same on all members: list of float32."""
    squares = [tf.reduce_sum(tf.square(tf.cast(g, tf.float32))) for g in gradients]
    parts = [i for i, variable in enumerate(variables) if is_part(variable)]
    (totals,) = _sums([tf.stack([squares[i] for i in parts])], group, "squares")
    for i, total in zip(parts, tf.unstack(totals), strict=True):
        squares[i] = total
    return squares


def _sums(tensors, group, name):
    request = AllReduce(tensors, f"tf_onebit/model_parallel/{group.number}/{name}")
    return group.within.run([one_request(request)])[0]
