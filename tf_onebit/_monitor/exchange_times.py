"""Times of exchanges: how long they take, and how much of it is hidden by computation."""

import dataclasses

import numpy as np

from tf_onebit._training.recorder import WAITS

_NONE = np.zeros([0, 2], np.int64)


def pieces(intervals, without=_NONE):
    """Returns the union of `intervals`, minus the union of `without`.

    Args:
        intervals, without: int64 `[number, 2]`, in any order.

    Returns:
        `[number, 2]`: intervals in order, without overlap.

    >>> pieces(np.array([[0, 4], [2, 6], [8, 9]]), np.array([[1, 3]])).tolist()
    [[0, 1], [3, 6], [8, 9]]
    """
    times = np.concatenate([*intervals.T, *without.T])
    steps = np.repeat([1, -1, 0, 0], 2 * [len(intervals)] + 2 * [len(without)])
    steps_without = np.repeat([0, 0, 1, -1], 2 * [len(intervals)] + 2 * [len(without)])
    order = np.argsort(times, kind="stable")
    inside = np.cumsum(steps[order]) > 0
    inside &= np.cumsum(steps_without[order]) == 0
    times = times[order]
    begins, ends = times[:-1][inside[:-1]], times[1:][inside[:-1]]
    is_long = ends > begins
    begins, ends = begins[is_long], ends[is_long]
    is_apart = begins[1:] > ends[:-1]
    first, last = np.append(True, is_apart), np.append(is_apart, True)
    return np.stack([begins[first[: len(begins)]], ends[last[: len(ends)]]], axis=1)


def seconds(intervals):
    """Returns the total length in seconds of intervals in nanoseconds that do not overlap."""
    return float((intervals[:, 1] - intervals[:, 0]).sum()) / 1e9


def joined(lists):
    """Concatenates arrays of intervals."""
    return np.concatenate([_NONE, *lists])


@dataclasses.dataclass(frozen=True)
class ExchangeTimes:
    """Times of one worker's exchanges, in nanoseconds: arrays of intervals that do not overlap.

    Attributes:
        updates: number of exchanges.
        gradients: `[updates]`: when the last local gradient was ready.
        under_way: intervals of `carried` or `worked`.
        visible: intervals of `under_way` in which all local gradients were ready.
        carried: intervals in which collectives were running.
        worked: intervals in which some bucket was encoded, added up or decoded, or waited for its
            turn.
    """

    updates: int
    gradients: np.ndarray
    under_way: np.ndarray
    visible: np.ndarray
    carried: np.ndarray
    worked: np.ndarray

    @classmethod
    def of(cls, spans):
        """Returns the `ExchangeTimes` of one worker's spans.

        Args:
            spans: dictionary from `Span` to intervals, as a `Recorder` has recorded them.
        """
        carried = joined(spans[span] for span in spans if span.part not in (None, WAITS))
        worked = joined(work_of(spans).values())
        under_way = pieces(np.concatenate([carried, worked]))
        encoded = _last_of_buckets(spans, ["encode"], begins=True)
        done = _last_of_buckets(spans, ["deliver", "hold"])
        updates = min(len(encoded), len(done))
        encoded, done = encoded[:updates], done[:updates]
        ends = np.maximum(encoded, _with_early_aggregates(done, spans))
        after = np.stack([encoded, ends], axis=1)
        return cls(
            updates=updates,
            gradients=encoded,
            under_way=under_way,
            visible=pieces(under_way, without=pieces(under_way, without=after)),
            carried=pieces(carried),
            worked=pieces(worked),
        )

    @property
    def hidden_share(self):
        """Share of the exchange that did not lengthen the step."""
        return 1 - seconds(self.visible) / seconds(self.under_way)


def _last_of_buckets(spans, stages, begins=False):
    """Returns when the last bucket of each exchange ended, or began, one of some stages."""
    times = {}
    for span, intervals in spans.items():
        if span.part is None and span.stage in stages:
            times.setdefault(span.bucket, []).append(intervals[:, 0 if begins else 1])
    if not times:
        return _NONE[:, 0]
    times = [np.sort(np.concatenate(of_bucket)) for of_bucket in times.values()]
    exchanges = min(map(len, times))
    return np.max([of_bucket[:exchanges] for of_bucket in times], axis=0)


def _with_early_aggregates(done, spans):
    """Extends the ends of steps by aggregates that a later step delivers."""
    done = done.copy()
    for span, intervals in spans.items():
        if span.part is None and span.stage == "aggregate":
            encoded = spans.get(span._replace(stage="encode", name="encode"), _NONE)
            # Otherwise the aggregate is of the previous step's message, and comes before encoding.
            if len(encoded) == len(intervals) and (intervals[:, 0] >= encoded[:, 0]).all():
                steps = min(len(done), len(intervals))
                done[:steps] = np.maximum(done[:steps], intervals[:steps, 1])
    return done


def work_of(spans):
    """Returns when stages work and do not wait: dictionary from a stage's `Span` to intervals."""
    collectives, waits, work = {}, {}, {}
    for span, intervals in spans.items():
        if span.part is not None:
            parts = waits if span.part == WAITS else collectives
            parts.setdefault(span[:3], []).append(intervals)
    for span, intervals in spans.items():
        if span.part is None and span.stage != "hold":
            asked, waited = (joined(parts.get(span[:3], [])) for parts in (collectives, waits))
            work[span] = pieces(intervals, np.concatenate([asked, waited]))
            if len(asked):
                work[span] = _after_answers(work[span], intervals, np.sort(asked[:, 1]))
    return work


def _after_answers(rest, stages, answers):
    """Returns the parts of `rest` that follow a collective's answer within their stage.

    A stage starts its collective as soon as it begins, so it does not work before the answer.
    """
    begins = rest[:, 0]
    latest = np.append(answers, -1)[np.searchsorted(answers, begins, side="right") - 1]
    began = stages[np.searchsorted(stages[:, 0], begins, side="right") - 1, 0]
    return rest[latest >= began]
