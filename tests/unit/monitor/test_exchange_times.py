"""The use of the times of exchanges: figures, a warning, and a timeline."""

import json
import time

import numpy as np
import pytest

from tf_onebit._monitor.cost_warning import ExchangeCost
from tf_onebit._monitor.exchange_times import ExchangeTimes, pieces, seconds
from tf_onebit._monitor.timeline import MOST_STEPS, Timeline
from tf_onebit._training.recorder import WAITS, Span

MS = 1_000_000  # nanoseconds
START = time.monotonic_ns() // MS * MS


def spans_of(stages, worker=0):
    """Returns spans from a list of (bucket, stage, part, *(begin, end) in milliseconds)."""
    return {
        Span(worker, bucket, stage, part, f"{bucket}/{part}" if part else stage): np.array(
            [[START + round(time * MS) for time in interval] for interval in intervals]
        )
        for bucket, stage, part, *intervals in stages
    }


# Two buckets in one step. The second comes while the first is on its way.
STEP = [
    ("bucket_0", "encode", None, (10, 11)),
    ("bucket_0", "aggregate", None, (11, 15)),
    ("bucket_0", "aggregate", "ALLTOALL", (11.01, 14)),
    ("bucket_0", "deliver", None, (15, 20)),
    ("bucket_0", "deliver", "ALLGATHER", (15.02, 18)),
    ("bucket_1", "encode", None, (14, 16)),
    ("bucket_1", "deliver", None, (16, 26)),
    ("bucket_1", "deliver", "ALLGATHER", (16, 24)),
]


def test_time_in_some_and_not_in_others():
    intervals = np.array([[5, 7], [0, 2], [1, 3], [9, 9]])
    assert pieces(intervals).tolist() == [[0, 3], [5, 7]]
    assert pieces(intervals, np.array([[2, 6], [10, 11]])).tolist() == [[0, 2], [6, 7]]
    assert pieces(intervals[:0]).tolist() == []


def test_an_exchange_is_hidden_until_the_last_local_gradient_is_there():
    times = ExchangeTimes.of(spans_of(STEP))
    assert times.updates == 1
    assert seconds(times.under_way) == pytest.approx(0.016, abs=1e-4)  # from 10 to 26
    assert times.hidden_share == pytest.approx(4 / 16, abs=1e-2)  # from 10 to 14
    assert seconds(times.carried) == pytest.approx(0.012, abs=1e-4)  # 11 to 14, 15 to 24
    assert seconds(times.worked) == pytest.approx(0.007)  # 10, 14 and 15, 18 and 19, 24 and 25


def test_several_steps_are_taken_apart():
    later = [(*stage[:3], *((b + 40, e + 40) for b, e in stage[3:])) for stage in STEP]
    both = [(*one, *other[3:]) for one, other in zip(STEP, later, strict=True)]
    one, two = (ExchangeTimes.of(spans_of(stages)) for stages in (STEP, both))
    assert two.updates == 2
    assert seconds(two.under_way) == 2 * seconds(one.under_way)
    assert two.hidden_share == pytest.approx(one.hidden_share)


def test_delayed_gradients_are_hidden_also_where_they_wait():
    times = ExchangeTimes.of(
        spans_of(
            [
                ("bucket_0", "encode", None, (10, 11), (50, 51)),
                ("bucket_0", "hold", None, (11, 11)),
                ("bucket_0", "aggregate", None, (40, 45)),
                ("bucket_0", "aggregate", "ALLTOALL", (40, 44)),
                ("bucket_0", "deliver", None, (45, 54)),
                ("bucket_0", "deliver", "ALLGATHER", (45, 47)),
                ("bucket_0", "deliver", WAITS, (45, 52)),
            ]
        )
    )
    assert times.updates == 2
    # 10 to 11, 40 to 47, 50 to 51 and 52 to 54. Of these, 10 to 11 and all after 50 are visible.
    assert seconds(times.under_way) == pytest.approx(0.011)
    assert times.hidden_share == pytest.approx(7 / 11)


def test_what_a_step_aggregates_for_the_next_shows():
    times = ExchangeTimes.of(
        spans_of(
            [
                ("bucket_0", "encode", None, (10, 11), (50, 51)),
                ("bucket_0", "hold", None, (11, 11)),
                ("bucket_0", "aggregate", None, (11, 15), (51, 60)),
                ("bucket_0", "aggregate", "ALLTOALL", (11, 14), (51, 58)),
                ("bucket_0", "deliver", None, (45, 54)),
                ("bucket_0", "deliver", "ALLGATHER", (45, 47)),
                ("bucket_0", "deliver", WAITS, (45, 52)),
            ]
        )
    )
    # 10 to 15, 45 to 47 and 50 to 60. Messages under way from 45 on are hidden.
    assert times.hidden_share == pytest.approx(2 / 17)


