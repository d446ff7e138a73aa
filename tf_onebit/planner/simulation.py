"""Discrete simulation of training steps: buckets, overlap, stragglers, uneven links."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tf_onebit.planner.cores import Action, Cores
from tf_onebit.planner.costs import (
    Bucket,
    Collective,
    Worker,
    require_positive,
    require_whole,
    require_workers,
)

# A function of the time, and of what the worker does next.
_Event = Callable[[float, Action], None]
# Step, pass or bucket, and number of a collective.
_Place = tuple[int, str | int, int]

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

    Workers that belong to groups wait for each of their `activations`. All groups are taken to be
    at the same place, so that all workers wait for all.

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
        self._cores = Cores(len(workers))
        # What workers do after a collective, for those that have reached it, by its place: step,
        # pass or bucket, and number.
        self._reached: dict[_Place, list[Action]] = collections.defaultdict(list)
        # Step, collective and what follows, of the collectives that all workers have reached.
        self._waiting: collections.deque[tuple[int, Collective, list[Action]]]
        self._waiting = collections.deque()
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
        self._cores.run()
        ends = self._ends.max(axis=1)
        return Simulation(np.diff(ends, prepend=0.0), self._link_seconds)

    def _begin_step(self, time: float, index: int, step: int) -> None:
        if step == self._steps:
            return
        worker = self._workers[index]
        computation, activations = worker.computation, worker.activations
        self._left[index][step] = len(self._buckets)

        def forward(time: float) -> None:
            messages = activations.forward
            places = [(i + 1) / len(messages) for i in range(len(messages))]
            events = [
                (place, self._message((step, "forward", i), messages[i]))
                for i, place in enumerate(places)
            ]
            self._compute(time, index, step, computation.forward_seconds, events, backward)

        def backward(time: float) -> None:
            messages = activations.backward
            total = sum(bucket.size for bucket in self._buckets)
            sizes = [bucket.size if total else 1 for bucket in self._buckets]
            events = [
                (ready / sum(sizes), self._bucket(index, step, number))
                for number, ready in enumerate(itertools.accumulate(sizes))
            ]
            events += [
                (i / len(messages), self._message((step, "backward", i), message))
                for i, message in enumerate(messages)
            ]
            events.sort(key=lambda event: event[0])
            self._compute(time, index, step, computation.backward_seconds, events, computed)

        def computed(time: float) -> None:
            self._computed[index] = step
            self._update_if_due(time, index, step)

        forward(time)

    def _compute(
        self,
        time: float,
        index: int,
        step: int,
        seconds: float,
        events: Sequence[tuple[float, _Event]],
        then: Action,
    ) -> None:
        """Computes a pass, with what happens on the way.

        Args:
            time, index, step: when, which worker, and in which step.
            seconds: time of the computation.
            events: list of the part of the pass that is over before an event, and the event.
            then: what follows the pass.
        """
        seconds *= self._slowdowns[step, index]

        def go_on(time: float, number: int = 0, done: float = 0.0) -> None:
            place, event = events[number] if number < len(events) else (1.0, None)

            def there(time: float) -> None:
                if event is None:
                    then(time)
                else:
                    event(time, lambda time: go_on(time, number + 1, place))

            self._cores.add_task(time, index, _COMPUTATION, seconds * max(0.0, place - done), there)

        go_on(time)

    def _bucket(self, index: int, step: int, number: int) -> _Event:
        """Returns the event that the gradients of a bucket are ready."""

        def ready(time: float, go_on: Action) -> None:
            self._stage(time, index, step, number, 0)
            go_on(time)

        return ready

    def _message(self, place: _Place, collective: Collective) -> _Event:
        """Returns the event that a worker needs an answer before it can go on."""

        def needed(time: float, go_on: Action) -> None:
            self._reach(time, place, collective, go_on)

        return needed

    def _stage(self, time: float, index: int, step: int, number: int, stage: int) -> None:
        """Does the work before a collective, or after the last one."""
        bucket = self._buckets[number]
        if stage == len(bucket.collectives):

            def through(time: float) -> None:
                self._left[index][step] -= 1
                self._update_if_due(time, index, step + self._delay)

            self._cores.add_task(time, index, _EXCHANGE, bucket.work_seconds, through)
            return
        collective = bucket.collectives[stage]

        def go_on(time: float) -> None:
            self._stage(time, index, step, number, stage + 1)

        def arrive(time: float) -> None:
            self._reach(time, (step, number, stage), collective, go_on)

        self._cores.add_task(time, index, _EXCHANGE, collective.work_seconds, arrive)

    def _reach(self, time: float, place: _Place, collective: Collective, then: Action) -> None:
        """Counts a worker that has reached a collective, after which it does something."""
        self._reached[place].append(then)
        if len(self._reached[place]) == len(self._workers):
            self._waiting.append((place[0], collective, self._reached.pop(place)))
            self._start_collective(time)

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

        self._cores.add_task(time, index, _COMPUTATION, seconds, end)

    def _start_collective(self, time: float) -> None:
        if not self._link_is_free or not self._waiting:
            return
        step, collective, following = self._waiting.popleft()
        seconds = self._duration(collective)
        self._link_is_free = False
        self._link_seconds[step] += seconds
        for index, worker in enumerate(self._workers):
            work = worker.link(collective.kind).all_work_seconds(collective.sent_bytes)
            busy = work / seconds if seconds else 0.0
            self._cores.set_speed(time, index, max(_LEAST_SPEED, 1.0 - busy))

        def end(time: float) -> None:
            self._link_is_free = True
            for index in range(len(self._workers)):
                self._cores.set_speed(time, index, 1.0)
            for action in following:
                action(time)
            self._start_collective(time)

        self._cores.call_at(time + seconds, end)

    def _duration(self, collective: Collective) -> float:
        key = collective.kind, collective.sent_bytes
        if key not in self._durations:
            self._durations[key] = max(
                worker.link(collective.kind).seconds(collective.sent_bytes)
                for worker in self._workers
            )
        return self._durations[key]
