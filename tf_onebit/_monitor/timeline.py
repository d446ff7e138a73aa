"""A timeline of steps and exchanges, for chrome://tracing and Perfetto."""

import json
import pathlib
import time

from tf_onebit._monitor.exchange_times import work_of
from tf_onebit._training.recorder import WAITS

# A longer trace takes long to load, and few users look at more.
MOST_STEPS = 100

# The end of one span and the begin of the next are recorded in any order.
_JITTER = 100_000  # nanoseconds

_WORK = {"encode": "ENCODE", "aggregate": "AGGREGATE", "deliver": "DECODE"}
_STEPS = "steps"


class Timeline:
    """The spans of the first steps, written in the Chrome trace event format.

    A process of the trace is a worker. Its first thread shows the steps. Each bucket has a thread,
    or several where its spans overlap.

    Args:
        path: path of the file. The rank of this process is inserted before its ending.
        rank: rank of this process's first worker.
    """

    def __init__(self, path, rank):
        path = pathlib.Path(path)
        self.path = path.with_name(f"{path.stem}.{rank}{path.suffix}")
        self._rank = rank
        self._steps, self._spans = [], []
        self._end = 0
        # Monotonic clocks of machines have different origins, so the file has times since 1970.
        # The largest difference of the clocks is the best: a delay between both makes it smaller.
        self._epoch = max(time.time_ns() - time.monotonic_ns() for _ in range(5)) // 1000
        self.write()  # an error of the path shows before training begins

    @property
    def is_full(self):
        return len(self._steps) >= MOST_STEPS

    def add_step(self, begin, end, batch):
        """Adds a step, or several that Keras executes together; times of `time.monotonic_ns`."""
        self._steps.append((self._rank, _STEPS, "STEP", begin, end, {"batch": batch}))
        self._end = end

    def add_synchronizations(self, intervals):
        """Adds block synchronizations: list of (begin, end), of `time.monotonic_ns`."""
        self._spans += [(self._rank, "blocks", "SYNCHRONIZE", *one, {}) for one in intervals]

    def add_exchanges(self, spans):
        """Adds spans of a `Recorder`: dictionary from `Span` to intervals."""
        for span, intervals in work_of(spans).items():
            self._add(span, _WORK[span.stage], intervals, {})
        for span, intervals in spans.items():
            if span.part not in (None, WAITS):
                self._add(span, span.part, intervals, {"name": span.name})

    def _add(self, span, name, intervals, details):
        self._spans += [
            (span.worker, span.bucket, name, begin, end, details)
            for begin, end in intervals.tolist()
        ]

    def write(self):
        """Writes the steps and spans so far."""
        spans = [*self._steps, *(span for span in self._spans if span[3] <= self._end)]
        spans.sort(key=lambda span: (span[1] != _STEPS, *span[:2], span[3], -span[4]))
        threads, free, events = {}, {}, []
        for worker, row, name, begin, end, details in spans:
            # The span goes to the first thread of its row that is free.
            lane = next(
                n for n in range(len(spans)) if free.get((worker, row, n), 0) <= begin + _JITTER
            )
            begin = max(begin, free.get((worker, row, lane), 0))
            free[worker, row, lane] = end = max(begin, end)
            thread = threads.setdefault((worker, row, lane), len(threads))
            # Times are whole microseconds: floating-point numbers would overlap.
            times = {"ts": self._epoch + begin // 1000, "dur": end // 1000 - begin // 1000}
            place = {"pid": worker, "tid": thread}
            events.append({"name": name, "ph": "X", **place, **times, "args": details})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"traceEvents": _names(threads) + events}))


def _names(threads):
    """Returns the events that name and sort processes and threads."""
    events = []
    for (worker, row, _), thread in threads.items():
        place = {"ph": "M", "pid": worker, "tid": thread}
        events.append({"name": "process_name", **place, "args": {"name": f"rank {worker}"}})
        events.append({"name": "thread_name", **place, "args": {"name": row}})
        events.append({"name": "thread_sort_index", **place, "args": {"sort_index": thread}})
    return events