def test_nothing_is_known_of_no_exchange():
    assert ExchangeTimes.of({}).updates == 0


def cost_of(sent_bytes, full_bytes, readings=3):
    cost = ExchangeCost()
    for _ in range(readings):
        cost.add(ExchangeTimes.of(spans_of(STEP)), sent_bytes, full_bytes)
    return cost


def test_compression_that_costs_more_than_it_saves_is_told():
    # 12 kB in 12 ms of collectives; 7 ms of work.
    warning = cost_of(12_000, 18_000).warning
    assert "Compression does not pay. Per step it takes 7 ms to encode" in warning
    assert "The 0.006 MB that it saves would take 5.98 ms, at the measured 1 MB/s" in warning
    assert "Use tf_onebit.FullPrecision()" in warning
    # 19 ms in all. Less than a tenth faster does not pay either.
    assert cost_of(12_000, 20_500).warning is not None
    assert cost_of(12_000, 21_500).warning is None


def test_what_sends_more_than_full_precision_saves_nothing():
    assert "The 0 MB that it saves would take 0 ms" in cost_of(26_000, 13_000).warning


@pytest.mark.parametrize(
    "cost",
    [
        lambda: cost_of(13_000, 13_000),
        lambda: cost_of(13_004, 13_000),
        lambda: cost_of(0, 13_000),
        lambda: cost_of(13_000, 14_000, readings=2),
    ],
    ids=["full precision", "with flags", "one worker", "two readings"],
)
def test_without_compression_or_enough_readings_nothing_is_told(cost):
    assert cost().warning is None


def written(timeline):
    timeline.write()
    events = json.loads(timeline.path.read_text())["traceEvents"]
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    spans = [event for event in events if event["ph"] == "X"]
    return [
        (e["pid"], threads[e["pid"], e["tid"]], e["name"], e["ts"] - spans[0]["ts"], e["dur"])
        for e in spans
    ]


def test_timeline_has_steps_and_what_each_bucket_does(tmp_path):
    timeline = Timeline(tmp_path / "new" / "trace.json", rank=3)
    timeline.add_step(START, START + 30 * MS, 0)
    timeline.add_exchanges(spans_of(STEP, worker=3))
    events = written(timeline)
    assert timeline.path == tmp_path / "new" / "trace.3.json"
    assert events[0] == (3, "steps", "STEP", 0, 30_000)
    assert [e for e in events if e[1] == "bucket_0"] == [
        (3, "bucket_0", "ENCODE", 10_000, 1_000),
        (3, "bucket_0", "ALLTOALL", 11_010, 2_990),
        (3, "bucket_0", "AGGREGATE", 14_000, 1_000),
        (3, "bucket_0", "ALLGATHER", 15_020, 2_980),
        (3, "bucket_0", "DECODE", 18_000, 2_000),
    ]
    assert [e[2] for e in events if e[1] == "bucket_1"] == ["ENCODE", "ALLGATHER", "DECODE"]


def test_what_overlaps_has_threads_of_its_own(tmp_path):
    timeline = Timeline(tmp_path / "trace.json", rank=0)
    timeline.add_step(START, START + 30 * MS, 0)
    overlapping = [
        ("bucket_0", "encode", None, (0, 10)),
        ("bucket_0", "deliver", "ALLGATHER", (5, 15)),
        ("bucket_0", "deliver", "ALLREDUCE", (9.99, 20)),
    ]
    timeline.add_exchanges(spans_of(overlapping))
    written(timeline)
    events = json.loads(timeline.path.read_text())["traceEvents"]
    threads = {event["name"]: event["tid"] for event in events if event["ph"] == "X"}
    assert threads["ENCODE"] == threads["ALLREDUCE"] != threads["ALLGATHER"]


def test_timeline_ends_with_its_last_step(tmp_path):
    timeline = Timeline(tmp_path / "trace.json", rank=0)
    timeline.add_synchronizations([(START + 5 * MS, START + 6 * MS)])
    timeline.add_exchanges(spans_of([("bucket_0", "encode", None, (10, 11), (900, 901))]))
    for step in range(MOST_STEPS):
        assert not timeline.is_full
        timeline.add_step(START + step * MS, START + (step + 1) * MS, step)
    assert timeline.is_full
    events = written(timeline)
    assert (0, "blocks", "SYNCHRONIZE", 5_000, 1_000) in events
    assert [e[3] for e in events if e[2] == "ENCODE"] == [10_000]
