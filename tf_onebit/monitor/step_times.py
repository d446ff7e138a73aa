"""Times of the steps and exchanges of a `fit`."""

import time
import warnings

from tf_onebit.bmuf.connections import synchronization_of
from tf_onebit.monitor.cost_warning import ExchangeCost
from tf_onebit.monitor.exchange_times import ExchangeTimes, seconds
from tf_onebit.monitor.timeline import Timeline


def built_of(exchanges):
    """What a list of `GradientExchange` has built, together: list of `Exchange`."""
    return [built for exchange in exchanges for built in exchange.built]


def blocks_of(exchanges):
    """List of the `BlockSynchronization` among a list of `GradientExchange`."""
    return [blocks for blocks in map(synchronization_of, exchanges) if blocks is not None]


class StepTimes:
    """Adds up times of a `fit`, for the Monitor, and writes its timeline.

    Args:
        exchanges: list of `GradientExchange`, of all optimizers.
        recorder: `Recorder` of what is traced.
        timeline: path of a file, or None.

    Attributes:
        batches: number of batches since `read`.
    """

    def __init__(self, exchanges, recorder, timeline):
        self.batches, self._seconds = 0, 0.0
        self._exchanges, self._recorder = exchanges, recorder
        engine = exchanges[0].engine
        self._worker = engine.members[engine.ranks[0]]
        self._timeline = None if timeline is None else Timeline(timeline, self._worker)
        self._cost = ExchangeCost()
        self._is_first = True
        self._synchronized = time.monotonic_ns()  # blocks of a `fit` before are not its own
        self._times = {}

    def begin(self, batch):
        self._first_batch, self._began = batch, time.monotonic_ns()

    def end(self, batch):
        """Ends the step, or what Keras executes at once, whose last batch this is."""
        ended = time.monotonic_ns()
        if self._is_first:  # it has been traced
            self._is_first = False
            self._recorder.take()
            return
        blocks = self._latest_blocks()
        if blocks and blocks[-1][0] > self._began:
            ended = blocks[-1][0]  # by a callback that comes before the Monitor
        self.batches += batch - self._first_batch + 1
        self._seconds += (ended - self._began) / 1e9
        if self._timeline is not None and not self._timeline.is_full:
            self._timeline.add_step(self._began, ended, batch)

    def read(self, batches_per_update):
        """What is known by now: dictionary of scalars. Warns where compression does not pay."""
        if self.batches:
            self._times["step/seconds"] = batches_per_update * self._seconds / self.batches
            self.batches, self._seconds = 0, 0.0
        self._read_synchronizations()
        spans = self._recorder.take()
        if self._timeline is not None:
            self._timeline.add_exchanges(spans)
            self._timeline.write()  # training may end with an error, of which nobody tells
            if self._timeline.is_full:
                self._timeline = None
        times = ExchangeTimes.of({s: spans[s] for s in spans if s.worker == self._worker})
        if times.updates:
            self._times["exchange/seconds"] = seconds(times.under_way) / times.updates
            self._times["exchange/hidden_share"] = times.hidden_share
            self._times["exchange/work_seconds"] = seconds(times.worked) / times.updates
            self._judge(times)
        return dict(self._times)

    def _read_synchronizations(self):
        new = [interval for interval in self._latest_blocks() if interval[0] > self._synchronized]
        if new:
            self._synchronized = new[-1][0]
            mean_seconds = sum(end - begin for begin, end in new) / len(new) / 1e9
            self._times["exchange/synchronization_seconds"] = mean_seconds
            if self._timeline is not None:
                self._timeline.add_synchronizations(new)

    def _latest_blocks(self):
        """When the last blocks have been synchronized: list of (begin, end)."""
        blocks = blocks_of(self._exchanges)
        return blocks[0].latest if blocks else []

    def _judge(self, times):
        if self._cost is None:
            return
        built = built_of(self._exchanges)
        full_bytes = sum(exchange.full_precision_bytes() for exchange in built)
        self._cost.add(times, sum(exchange.bytes_sent() for exchange in built), full_bytes)
        if self._cost.warning is not None:
            warnings.warn(self._cost.warning, stacklevel=2)
            self._cost = None

    def write_timeline(self):
        """Writes the timeline, if there is one that has not been written."""
        if self._timeline is not None:
            self._timeline.write()
            self._timeline = None
