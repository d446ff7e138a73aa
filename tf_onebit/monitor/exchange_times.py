"""Times of exchanges: how long they take, and how much of that is hidden."""

import dataclasses

import numpy as np

from tf_onebit.training.recorder import WAITS

_NONE = np.zeros([0, 2], np.int64)


def pieces(intervals, without=_NONE):
    """The time that is in some of `intervals` and in none of `without`.

    Args:
        intervals, without: `[number, 2]`, in any order.

    Returns:
        `[number, 2]`: in order, without overlap.

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
    """The length of intervals that do not overlap."""
    return float((intervals[:, 1] - intervals[:, 0]).sum()) / 1e9


def joined(lists):
    """One array of intervals, of several."""
    return np.concatenate([_NONE, *lists])


@dataclasses.dataclass(frozen=True)
class ExchangeTimes:
    """Times of one worker's exchanges, in nanoseconds: arrays of intervals that do not overlap.

    Attributes:
        updates: number of exchanges.
        gradients: `[updates]`: when the last local gradient was there.
        under_way: when one of the next two was going on.
        visible: the part of that in which all local gradients were there already.
        carried: when collectives were running.
        worked: when some bucket was encoded, added up or decoded, or waited for its turn.
    """

    updates: int
    gradients: np.ndarray
    under_way: np.ndarray
    visible: np.ndarray
    carried: np.ndarray
    worked: np.ndarray

    @classmethod
    def of(cls, spans):
        """Of what a `Recorder` has recorded of one worker: dictionary from `Span` to intervals."""
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
        """What part of the exchange did not lengthen the step."""
        return 1 - seconds(self.visible) / seconds(self.under_way)


def _last_of_buckets(spans, stages, begins=False):
    """When in each exchange the last bucket ended, or began, one of some stages."""
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
    """When each step was through also with what it aggregates for a later one to deliver."""
    done = done.copy()
    for span, intervals in spans.items():
        if span.part is None and span.stage == "aggregate":
            encoded = spans.get(span._replace(stage="encode", name="encode"), _NONE)
            # Else it is that of the step before, which comes first.
            if len(encoded) == len(intervals) and (intervals[:, 0] >= encoded[:, 0]).all():
                steps = min(len(done), len(intervals))
                done[:steps] = np.maximum(done[:steps], intervals[:steps, 1])
    return done


def work_of(spans):
    """What a stage does beside waiting: dictionary from the `Span` of a stage to intervals."""
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
    """Those of `rest` that follow an answer within their stage: it asks as soon as it begins."""
    begins = rest[:, 0]
    latest = np.append(answers, -1)[np.searchsorted(answers, begins, side="right") - 1]
    began = stages[np.searchsorted(stages[:, 0], begins, side="right") - 1, 0]
    return rest[latest >= began]
