"""The table of block synchronizations by `GradientExchange`."""

import weakref
from typing import Any

# Keys are `GradientExchange`s, which do not know of blocks.
_synchronizations: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_states: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def synchronization_of(gradient_exchange):
    """Returns the `BlockSynchronization` of the workers of a `GradientExchange`, or None."""
    return _synchronizations.get(gradient_exchange)


def connect(gradient_exchange, synchronization):
    """Sets the synchronization of a `GradientExchange`. None removes it."""
    _synchronizations.pop(gradient_exchange, None)
    if synchronization is not None:
        _synchronizations[gradient_exchange] = synchronization


def keep_states(gradient_exchange, states):
    """Keeps the states of an earlier run until a synchronization takes them.

    Args:
        gradient_exchange: `GradientExchange`.
        states: list of states, by rank; or None to keep nothing.
    """
    _states.pop(gradient_exchange, None)
    if states is not None:
        _states[gradient_exchange] = states


def take_states(gradient_exchange):
    """Returns and forgets the states of `keep_states`: list, by rank, or None."""
    return _states.pop(gradient_exchange, None)
