"""Times of steps and exchanges in a `fit`."""

import time
import warnings

from tf_onebit._bmuf.connections import synchronization_of
from tf_onebit._monitor.cost_warning import ExchangeCost
from tf_onebit._monitor.exchange_times import ExchangeTimes, seconds
from tf_onebit._monitor.timeline import Timeline


def built_of(exchanges):
    """Returns all that a list of `GradientExchange` has built: list of `Exchange`."""
    return [built for exchange in exchanges for built in exchange.built]


def blocks_of(exchanges):
    """Returns the block synchronizations of a list of `GradientExchange`: list."""
    return [blocks for blocks in map(synchronization_of, exchanges) if blocks is not None]


class StepTimes:
    """Times of a `fit` that the Monitor shows, and its timeline.

    Args:
        exchanges: list of `GradientExchange`, of all optimizers.
        recorder: `Recorder` that the training step is traced with.
        timeline: path of a file, or None.

    Attributes:
        batches: number of batches since `read`.
    """

    def __init__(self, exchanges, recorder, timeline):
        self.batches, self._seconds = 0, 0.0
        self._exchanges, self._recorder = exchanges, recorder
        engine = exchanges[0].workers.engine
        self._worker = engine.members[engine.ranks[0]]
        self._timeline = None if timeline is None else Timeline(timeline, self._worker)
        self._cost = ExchangeCost()
        self._is_first = True
        self._synchronized = time.monotonic_ns()  # excludes blocks of an earlier `fit`
        self._times = {}

    def begin(self, batch):
        self._first_batch, self._began = batch, time.monotonic_ns()

    def end(self, batch):
        """Ends the step, or several that Keras executes together, with this as the last batch."""
        ended = time.monotonic_ns()
        if self._is_first:  # its time includes tracing
            self._is_first = False
            self._recorder.take()
            return
        blocks = self._latest_blocks()
        if blocks and blocks[-1][0] > self._began:
            # A callback before the Monitor has ended a block, which is no part of the step.
            ended = blocks[-1][0]
        self.batches += batch - self._first_batch + 1
        self._seconds += (ended - self._began) / 1e9
        if self._timeline is not None and not self._timeline.is_full:
            self._timeline.add_step(self._began, ended, batch)

    def read(self, batches_per_update):
        """Returns the latest times: dictionary of scalars. Warns if compression does not pay.

        Args:
            batches_per_update: number of batches that gradients are accumulated over, or 1.
        """
        if self.batches:
            self._times["step/seconds"] = batches_per_update * self._seconds / self.batches
            self.batches, self._seconds = 0, 0.0
        self._read_synchronizations()
        spans = self._recorder.take()
        if self._timeline is not None:
            self._timeline.add_exchanges(spans)
            self._timeline.write()  # callbacks are not told when training ends with an error
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
        """Returns the times of the latest block synchronizations: list of (begin, end) in ns."""
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
        """Writes the timeline, unless there is no timeline or it has been written."""
        if self._timeline is not None:
            self._timeline.write()
            self._timeline = None
