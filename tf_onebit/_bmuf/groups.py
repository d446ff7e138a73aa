"""Groups of processes that are one worker in blocks: of a node, or members of a split model."""

import tensorflow as tf

from tf_onebit._bmuf.values import mean_of_copies
from tf_onebit._framework_internals.tf_variables import assign_all
from tf_onebit.collectives.requests import AllGather, AllReduce, one_request


def average_within(node, variables, scope):
    """Averages variables within a node, of which only one process meets the other nodes.

    Args:
        node: `Engine` of the processes of this node.
        variables: list of variables.
        scope: prefix of the name of the collective.
    """
    if node.world_size == 1 or not variables:
        return
    values = [mean_of_copies(variable) for variable in variables]
    request = AllReduce(values, f"{scope}/within", 1 / node.world_size)
    (averages,) = node.run([one_request(request)])
    for variable, average in zip(variables, averages, strict=True):
        assign_all(variable, average)


def any_member(group, value, scope):
    """Tells whether a value is true on any member of a model-parallel group.

    Args:
        group: `Group` of this process.
        value: boolean of the members in this process.
        scope: prefix of the name of the collective.
    """
    if group.processes == 1:
        return value
    request = AllGather(tf.constant([int(value)]), f"{scope}/any_member")
    (values,) = group.within.run([one_request(request)])
    return bool(values.numpy().any())


def first_flagged(flags, weights, group):
    """Returns the first process with a flag whose worker counts, or None.

    Args:
        flags: list of flags, by process.
        weights: weights of the workers, which are groups.
        group: `Group` of this process.
    """
    return next((i for i, flag in enumerate(flags) if flag and weights[i // group.processes]), None)
