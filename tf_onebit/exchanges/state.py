"""State of exchanges, as dictionaries of NumPy arrays."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from tf_onebit._configurable import Configurable, serialize

State: TypeAlias = dict[str, npt.NDArray[Any]]
# Name of the number of workers that share the exchange of their node, if they do.
WORKERS_PER_NODE = "workers_per_node"


class Saved(Protocol):
    """Built exchange whose state is saved."""

    rank: int
    world_size: int

    def state(self) -> State: ...


def part_of(state: State, prefix: str) -> State:
    """Returns the entries whose names begin with a prefix, and removes the prefix."""
    prefix += "/"
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def prefixed(prefix: str, state: State) -> State:
    """Adds a prefix to each name: the inverse of `part_of`."""
    return {f"{prefix}/{name}": array for name, array in state.items()}


def has_unsent(state: State) -> bool:
    """Tells whether the state of an exchange has residuals that are not empty."""
    return any(array.size for name, array in state.items() if name.endswith("residual"))


def require_same_kind(exchange: Saved, template: Configurable, states: Sequence[State]) -> None:
    """Raises ValueError for states of another exchange, whose residuals would be lost.

    Args:
        exchange: built exchange, with `rank`, `world_size` and `state`.
        template: the user's exchange from which it was cloned.
        states: list of dictionaries, by rank.
    """
    with_as_many = len(states) == exchange.world_size
    saved, own = states[exchange.rank if with_as_many else 0], exchange.state()
    before, now = (int(state.get(WORKERS_PER_NODE, 1)) for state in (saved, own))
    if before != now:
        raise ValueError(
            'With groups="node", a run can be resumed only with as many workers on each node, '
            "because each has residuals of slices. Received: a state of nodes with "
            f"{_counted(before)}, for nodes with {_counted(now)} that share an exchange. Start as "
            "many on each node, or begin again from the model's weights."
        )
    shapes, expected = ({k: v.shape for k, v in s.items()} for s in (saved, own))
    if shapes.keys() != expected.keys() or (with_as_many and shapes != expected):
        raise ValueError(
            "A resumed run must use the same exchange as before, because its state holds "
            f"gradients that are not sent yet. Received: a state with {shapes}. Expected for "
            f"{serialize(template)}: {expected}. Use the earlier exchange, bucket_bytes, exclude, "
            "groups and optimizer, or begin again from the model's weights."
        )


def _counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def summed(dictionaries: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Adds up the values that dictionaries have under the same names.

    >>> summed([{"kernel": 1.0}, {"kernel": 2.0, "bias": 0.0}])
    {'kernel': 3.0, 'bias': 0.0}
    """
    sums: collections.Counter[str] = collections.Counter()
    for dictionary in dictionaries:
        sums.update(dictionary)
    return dict(sums)


def averaged(weighted: Iterable[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """Returns the means of the values that dictionaries have under the same names.

    Args:
        weighted: pairs of a dictionary and its weight, which is positive.

    >>> averaged([({"tau": 1.0}, 3), ({"tau": 2.0, "density": 0.5}, 1)])
    {'tau': 1.25, 'density': 0.5}
    """
    values: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
    for dictionary, weight in weighted:
        for name, value in dictionary.items():
            values[name].append((value, weight))
    return {
        name: sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)
        for name, pairs in values.items()
    }
