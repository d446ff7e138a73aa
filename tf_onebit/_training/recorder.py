"""Recorder: times at which the stages and collectives of exchanges begin and end, in a graph."""

import itertools
import typing

import numpy as np
import tensorflow as tf

from tf_onebit import ops
from tf_onebit._framework_internals.tf_variables import plain_variables
from tf_onebit.collectives.requests import AllGather, AllReduce, AllToAll, map_requests, tensors_of
from tf_onebit.exchanges.stages import Stages

# Names in Horovod's timeline.
WAITS = "WAIT_FOR_DATA"
_COLLECTIVES = {AllToAll: "ALLTOALL", AllGather: "ALLGATHER", AllReduce: "ALLREDUCE"}

_numbers = itertools.count()


class Span(typing.NamedTuple):
    """Interval that begins and ends once in the exchange of a bucket.

    Attributes:
        worker: rank among all workers of the job.
        bucket: scope of the bucket.
        stage: "encode", "aggregate", "deliver" or "hold". "hold" marks a step that returns no
            gradients, and has no length.
        part: None for the whole stage; the kind of a collective ("ALLTOALL" and so on); or
            `WAITS`, for the memory of delayed gradients.
        name: name of the collective or the stage.
    """

    worker: int
    bucket: str
    stage: str
    part: str | None
    name: str


class Recorder:
    """Recorder of times in graphs. It keeps them until `take` is called."""

    def __init__(self):
        self._number = next(_numbers)
        self._places = {}

    def begin(self, span, tensors):
        """Records that a span begins when `tensors` are ready. Returns the operation."""
        return self._record(span, 0, tensors)

    def end(self, span, tensors):
        """Records that a span ends when `tensors` are ready. Returns the operation."""
        return self._record(span, 1, tensors)

    def _record(self, span, side, tensors):
        if span not in self._places:
            # Each span has its own token: ops with a common token would wait for each other.
            with tf.init_scope(), plain_variables("CPU:0"):
                token = tf.Variable(0.0, trainable=False)
            self._places[span] = len(self._places), token
        place, token = self._places[span]
        with tf.control_dependencies(_awaitable(tensors)):
            return ops.record_time(token, self._number, 2 * place + side)

    def take(self):
        """Returns the times recorded since the last call, and forgets them.

        Returns:
            Dictionary from `Span` to int64 `[number, 2]`: begin and end of each interval, in
            nanoseconds of `time.monotonic_ns`.
        """
        events, times = (tensor.numpy() for tensor in ops.take_times(self._number))
        taken = {}
        for span, (place, _) in self._places.items():
            begins, ends = times[events == 2 * place], times[events == 2 * place + 1]
            # A step that fails or runs out of data may begin a span without an end.
            after = np.searchsorted(ends, begins)
            until = np.append(begins[1:], np.iinfo(np.int64).max)
            ends = np.append(ends, until[-1:])[after]
            taken[span] = np.stack([begins, ends], axis=1)[ends < until]
        return {span: intervals for span, intervals in taken.items() if len(intervals)}


def stages_of(recorder, worker, bucket):
    """Returns the `Stages` of a worker's bucket. A `Recorder`, if given, records their times."""
    return Stages() if recorder is None else _TimedStages(recorder, worker, bucket)


class _TimedStages(Stages):
    def __init__(self, recorder, worker, bucket):
        self._recorder = recorder
        self._worker, self._bucket = worker, bucket
        self._encoded = None

    def encode(self, exchange, gradients):
        self._encoded = gradients
        span = self._span("encode")
        begun = self._recorder.begin(span, gradients)
        # TensorFlow takes the encoding op for cheap, and would run it before the time is recorded.
        with tf.control_dependencies([begun]):
            message = super().encode(exchange, gradients)
        self._recorder.end(span, message)
        return message

    def aggregate(self, exchange, message):
        generator = super().aggregate(exchange, message)
        try:
            request = next(generator)
        except StopIteration as stop:
            return stop.value  # a stage without collectives is not recorded
        return (yield from self._timed("aggregate", _resumed(generator, request), message))

    def deliver(self, exchange, message, like, scale, decodes=True):
        if like is not self._encoded:  # a message of an earlier step
            waits = self._span("deliver", WAITS)
            self._recorder.begin(waits, message)
            self._recorder.end(waits, [message, like])
        generator = super().deliver(exchange, message, like, scale, decodes)
        return self._timed("deliver", generator, message)

    def hold(self, message):
        span = self._span("hold")
        self._recorder.begin(span, message)
        self._recorder.end(span, message)

    def _span(self, stage, part=None, name=None):
        return Span(self._worker, self._bucket, stage, part, name or stage)

    def _timed(self, stage, generator, message):
        answers = []

        def asking(request):
            span = self._span(stage, _COLLECTIVES[type(request)], request.name)
            self._recorder.begin(span, tensors_of(request))
            answer = yield request
            # On busy cores the answer may come before the begin of the stage is recorded.
            answered = self._recorder.end(span, [begun, answer])
            answers.append(answered)
            # If all threads are in use, ops that need the answer could run before its time is
            # recorded.
            with tf.control_dependencies([answered]):
                return tf.nest.map_structure(tf.identity, answer)

        span = self._span(stage)
        with tf.control_dependencies([self._recorder.begin(span, message)]), tf.device("CPU:0"):
            begun = tf.zeros([])  # a tensor, because branches cannot wait for an operation
        result = yield from map_requests(generator, asking)
        # Wait for all answers: unused ones, or ones that TensorFlow optimizes away, could be later.
        self._recorder.end(span, [result, answers])
        return result


def _resumed(generator, request):
    """Generator: continues another generator whose first request is not answered yet."""
    while True:
        answer = yield request
        try:
            request = generator.send(answer)
        except StopIteration as stop:
            return stop.value


def _awaitable(things):
    """Returns tensors and operations of this graph that control dependencies can wait for."""
    things = tf.nest.flatten(things, expand_composites=True)
    if tf.executing_eagerly():
        return things
    graph = tf.compat.v1.get_default_graph()
    # In a branch, `identity` brings tensors of the outer graph in. Operations of other graphs are
    # left out: the outer graph waits for what a branch returns.
    return [
        thing if thing.graph is graph else tf.identity(thing)
        for thing in things
        if thing.graph is graph or not isinstance(thing, tf.Operation)
    ]
