"""Times of exchanges, recorded in the graph."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.support.nightly import nightly
from tf_onebit import Delayed, FullPrecision, OneBit, Threshold, WarmStart, ops
from tf_onebit._measurement.exchange_work import ops_before
from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit._training.recorder import WAITS, Recorder, Span, stages_of
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.collectives.requests import AllGather
from tf_onebit.exchanges import GradientSpec
from tf_onebit.exchanges.schedule import delay_of
from tf_onebit.transforms import NormalizedAdaGrad

WORKERS, STEPS = 2, 5
SHAPES = [(64, 64), (64,), (64, 64), (64,)]
EXCHANGES = {
    "one_bit": lambda: OneBit(bucket_bytes=2**14),
    "transforms": lambda: OneBit(
        transforms=[NormalizedAdaGrad(time_constant=100, global_batch_size=2)]
    ),
    "threshold": lambda: Threshold(0.5),
    "full_precision": FullPrecision,
    "warm_start": lambda: WarmStart(OneBit(), steps=2),
    "delayed": lambda: Delayed(OneBit(bucket_bytes=2**14)),
    "warm_start_delayed": lambda: WarmStart(Delayed(OneBit()), steps=2),
}
USUAL = ("transforms", "threshold", "warm_start_delayed")
OTHERS = [name for name in EXCHANGES if name not in USUAL]
every_exchange = pytest.mark.parametrize("name", [*USUAL, *nightly(*OTHERS)])


class Job:
    """Two workers in one program that exchange random gradients."""

    def __init__(self, template, recorder=None):
        engine = LockstepEngine(["CPU:0"] * WORKERS)
        self.exchange = GradientExchange(template, engine, mean=True)
        self.exchange.record_times(recorder)
        self.variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
        self.step = self.traced()
        self._rng = np.random.default_rng(0)

    def traced(self):
        return tf.function(self._step, autograph=False)

    def _step(self, gradients):
        exchange = self.exchange
        if not delay_of(exchange.template):
            return exchange(gradients, self.variables)
        return tf.cond(
            exchange.delivers(gradients[0], self.variables),
            lambda: exchange(gradients, self.variables),
            lambda: exchange.hold(gradients, self.variables),
        )

    def gradients(self):
        of_all = [[self._rng.standard_normal(s) for s in SHAPES] for _ in range(WORKERS)]
        return [[tf.constant(g, tf.float32) for g in mine] for mine in of_all]

    def run(self, steps=STEPS):
        return [self.step(self.gradients()) for _ in range(steps)]


def arrays(results):
    return [np.asarray(tensor) for tensor in tf.nest.flatten(results)]


def op_types(function, gradients):
    """Returns how many ops of each type a traced function has, in all its branches."""
    graph = function.get_concrete_function(gradients).graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return collections.Counter(node.op for node in nodes)


@every_exchange
def test_times_are_in_order_change_no_bit_and_leave_nothing_where_none_are_taken(name, monkeypatch):
    recorded, take = [], ops.take_times

    def take_times(recorder):
        recorded.append(take(recorder))
        return recorded[-1]

    monkeypatch.setattr(ops, "take_times", take_times)
    recorder = Recorder()
    make = EXCHANGES[name]
    timed, plain = Job(make(), recorder), Job(make())
    for a, b in zip(arrays(timed.run()), arrays(plain.run()), strict=True):
        np.testing.assert_array_equal(a, b)
    spans = recorder.take()
    assert {span.worker for span in spans} == {0, 1}
    for span, intervals in spans.items():
        assert (intervals[:, 0] <= intervals[:, 1]).all(), span
        assert (intervals[1:, 0] >= intervals[:-1, 1]).all(), span
    # Otherwise some recorded times are left out.
    ((events, _),) = recorded
    assert 2 * sum(map(len, spans.values())) == len(events)
    # What is traced without a recorder has none of it.
    gradients = timed.gradients()
    assert op_types(timed.step, gradients)["TfOnebit>RecordTime"] > 0
    timed.exchange.record_times(None)
    assert op_types(timed.traced(), gradients) == op_types(plain.step, gradients)


def counts(spans, worker=0, bucket="0"):
    """Returns how often each stage, or part of one, occurs in a bucket."""
    return {
        (span.stage, span.part): len(intervals)
        for span, intervals in spans.items()
        if span.worker == worker and span.bucket.endswith(f"bucket_{bucket}")
    }


def test_stages_of_a_bucket_follow_each_other():
    recorder = Recorder()
    Job(OneBit(bucket_bytes=2**14), recorder).run()
    spans = recorder.take()
    order = [
        ("encode", None),
        ("aggregate", "ALLTOALL"),
        ("deliver", "ALLGATHER"),
    ]
    assert len({span.bucket for span in spans}) == 2
    for worker in range(WORKERS):
        for bucket in range(2):
            found = counts(spans, worker, bucket)
            assert found == dict.fromkeys([*order, ("aggregate", None), ("deliver", None)], STEPS)
            mine = [
                next(
                    spans[span]
                    for span in spans
                    if (span.worker, span.stage, span.part) == (worker, *one)
                    and span.bucket.endswith(f"bucket_{bucket}")
                )
                for one in order
            ]
            for before, after in zip(mine, mine[1:], strict=False):
                assert (before[:, 0] <= after[:, 0]).all() and (before[:, 1] <= after[:, 1]).all()


def times_before(op):
    """Returns the events that are recorded before an op runs, and by it: set."""
    ops = [op for op in ops_before([op]) if op.type == "TfOnebit>RecordTime"]
    return {op.get_attr("event") for op in ops}


def times_recorded():
    """Returns a dictionary from the events that the graph records to their ops.

    Events come in pairs, begin and end, for encoding, aggregating and its collective.
    """
    ops = tf.compat.v1.get_default_graph().get_operations()
    return {op.get_attr("event"): op for op in ops if op.type == "TfOnebit>RecordTime"}


def timed(exchange, stages_that_are_made):
    """Traces stages of an exchange of two kernels, with times."""
    specs = [GradientSpec(f"kernel{i}", (64, 64), "float32") for i in range(2)]
    exchange.build(specs, 0, WORKERS, "test")
    stages = stages_of(Recorder(), 0, "bucket_0")
    gradients = [tf.random.stateless_normal([64, 64], [1, i]) for i in range(2)]

    @tf.function(autograph=False)
    def step(gradients):
        # Without this they would be one argument, and ready together.
        stages_that_are_made(stages, [gradient + 1.0 for gradient in gradients])
        return tf.zeros([])

    step(gradients)


def aggregated(exchange, stages, gradients):
    """Traces two stages, and answers their one collective. Returns `times_recorded`."""
    stage = stages.aggregate(exchange, stages.encode(exchange, gradients))
    request = next(stage)
    with pytest.raises(StopIteration):
        stage.send(request.tensor)
    return times_recorded()


def test_no_answer_comes_before_its_stage_has_begun():
    exchange = OneBit()

    def stages_that_are_made(stages, gradients):
        times = aggregated(exchange, stages, gradients)
        assert set(times) == set(range(6))
        assert 2 in times_before(times[5])
        assert 5 in times_before(times[3])

    timed(exchange, stages_that_are_made)


def test_a_stage_ends_after_its_collectives_also_where_nothing_needs_their_answers():
    class Heedless(OneBit):
        def aggregate(self, message):
            yield from super().aggregate(message)
            return message

    exchange = Heedless()

    def stages_that_are_made(stages, gradients):
        times = aggregated(exchange, stages, gradients)
        assert times[5] in times[3].control_inputs

    timed(exchange, stages_that_are_made)


def test_what_is_sent_waits_for_no_times_of_others():
    """In full precision each gradient travels as soon as it is ready."""
    exchange = FullPrecision()

    def stages_that_are_made(stages, gradients):
        message = stages.encode(exchange, gradients)
        stage = stages.deliver(exchange, message, gradients, 0.5)
        request = next(stage)
        while isinstance(request, AllGather):  # of flags
            request = stage.send(tf.concat(WORKERS * [request.tensor], axis=0))
        for tensor, other in zip(request.tensors, reversed(gradients), strict=True):
            assert times_before(tensor.op) == set()
            assert other.op not in ops_before([tensor.op])

    timed(exchange, stages_that_are_made)


def test_branches_are_recorded_where_they_are_taken():
    recorder = Recorder()
    Job(WarmStart(OneBit(), steps=2), recorder).run()
    found = counts(recorder.take())
    assert found["encode", None] == found["deliver", None] == STEPS
    assert found["deliver", "ALLREDUCE"] == 2
    assert found["aggregate", "ALLTOALL"] == STEPS - 2


def test_collectives_of_transforms_are_recorded():
    recorder = Recorder()
    job = Job(EXCHANGES["transforms"](), recorder)
    job.run()
    # One of the two matrices may straddle the shards. Then the mean over it takes a sum.
    asked = collections.Counter(span.part for span in recorder.take() if span.part)
    assert set(asked) <= {"ALLTOALL", "ALLGATHER", "ALLREDUCE"} and asked["ALLTOALL"] == WORKERS


def test_delayed_gradients_are_held_first_and_may_wait_for_memory():
    recorder = Recorder()
    Job(Delayed(OneBit(bucket_bytes=2**14)), recorder).run()
    found = counts(recorder.take())
    assert found["encode", None] == STEPS
    assert found["hold", None] == 1
    assert found["deliver", None] == found["deliver", WAITS] == STEPS - 1


def test_a_flush_is_not_recorded():
    recorder = Recorder()
    job = Job(Delayed(OneBit()), recorder)
    job.run()
    recorder.take()
    ((index, number, variables),) = job.exchange.held()
    like = [[tf.zeros(shape) for shape in SHAPES]] * WORKERS
    job.exchange.release(index, number, like, variables)
    assert recorder.take() == {}
    job.run(1)
    assert recorder.take() != {}


def test_what_has_not_ended_is_left_out():
    recorder, span = Recorder(), Span(0, "bucket_0", "encode", None, "encode")
    for record in (recorder.begin, recorder.begin, recorder.end, recorder.begin):
        record(span, [])
    (intervals,) = recorder.take().values()
    assert len(intervals) == 1
    assert recorder.take() == {}


def test_more_than_fits_is_dropped():
    recorder, span = Recorder(), Span(0, "bucket_0", "encode", None, "encode")

    @tf.function(autograph=False)
    def steps(number):
        def step(i):
            with tf.control_dependencies([recorder.begin(span, [i])]):
                recorder.end(span, [i])
            return (i + 1,)

        return tf.while_loop(lambda i: i < number, step, [0])

    steps(2**15 + 10)
    (intervals,) = recorder.take().values()
    assert len(intervals) == 2**15
