"""Discrete simulation of training steps: buckets, overlap, stragglers, uneven links."""

import collections
import dataclasses
import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_onebit.planner.costs import (
    Bucket,
    Collective,
    Worker,
    require_positive,
    require_whole,
    require_workers,
)

# A function of the time at which it is called.
_Action = Callable[[float], None]

# Least part of a worker's computing speed that messages leave.
_LEAST_SPEED = 0.05
# Priorities of a core's tasks: other workers may wait for the exchange, so it goes first.
_EXCHANGE, _COMPUTATION = 0, 1


@dataclasses.dataclass(frozen=True)
class Simulation:
    """Result of `simulate`.

    Attributes:
        step_seconds: array `[steps]`: time of the slowest worker, from the end of the step before.
        link_seconds: array `[steps]`: time while a collective was under way.
    """

    step_seconds: npt.NDArray[np.float64]
    link_seconds: npt.NDArray[np.float64]

    @property
    def mean_step_seconds(self) -> float:
        """Mean time of a step after the first, when double buffering has begun."""
        return float(
            self.step_seconds[1:].mean() if len(self.step_seconds) > 1 else self.step_seconds[0]
        )


def simulate(
    workers: Sequence[Worker | tuple[Worker, int]],
    buckets: Sequence[Bucket],
    steps: int = 3,
    delay: int = 0,
    slowdowns: npt.ArrayLike | None = None,
) -> Simulation:
    """Simulates training steps in which gradients are exchanged.

    Each worker does one task at a time, with one core or with all of its cores. Work for the
    exchange goes before the backward pass. Buckets become ready in the order of the list, after
    parts of the backward pass that are proportional to their sizes.

    A collective begins when all workers have reached it and the one before has ended. It takes as
    long as on the slowest of their links. Meanwhile it takes computing time from each worker, as
    the worker's link says. When all buckets are exchanged, weights are updated, and the next step
    begins.

    Args:
        workers: list of `Worker`, or of pairs `(worker, count)` for workers that are alike, which
            are computed once.
        buckets: list of `Bucket`; may be empty.
        steps: number of steps.
        delay: number of steps by which gradients come back later (`Delayed`).
        slowdowns: array `[steps, workers]`: factors on the time of computation, to try
            stragglers. With them, every worker is computed.

    Returns:
        `Simulation`.

    Raises:
        ValueError: without workers or steps; for a kind of collective without a link; for
            slowdowns that have another shape or are not positive.

    Example:
        >>> from tf_onebit.planner import Bucket, Collective, Computation, Link, Worker, simulate
        >>> gigabit = {"all_reduce": Link(1e-3, 125e6)}
        >>> worker = Worker(Computation(0.1, 0.2), gigabit)
        >>> bucket = Bucket(5e6, (Collective(0.0, "all_reduce", 20e6),))
        >>> round(simulate([(worker, 2)], [bucket, bucket]).mean_step_seconds, 3)
        0.522
    """
    groups = [entry if isinstance(entry, tuple) else (entry, 1) for entry in workers]
    if not groups:
        raise ValueError(f"A job needs at least one worker. Received: workers={workers!r}.")
    for _, count in groups:
        require_workers(count)
    require_whole("steps", steps, 1)
    require_whole("delay", delay, 0)
    if slowdowns is None:
        simulated = [worker for worker, _ in groups]
        slowdowns = np.ones([steps, len(simulated)])
    else:
        simulated = [worker for worker, count in groups for _ in range(count)]
        slowdowns = np.asarray(slowdowns, float)
        if slowdowns.shape != (steps, len(simulated)):
            raise ValueError(
                "slowdowns must have one factor for each step and worker, "
                f"[{steps}, {len(simulated)}]. Received: an array of shape {slowdowns.shape}."
            )
        for factor in (slowdowns.min(), slowdowns.max()):
            require_positive("slowdowns", float(factor))
    return _Run(simulated, buckets, steps, delay, slowdowns).run()


class _Core:
    """Core of a worker, for one task at a time, which is slower while messages are under way."""

    __slots__ = ("tasks", "remaining", "speed", "since", "version")

    def __init__(self) -> None:
        self.tasks: list[
            list[Any]
        ] = []  # heap of [priority, number, seconds, function to call at the end]
        self.remaining = 0.0  # seconds of the first task
        self.speed = 1.0
        self.since = 0.0
        self.version = 0


