"""Cores: the computation of simulated workers, one task at a time."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any

# A function of the time at which it is called.
Action = Callable[[float], None]


class _Core:
    """Core of a worker, for one task at a time, which is slower while messages are under way."""

    __slots__ = ("tasks", "remaining", "speed", "since", "version")

    def __init__(self) -> None:
        # Heap of [priority, number, seconds, function to call at the end].
        self.tasks: list[list[Any]] = []
        self.remaining = 0.0  # seconds of the first task
        self.speed = 1.0
        self.since = 0.0
        self.version = 0


class Cores:
    """Cores of all workers, and the events of a simulation in the order of time.

    Args:
        count: number of workers.
    """

    def __init__(self, count: int) -> None:
        self._cores = [_Core() for _ in range(count)]
        # Heap of the time, a number, the core and its version; or of an action without a core.
        self._events: list[tuple[float, int, int | None, int, Action | None]] = []
        self._numbers = itertools.count()

    def run(self) -> None:
        """Lets time pass until nothing is left to do."""
        while self._events:
            time, _, index, version, action = heapq.heappop(self._events)
            if action is not None:
                action(time)
            elif index is not None and self._cores[index].version == version:
                self._finish_task(time, index)

    def call_at(self, time: float, action: Action) -> None:
        """Has an action called at a time."""
        heapq.heappush(self._events, (time, next(self._numbers), None, 0, action))

    def add_task(
        self, time: float, index: int, priority: int, seconds: float, action: Action
    ) -> None:
        """Gives a core a task, at whose end an action is called.

        Args:
            time: the present time.
            index: number of the core.
            priority: tasks of smaller numbers interrupt others.
            seconds: time of the task at full speed.
            action: function of the time.
        """
        core = self._cores[index]
        self._settle(time, core)
        if core.tasks:
            core.tasks[0][2] = core.remaining
        heapq.heappush(core.tasks, [priority, next(self._numbers), seconds, action])
        core.remaining = core.tasks[0][2]
        self._schedule(time, index)

    def set_speed(self, time: float, index: int, speed: float) -> None:
        """Sets the part of its full speed with which a core works from now on."""
        core = self._cores[index]
        self._settle(time, core)
        core.speed = speed
        if core.tasks:
            self._schedule(time, index)

    def _finish_task(self, time: float, index: int) -> None:
        core = self._cores[index]
        *_, action = heapq.heappop(core.tasks)
        core.since = time
        if core.tasks:
            core.remaining = core.tasks[0][2]
            self._schedule(time, index)
        else:
            core.version += 1
        action(time)

    def _settle(self, time: float, core: _Core) -> None:
        """Subtracts from a core's task the work that is done until now."""
        if core.tasks:
            core.remaining = max(0.0, core.remaining - core.speed * (time - core.since))
        core.since = time

    def _schedule(self, time: float, index: int) -> None:
        """Schedules the end of a core's first task, for the case that nothing comes between."""
        core = self._cores[index]
        core.version += 1
        end = time + core.remaining / core.speed
        heapq.heappush(self._events, (end, next(self._numbers), index, core.version, None))
