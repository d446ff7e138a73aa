"""SavedBlocks: the state of block synchronization in backups."""

import numpy as np

from tf_onebit._bmuf.underway import Underway
from tf_onebit._training.exchange_state import by_process, of_member
from tf_onebit.exchanges.state import part_of, prefixed


class SavedBlocks:
    """The state of block synchronization, in the form of backups.

    Args:
        engine, within, model_group: see `BlockSynchronization`.
        job: `Engine` of all processes.
        replicas: list of `BlockReplica`, by worker of this process.
        fragments: list of `Fragment`.
        filtering: `BlockFiltering`.
        underway: deque of `Underway`.
    """

    def __init__(self, engine, job, replicas, fragments, filtering, underway, within, model_group):
        self._members, self._job = engine.members, job
        self._replicas, self._fragments, self._filtering = replicas, fragments, filtering
        self._underway, self._within, self._model_group = underway, within, model_group
        self._members_here = 1 if model_group is None else model_group.members_here

    def states(self, batches, turn):
        """Returns the states of this process' workers: list of dictionaries of NumPy arrays.

        Args:
            batches, turn: see `BlockSynchronization`.

        Raises:
            InvalidArgumentError: if what is under way is not finite.
        """
        states = [replica.state() for replica in self._replicas]
        for i, underway in enumerate(self._underway):
            for state, own in zip(states, underway.states(), strict=True):
                state |= prefixed(_under_way(i), own)
        states = by_process(states, self._members_here)
        own = np.array([self._filtering.warmup_left, batches, turn], np.int64)
        for state in states:
            state["blocks"] = own
        for i, fragment in enumerate(self._fragments):
            of_exchanges = fragment.exchanges.states(len(states))
            for state, sent in zip(states, of_exchanges, strict=True):
                state |= prefixed(f"fragment_{i}", fragment.state() | sent)
        return states

    def load(self, states, ranks, as_many):
        """Loads the states of an earlier run.

        Args:
            states: list of what `states` returned, by worker of that job.
            ranks: list of the ranks in the job of this process's workers.
            as_many: whether the number of workers is the same as in the earlier run. If so, each
                takes its own state, and the states of others may be empty. Otherwise all take the
                mean.

        Returns:
            The `batches` and the `turn` of the earlier run.

        Raises:
            ValueError: for a run with other settings, and for workers in groups, if their number is
                another.
        """
        if self._within is not None and not as_many:
            raise ValueError(
                "A job with groups of workers can only be resumed with as many workers as "
                f"before. Received: the states of {len(states)} workers."
            )
        self._require_same_fragments(states[ranks[0]] if as_many else states[0])
        group, peers = self._model_group, states
        if group is not None:  # other members have other parts
            peers = states[group.member :: group.processes]
        mine = [states[rank] for rank in ranks] if as_many else [peers[0]] * len(ranks)
        members = self._members_here
        parts = []
        for place, replica in enumerate(self._replicas):
            process, member = divmod(place, members)
            own = of_member(mine[process], member, members)
            others = [own] if as_many else [of_member(one, member, members) for one in peers]
            replica.load_state(own, others)
            parts.append((own, others))
        if as_many:  # of nodes each is one worker here, with the state of this process
            states = [{} for _ in range(self._job.world_size)]
            for rank, state in zip(self._job.ranks, mine, strict=True):
                states[rank] = state
        for i, fragment in enumerate(self._fragments):
            fragment.load_state(part_of(mine[0], f"fragment_{i}"))
            fragment.exchanges.load_states([part_of(one, f"fragment_{i}") for one in states])
        self._load_under_way(*map(list, zip(*parts, strict=True)), as_many)
        self._filtering.warmup_left, batches, turn = mine[0]["blocks"].tolist()
        return batches, turn

    def _require_same_fragments(self, state):
        saved = sum(name.endswith("/filter") for name in state)
        if saved != len(self._fragments):
            raise ValueError(
                "A resumed run must use the same BlockMomentum as before. Received: a state of "
                f"{saved} fragments. Expected: {len(self._fragments)}. Use the earlier fragments, "
                "or begin again from the model's weights."
            )

    def _load_under_way(self, own, others, as_many):
        """Loads what was under way, from the states of each worker and of those it averages."""
        self._underway.clear()
        variables = self._replicas[0].variables
        while part_of(own[0], name := _under_way(len(self._underway))):
            underway = Underway.of_states(
                [part_of(one, name) for one in own],
                [[part_of(one, name) for one in ones] for ones in others],
                [variables.weights[fragment.places] for fragment in self._fragments],
                variables.averaged,
                self._members,
                as_many,
            )
            self._underway.append(underway)


def _under_way(place):
    return f"under_way_{place}"