class _Run:
    def __init__(
        self,
        workers: Sequence[Worker],
        buckets: Sequence[Bucket],
        steps: int,
        delay: int,
        slowdowns: npt.NDArray[np.float64],
    ) -> None:
        self._workers, self._buckets = workers, buckets
        self._steps, self._delay, self._slowdowns = steps, delay, slowdowns
        self._cores = [_Core() for _ in workers]
        # Heap of the time, a number, the core and its version; or of an action without a core.
        self._events: list[tuple[float, int, int | None, int, _Action | None]] = []
        self._numbers = itertools.count()
        # Number of workers that have not reached a collective yet, by (step, bucket, stage).
        self._missing: dict[tuple[int, int, int], int]
        self._missing = collections.defaultdict(lambda: len(workers))
        self._waiting: collections.deque[tuple[int, int, int]] = collections.deque()
        self._link_is_free = True
        # By worker: number of unfinished buckets by step, and the step whose gradients are ready.
        self._left: list[collections.Counter[int]] = [collections.Counter() for _ in workers]
        self._computed = [-1] * len(workers)
        self._ends = np.zeros([steps, len(workers)])
        self._link_seconds = np.zeros(steps)
        # Times by message: the slowest link decides, which is the same for identical messages.
        self._durations: dict[tuple[str, float], float] = {}

    def run(self) -> Simulation:
        for worker in range(len(self._workers)):
            self._begin_step(0.0, worker, 0)
        while self._events:
            time, _, index, version, action = heapq.heappop(self._events)
            if action is not None:
                action(time)
            elif index is not None and self._cores[index].version == version:
                self._finish_task(time, index)
        ends = self._ends.max(axis=1)
        return Simulation(np.diff(ends, prepend=0.0), self._link_seconds)

    def _begin_step(self, time: float, index: int, step: int) -> None:
        if step == self._steps:
            return
        computation = self._workers[index].computation
        factor = self._slowdowns[step, index]
        self._left[index][step] = len(self._buckets)
        total = sum(bucket.size for bucket in self._buckets)

        def backward(time: float, number: int = 0) -> None:
            if number == len(self._buckets):
                self._computed[index] = step
                self._update_if_due(time, index, step)
                return
            bucket = self._buckets[number]
            share = bucket.size / total if total else 1 / len(self._buckets)
            seconds = factor * computation.backward_seconds * share

            def ready(time: float) -> None:
                self._stage(time, index, step, number, 0)
                backward(time, number + 1)

            self._add_task(time, index, _COMPUTATION, seconds, ready)

        seconds = factor * computation.forward_seconds
        if not self._buckets:
            seconds += factor * computation.backward_seconds
        self._add_task(time, index, _COMPUTATION, seconds, backward)

    def _stage(self, time: float, index: int, step: int, number: int, stage: int) -> None:
        """Does the work before a collective, or after the last one."""
        bucket = self._buckets[number]
        if stage == len(bucket.collectives):

            def through(time: float) -> None:
                self._left[index][step] -= 1
                self._update_if_due(time, index, step + self._delay)

            self._add_task(time, index, _EXCHANGE, bucket.work_seconds, through)
            return
        key = step, number, stage

        def arrive(time: float) -> None:
            self._missing[key] -= 1
            if not self._missing[key]:
                self._waiting.append(key)
                self._start_collective(time)

        self._add_task(time, index, _EXCHANGE, bucket.collectives[stage].work_seconds, arrive)

    def _update_if_due(self, time: float, index: int, step: int) -> None:
        """Ends a step if its gradients are computed and the gradients that it applies are there."""
        applied = step - self._delay
        if self._computed[index] != step or (applied >= 0 and self._left[index][applied]):
            return
        self._computed[index] = -1
        worker = self._workers[index]
        seconds = self._slowdowns[min(step, self._steps - 1), index]
        seconds *= worker.computation.update_seconds

        def end(time: float) -> None:
            self._ends[step, index] = time
            self._begin_step(time, index, step + 1)

        self._add_task(time, index, _COMPUTATION, seconds, end)

    def _start_collective(self, time: float) -> None:
        if not self._link_is_free or not self._waiting:
            return
        step, number, stage = self._waiting.popleft()
        collective = self._buckets[number].collectives[stage]
        seconds = self._duration(collective)
        self._link_is_free = False
        self._link_seconds[step] += seconds
        for index, worker in enumerate(self._workers):
            work = worker.link(collective.kind).all_work_seconds(collective.sent_bytes)
            busy = work / seconds if seconds else 0.0
            self._set_speed(time, index, max(_LEAST_SPEED, 1.0 - busy))

        def end(time: float) -> None:
            self._link_is_free = True
            for index in range(len(self._workers)):
                self._set_speed(time, index, 1.0)
                self._stage(time, index, step, number, stage + 1)
            self._start_collective(time)

        heapq.heappush(self._events, (time + seconds, next(self._numbers), None, 0, end))

    def _duration(self, collective: Collective) -> float:
        key = collective.kind, collective.sent_bytes
        if key not in self._durations:
            self._durations[key] = max(
                worker.link(collective.kind).seconds(collective.sent_bytes)
                for worker in self._workers
            )
        return self._durations[key]

    def _add_task(
        self, time: float, index: int, priority: int, seconds: float, action: _Action
    ) -> None:
        core = self._cores[index]
        self._settle(time, core)
        if core.tasks:
            core.tasks[0][2] = core.remaining
        heapq.heappush(core.tasks, [priority, next(self._numbers), seconds, action])
        core.remaining = core.tasks[0][2]
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

    def _set_speed(self, time: float, index: int, speed: float) -> None:
        core = self._cores[index]
        self._settle(time, core)
        core.speed = speed
        if core.tasks:
            self._schedule(time, index)

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
