"""Optimizers that train the weights of a model-parallel group."""

import keras

from tf_onebit._framework_internals.keras_optimizers import slots_of
from tf_onebit._shares import group_of, is_part, set_share, share_of
from tf_onebit.exchanges import Auto

# Their updates depend on norms, means or products of whole matrices.
_OF_WHOLE_MATRICES = (
    keras.optimizers.Adafactor,
    keras.optimizers.Lamb,
    keras.optimizers.Muon,
)


def follow_group(exchange, variables, user):
    """Has gradients exchanged between the groups that hold their variables, if any do.

    Args:
        exchange: `GradientExchange`.
        variables: list of variables.
        user: Keras optimizer or tape that has the exchange.

    Returns:
        The `Group` that holds the variables, or None.

    Raises:
        ValueError: if it cannot train parts of weights, or has been told to exchange with others.
    """
    group, workers = group_of(variables), exchange.workers
    if group is None or workers.model_group is group:
        return group
    name = type(user).__name__
    require_updates_of_parts(user, variables)
    require_no_auto(exchange.template, name)
    if workers.are_by_node:
        raise ValueError(
            'With groups="node" each worker exchanges slices of whole gradients, but the processes '
            f"of a split model hold parts of them. Received: {name} with a split model and "
            'groups="node". Leave groups out.'
        )
    peers = list(group.between.members)
    if workers.group is not workers.engine and list(workers.group.members) != peers:
        raise ValueError(
            "The weights of a split model are exchanged between the processes that hold the same "
            f"parts, here the ranks {peers}. Received: {name} with a process_set of the ranks "
            f"{list(workers.group.members)}. Leave process_set out."
        )
    workers.follow(group)
    return group


def require_no_auto(template, name, who="All members of a group"):
    """Raises ValueError if workers that share an exchange might decide for different ones.

    Args:
        template: the user's exchange.
        name: name of what has it.
        who: the workers, for the error.
    """
    if isinstance(template, Auto):
        raise ValueError(
            f'{who} must exchange in the same way, and exchange="auto" decides by '
            f'times that differ between them. Received: {name} with exchange="auto". Choose one, '
            "such as tf_onebit.OneBit()."
        )


def require_updates_of_parts(user, variables):
    """Raises ValueError for an optimizer that cannot update parts of weights.

    Args:
        user: Keras optimizer, or another user of an exchange.
        variables: list of the variables that it updates.
    """
    if isinstance(user, _OF_WHOLE_MATRICES) and any(map(is_part, variables)):
        raise ValueError(
            "The members of a group update their parts of a weight independently. Received: the "
            f"optimizer {type(user).__name__}, whose updates depend on the whole weight. Use one "
            "that treats each value alone, such as Adam."
        )


def mark_slots(optimizer):
    """Makes the variables that an optimizer keeps for weights parts or copies like the weights."""
    for slot, variable in slots_of(optimizer):
        set_share(slot, share_of(variable))
