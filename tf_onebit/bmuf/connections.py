"""Which synchronization belongs to the optimizer of which gradients."""

import weakref

# Of `GradientExchange`s, which know nothing of blocks.
_synchronizations = weakref.WeakKeyDictionary()
_states = weakref.WeakKeyDictionary()


def synchronization_of(gradient_exchange):
    """Returns the `BlockSynchronization` of workers that train apart within a block, or None."""
    return _synchronizations.get(gradient_exchange)


def connect(gradient_exchange, synchronization):
    """Has workers that exchange gradients by this synchronize by that, or, for None, not at all."""
    _synchronizations.pop(gradient_exchange, None)
    if synchronization is not None:
        _synchronizations[gradient_exchange] = synchronization


def keep_states(gradient_exchange, states):
    """Keeps the states of an earlier run until a synchronization takes them.

    Args:
        gradient_exchange: `GradientExchange`.
        states: list, by rank; or None, for none.
    """
    _states.pop(gradient_exchange, None)
    if states is not None:
        _states[gradient_exchange] = states


def take_states(gradient_exchange):
    """Returns what `keep_states` keeps, once: list, by rank, or None."""
    return _states.pop(gradient_exchange, None)
