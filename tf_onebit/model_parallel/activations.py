"""Activations that members of a group exchange, with their gradients.

All members compute the same loss from the same data. Their gradients are those of the *sum* of
these losses over the members, each with respect to the member's own tensors. A collective then
has its adjoint as gradient: a gather sends the gradients of a part back to its member, which adds
them up (a reduce-scatter). A tensor that each member holds as a whole needs no collective where it
enters a layer. The optimizer divides by the number of members in the end.
"""

import tensorflow as tf

from tf_onebit.collectives.ordered_sum import added_in_order
from tf_onebit.collectives.requests import AllGather, AllReduce, AllToAll, one_request


def gather(part, axis, group, name):
    """Joins the members' parts of a tensor.

    Args:
        part: tensor `[..., n, ...]`, of the same shape on all members.
        axis: axis of the parts.
        group: `Group`.
        name: name of the collectives, the same on all members.

    Returns:
        The whole tensor, `[..., members * n, ...]`, on all members.
    """

    @tf.custom_gradient
    def gathered(part):
        (parts,) = group.within.run([one_request(AllGather(part[tf.newaxis], f"{name}/gather"))])
        whole = tf.concat(tf.unstack(parts, num=group.members), axis)
        shape = part.shape.as_list()
        if shape[axis] is not None:
            shape[axis] *= group.members
        return tf.ensure_shape(whole, shape), gradient

    def gradient(upstream):
        parts = tf.stack(tf.split(upstream, group.members, axis))
        request = AllToAll(parts, f"{name}/scatter")
        (received,) = group.within.run([one_request(request)])
        return added_in_order(tf.unstack(received, num=group.members))

    return gathered(part)


def add_up(term, group, name):
    """Adds up the members' tensors of one shape. All members get the sum, with the same bits."""

    @tf.custom_gradient
    def added(term):
        return _sum(term, group, f"{name}/sum"), gradient

    def gradient(upstream):
        return _sum(upstream, group, f"{name}/sum_of_gradients")

    return added(term)


def _sum(tensor, group, name):
    ((total,),) = group.within.run([one_request(AllReduce([tensor], name))])
    return total
