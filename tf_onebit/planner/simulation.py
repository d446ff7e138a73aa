"""A discrete simulation of training steps: buckets, overlap, stragglers, uneven links."""

import collections
import dataclasses
import heapq
import itertools

import numpy as np

from tf_onebit.planner.costs import require_positive, require_whole, require_workers

# Of a worker's time to compute that messages leave, however busy it is with them.
_LEAST_SPEED = 0.05
# What a core takes first: what others may wait for.
_EXCHANGE, _COMPUTATION = 0, 1


@dataclasses.dataclass(frozen=True)
class Simulation:
    """What `simulate` returns.

    Attributes:
        step_seconds: array `[steps]`: of the slowest worker, from the end of the step before.
        link_seconds: array `[steps]`: how long a collective was under way.
    """

    step_seconds: np.ndarray
    link_seconds: np.ndarray

    @property
    def mean_step_seconds(self):
        """Once double buffering has begun: without the first step."""
        return float(
            self.step_seconds[1:].mean() if len(self.step_seconds) > 1 else self.step_seconds[0]
        )


def simulate(workers, buckets, steps=3, delay=0, slowdowns=None):
    """Simulates training steps in which gradients are exchanged.

    Each worker has one thing to compute with, a core or all of its cores, and does what the
    exchange needs before it goes on with the backward pass. Buckets come in the order of the list,
    after parts of the backward pass in proportion to their sizes. A collective begins when all
    workers have come to it and the one before is over; it takes as long as on the worst of their
    links, and takes away from each worker what its link says. When all buckets are through, weights
    are updated, and the next step begins.

    Args:
        workers: list of `Worker`; or one and a number, `[(worker, count), ...]`, where many are
            alike: what is alike is computed once.
        buckets: list of `Bucket`; may be empty.
        steps: number of steps.
        delay: by how many steps gradients come back later (`Delayed`).
        slowdowns: array `[steps, workers]`: factors on the time that computation takes, to try
            stragglers. Then all workers are simulated.

    Returns:
        `Simulation`.

    Raises:
        ValueError: without workers or steps, for a kind of collective that a worker has no link
            for, and for slowdowns of another shape or that are not positive.

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
    """What a worker computes with: one task at a time, slower while messages are under way."""

    __slots__ = ("tasks", "remaining", "speed", "since", "version")

    def __init__(self):
        self.tasks = []  # heap of [priority, number, seconds, what to call at the end]
        self.remaining = 0.0  # of the first of them
        self.speed = 1.0
        self.since = 0.0
        self.version = 0


class _Run:
    def __init__(self, workers, buckets, steps, delay, slowdowns):
        self._workers, self._buckets = workers, buckets
        self._steps, self._delay, self._slowdowns = steps, delay, slowdowns
        self._cores = [_Core() for _ in workers]
        self._events, self._numbers = [], itertools.count()
        # How many workers are still to come to a collective, by (step, bucket, stage).
        self._missing = collections.defaultdict(lambda: len(workers))
        self._waiting, self._link_is_free = collections.deque(), True
        # By worker: how many buckets of a step are not yet through, and which step is computed.
        self._left = [collections.Counter() for _ in workers]
        self._computed = [-1] * len(workers)
        self._ends = np.zeros([steps, len(workers)])
        self._link_seconds = np.zeros(steps)
        # The slowest link decides, and that of an identical message is always the same.
        self._durations = {}

    def run(self):
        for index in range(len(self._workers)):
            self._begin_step(0.0, index, 0)
        while self._events:
            time, _, index, version, action = heapq.heappop(self._events)
            if index is None:
                action(time)
            elif self._cores[index].version == version:
                self._finish_task(time, index)
        ends = self._ends.max(axis=1)
        return Simulation(np.diff(ends, prepend=0.0), self._link_seconds)

    def _begin_step(self, time, index, step):
        if step == self._steps:
            return
        computation = self._workers[index].computation
        factor = self._slowdowns[step, index]
        self._left[index][step] = len(self._buckets)
        total = sum(bucket.size for bucket in self._buckets)

        def backward(time, number=0):
            if number == len(self._buckets):
                self._computed[index] = step
                self._update_if_due(time, index, step)
                return
            bucket = self._buckets[number]
            share = bucket.size / total if total else 1 / len(self._buckets)
            seconds = factor * computation.backward_seconds * share

            def ready(time):
                self._stage(time, index, step, number, 0)
                backward(time, number + 1)

            self._add_task(time, index, _COMPUTATION, seconds, ready)

        seconds = factor * computation.forward_seconds
        if not self._buckets:
            seconds += factor * computation.backward_seconds
        self._add_task(time, index, _COMPUTATION, seconds, backward)

    def _stage(self, time, index, step, number, stage):
        """Does the work before a collective, or after the last one."""
        bucket = self._buckets[number]
        if stage == len(bucket.collectives):

            def through(time):
                self._left[index][step] -= 1
                self._update_if_due(time, index, step + self._delay)

            self._add_task(time, index, _EXCHANGE, bucket.work_seconds, through)
            return
        key = step, number, stage

        def arrive(time):
            self._missing[key] -= 1
            if not self._missing[key]:
                self._waiting.append(key)
                self._start_collective(time)

        self._add_task(time, index, _EXCHANGE, bucket.collectives[stage].work_seconds, arrive)

    def _update_if_due(self, time, index, step):
        """Ends a step whose gradients are computed, and those it applies there."""
        applied = step - self._delay
        if self._computed[index] != step or (applied >= 0 and self._left[index][applied]):
            return
        self._computed[index] = -1
        worker = self._workers[index]
        seconds = self._slowdowns[min(step, self._steps - 1), index]
        seconds *= worker.computation.update_seconds

        def end(time):
            self._ends[step, index] = time
            self._begin_step(time, index, step + 1)

        self._add_task(time, index, _COMPUTATION, seconds, end)

    def _start_collective(self, time):
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

        def end(time):
            self._link_is_free = True
            for index in range(len(self._workers)):
                self._set_speed(time, index, 1.0)
                self._stage(time, index, step, number, stage + 1)
            self._start_collective(time)

        heapq.heappush(self._events, (time + seconds, next(self._numbers), None, 0, end))

    def _duration(self, collective):
        key = collective.kind, collective.sent_bytes
        if key not in self._durations:
            self._durations[key] = max(
                worker.link(collective.kind).seconds(collective.sent_bytes)
                for worker in self._workers
            )
        return self._durations[key]

    def _add_task(self, time, index, priority, seconds, action):
        core = self._cores[index]
        self._settle(time, core)
        if core.tasks:
            core.tasks[0][2] = core.remaining
        heapq.heappush(core.tasks, [priority, next(self._numbers), seconds, action])
        core.remaining = core.tasks[0][2]
        self._schedule(time, index)

    def _finish_task(self, time, index):
        core = self._cores[index]
        *_, action = heapq.heappop(core.tasks)
        core.since = time
        if core.tasks:
            core.remaining = core.tasks[0][2]
            self._schedule(time, index)
        else:
            core.version += 1
        action(time)

    def _set_speed(self, time, index, speed):
        core = self._cores[index]
        self._settle(time, core)
        core.speed = speed
        if core.tasks:
            self._schedule(time, index)

    def _settle(self, time, core):
        """Counts what a core has done of its task until now."""
        if core.tasks:
            core.remaining = max(0.0, core.remaining - core.speed * (time - core.since))
        core.since = time

    def _schedule(self, time, index):
        """Tells when the first task of a core will be done, if nothing comes between."""
        core = self._cores[index]
        core.version += 1
        end = time + core.remaining / core.speed
        heapq.heappush(self._events, (end, next(self._numbers), index, core.version, None))
