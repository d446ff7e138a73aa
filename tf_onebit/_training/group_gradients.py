"""Gradients of variables that the members of a model-parallel group hold together."""

import tensorflow as tf

from tf_onebit._shares import is_part, share_of
from tf_onebit.collectives.requests import AllReduce, one_request
from tf_onebit.exchanges.gradients import scaled, values_of, with_values


def mean_over_members(gradients, variables, group):
    """Returns the gradients of the mean of the members' losses, which are all the same.

    Each member has computed the gradient of their sum with respect to its own variables. Members
    that hold copies of a variable have computed the terms of its gradient.

    Args:
        gradients: list of gradients or None.
        variables: list of their variables.
        group: `Group` of this member.

    Returns:
        List like `gradients`. Those of copies have the same bits on all members.
    """
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


def clipped_by_whole(gradients, variables, group, optimizer, clip):
    """Clips gradients as a Keras optimizer does, by the norms of whole weights.

    Args:
        gradients: list of gradients.
        variables: list of their variables.
        group: `Group` of this member.
        optimizer: Keras optimizer.
        clip: its own function to clip a list of gradients.
    """
    by_norm = optimizer.clipnorm or optimizer.global_clipnorm
    if not by_norm or not any(map(is_part, variables)):
        return clip(gradients)
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    squares = _squares_of_whole(gradients, variables, group)
    if optimizer.clipnorm:
        norms = [tf.sqrt(square) for square in squares]
    else:
        norms = [tf.sqrt(tf.add_n(squares))] * len(squares)
    return [
        gradient * tf.cast(by_norm / tf.maximum(norm, by_norm), gradient.dtype)
        for gradient, norm in zip(gradients, norms, strict=True)
    ]


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
