"""ExchangeState: what a program's exchanges keep from one run to the next."""

from tf_onebit._training.auto import with_decision, without_decision
from tf_onebit.exchanges.state import part_of, prefixed

_MEMBER = "member_"


class ExchangeState:
    """State of a program's exchanges, also of those that are not built yet.

    Args:
        exchanges: `BuiltExchanges`.
        workers: `TrainingWorkers`.

    Attributes:
        decided: dictionary from the index of an exchange to the decision of `Auto` for it.
    """

    def __init__(self, exchanges, workers):
        self._exchanges, self._workers = exchanges, workers
        self._waiting, self._ratio = {}, 1.0
        self.decided = {}

    def waiting(self, index):
        """Returns the states that wait for the exchange with an index: list by rank."""
        return self._waiting.get(index, [])

    @property
    def is_empty(self):
        """True if no state waits for an exchange that is not built yet."""
        return not self._waiting

    @property
    def is_whole(self):
        """True if `states` is complete.

        After a restart with another number of workers, it is complete after the first step.
        """
        world_size = self._workers.holders.world_size
        alike = all(len(states) == world_size for states in self._waiting.values())
        return alike and (not self._waiting or self._ratio == 1.0)

    def states(self):
        """Returns the states of built exchanges, and the states that still wait for theirs.

        Returns:
            List of lists of dictionaries, by exchange and by `engine.ranks`.
        """
        built = [
            by_process([self._state_of(index, e) for e in exchanges], self._members_here)
            for index, (exchanges, _) in enumerate(self._exchanges)
        ]
        waiting = [self._waiting[index] for index in sorted(self._waiting)]
        ranks = dict.fromkeys(self._workers.holders.ranks)
        return built + [[states[rank] for rank in ranks] for states in waiting]

    @property
    def _members_here(self):
        """Number of members of a model-parallel group in this process. Each has an exchange."""
        group = self._workers.model_group
        return 1 if group is None else group.members_here

    def _state_of(self, index, exchange):
        decided = self.decided.get(index)
        state = exchange.state()
        return state if decided is None else with_decision(state, decided)

    def load(self, states, ratio):
        """Restores the states of an earlier run.

        Exchanges that the earlier run had not built are reset.

        Args:
            states: list of lists of what `Exchange.state` returned, by exchange and by rank. If
                the number of workers is the same, the states of other processes may be empty.
            ratio: factor on gradients that are not sent yet.
        """
        group = self._workers.model_group
        if group is not None:  # other members have other parts
            states = [of_ranks[group.member :: group.processes] for of_ranks in states]
        self._waiting = dict(enumerate(states))
        self._ratio = ratio
        for index, (exchanges, _) in enumerate(self._exchanges):
            if index < len(states):
                self.restore(index, exchanges)
            else:
                self._begin_anew(exchanges)

    def restore(self, index, exchanges):
        """Loads the states that wait for built exchanges, if there are any."""
        states = self._waiting.pop(index, None)
        if states is None:
            return
        engine, group = self._workers.engine, self._workers.group
        if group is not self._workers.holders:
            if len(states) != engine.world_size:
                raise ValueError(
                    "A job with groups of workers can only be resumed with as many workers as "
                    f"before. Received: a state of {len(states)} workers for {engine.world_size} "
                    "workers."
                )
            states = [states[member] for member in group.members]
        states = list(map(without_decision, states))
        members = self._members_here
        for place, exchange in enumerate(exchanges):
            own = [of_member(state, place % members, members) for state in states]
            exchange.load_state(own, self._ratio)

    def _begin_anew(self, exchanges):
        for index, old in enumerate(exchanges):
            new = old.clone()
            with self._workers.group.place(index):
                new.build(old.specs, old.rank, old.world_size, old.scope, old.unit)
            _load_own(old, new.state())

    def scale_unsent(self, ratio):
        """Multiplies pending gradients by `ratio`: residuals, and velocities of transforms.

        They then make the same update with a learning rate that is divided by `ratio`. No
        messages may be under way.
        """
        if ratio == 1.0:
            return
        self._ratio *= ratio  # for states that still wait for their exchange
        for exchange in self._exchanges.all:
            _load_own(exchange, exchange.state(), ratio)


def by_process(states, members):
    """Joins the states of the members of a group that share a process: list of dictionaries.

    Args:
        states: list of dictionaries, by process and member.
        members: number of members in a process.
    """
    if members == 1:
        return states
    joined = [{} for _ in states[::members]]
    for place, state in enumerate(states):
        joined[place // members] |= prefixed(f"{_MEMBER}{place % members}", state)
    return joined


def of_member(state, member, members):
    """Returns the state of a member from that of its process: the inverse of `by_process`."""
    return state if members == 1 else part_of(state, f"{_MEMBER}{member}")


def _load_own(exchange, state, ratio=1.0):
    """Loads a state of this worker into an exchange, without the states of other workers."""
    states = [{} for _ in range(exchange.world_size)]
    states[exchange.rank] = state
    exchange.load_state(states, ratio)
