"""Decision rules against cases that were worked out by hand."""

import math

import pytest

from tf_onebit._tuning_rules import (
    Decision,
    LearningRateControl,
    SizeSearch,
    higher_is_better,
    least_steps_of_trial,
    reduced_rate,
    sizes_to_try,
)

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("last", "min_size", "max_size", "multiple", "expected"),
    [
        # 1024 times 1/2, 0.707 (724.1 is 11.3 times 64), 1, 1.414 (1448.2: 22.6), 2.
        (1024, 64, 10**9, 64, [512, 704, 1024, 1472, 2048]),
        # 64, 90.5 (1.41 times 64), 128, 181.0 (2.83), 256.
        (128, 64, 10**9, 64, [64, 128, 192, 256]),
        # 32, 45.3 (0.71), 64, 90.5, 128: values below 64 become 64.
        (64, 64, 10**9, 64, [64, 128]),
        (1024, 64, 1500, 64, [512, 704, 1024, 1472]),
        (1024, 64, 1024, 64, [512, 704, 1024]),
        (1024, 640, 10**9, 64, [640, 704, 1024, 1472, 2048]),
        # With 3 workers in multiples of 192: 2.67, 3.77, 5.33, 7.54 of them, and 10 up to twice.
        (1024, 192, 10**9, 192, [576, 768, 960, 1536, 1920]),
        (4096, 64, 1024, 64, [1024]),
        (100, 1, 10**9, 1, [50, 71, 100, 141, 200]),
        # 100 is not a multiple: 0.78, 1.10, 1.56, 2.21, 3.13.
        (100, 64, 10**9, 64, [64, 128, 192]),
        # Halves are rounded up: 1.5, 2.12, 3, 4.24, 6 times 64.
        (192, 64, 10**9, 64, [128, 192, 256, 384]),
        # If all are larger, they are compared with the last.
        (32, 64, 10**9, 64, [32, 64]),
        (48, 64, 10**9, 64, [48, 64]),
        (300, 512, 10**9, 64, [300, 512, 576]),
    ],
)
def test_sizes_to_try(last, min_size, max_size, multiple, expected):
    assert sizes_to_try(last, min_size, max_size, multiple) == expected


@pytest.mark.parametrize(("min_size", "max_size"), [(65, 127), (0, 512), (512, 256)])
def test_range_without_a_multiple_is_refused(min_size, max_size):
    with pytest.raises(ValueError, match=f"multiple of 64.*min_size={min_size}, max_size="):
        sizes_to_try(128, min_size, max_size, 64)


@pytest.mark.parametrize(("last", "min_size"), [(8, 64), (31, 64), (200, 512)])
def test_minibatches_less_than_half_of_the_smallest_size_are_refused(last, min_size):
    with pytest.raises(ValueError, match=f"Received: minibatches of {last}, .*min_size={min_size}"):
        sizes_to_try(last, min_size, 10**9, 64)


@pytest.mark.parametrize(
    ("accumulated", "delay", "expected"),
    [(1, 0, 10), (1, 1, 11), (1, 2, 12), (8, 0, 80), (4, 1, 44)],
)
def test_trials_have_ten_updates_beyond_those_of_the_delay(accumulated, delay, expected):
    assert least_steps_of_trial(accumulated, delay) == expected


def run(search, criteria):
    """Returns the sizes that a search asks for until it ends, if trials have these results."""
    asked = []
    for criterion in criteria:
        if search.next_size is None:
            break
        asked.append(search.next_size)
        search.add(criterion)
    return asked


SIZES = [10, 20, 30, 40]


@pytest.mark.parametrize(
    ("criteria", "higher", "tried", "best", "all_failed"),
    [
        # 1 % of 2.0 is 0.02.
        ([2.0, 2.01, 2.019, 2.021], False, SIZES, 30, False),
        ([2.0, 1.0, 1.5, 2.0199], False, SIZES, 40, False),
        ([2.0, 2.03, 1.9, 1.9], False, [10, 20], 10, False),
        ([0.5, 0.496, 0.6, 0.494], True, SIZES, 30, False),
        ([0.5, 0.494, 0.6, 0.6], True, [10, 20], 10, False),
        # A criterion may be negative, like a log likelihood. Then its magnitude counts.
        ([-2.0, -2.01, -1.9, -2.03], True, SIZES, 30, False),
        ([-2.0, -1.99, -2.1, -1.97], False, SIZES, 30, False),
        ([0.0, 0.0, 0.1], False, [10, 20, 30], 20, False),
        ([1.0, 1.0, NAN, 1.0], False, [10, 20, 30], 20, False),
        ([1.0, INF], False, [10, 20], 10, False),
        ([1.0, -INF], False, [10, 20], 10, False),
        ([NAN, 1.0], False, [10], 10, True),
        ([INF, 1.0], True, [10], 10, True),
    ],
)
def test_search_takes_the_largest_size_before_the_first_failure(
    criteria, higher, tried, best, all_failed
):
    search = SizeSearch(SIZES, 0.01, higher)
    assert run(search, criteria) == tried
    assert [size for size, _ in search.trials] == tried
    assert search.best == best
    assert search.all_failed == all_failed


KEEP = Decision(keep=True, revert=False, reduce=False, stop=False)
SLOW = Decision(keep=True, revert=False, reduce=True, stop=False)
BACK = Decision(keep=False, revert=True, reduce=True, stop=False)
LAST = Decision(keep=False, revert=True, reduce=True, stop=True)


@pytest.mark.parametrize(
    ("settings", "criteria", "expected"),
    [
        # 2 % of 0.5 is 0.01, of 0.511 is 0.01022.
        (
            {"higher_is_better": True},
            [0.5, 0.511, 0.52, 0.51, 0.52, 0.54],
            [KEEP, KEEP, SLOW, BACK, SLOW, KEEP],
        ),
        ({"higher_is_better": False}, [2.0, 1.96, 1.94, 1.95, 1.8], [KEEP, KEEP, SLOW, BACK, KEEP]),
        # A value that is not finite is worse than any other, even if no other is known.
        ({"higher_is_better": False}, [NAN, 3.0, -INF, INF, 1.0], [BACK, KEEP, BACK, BACK, KEEP]),
        # A rate that has been reduced once goes on shrinking, however good the criterion is.
        (
            {"higher_is_better": True, "continue_reduce": True},
            [0.5, 0.6, 0.601, 0.7, 0.9, 0.8],
            [KEEP, KEEP, SLOW, SLOW, SLOW, BACK],
        ),
        # Two in a row: an improvement restarts the count.
        (
            {"higher_is_better": True, "patience": 2},
            [0.5, 0.4, 0.6, 0.5, 0.5],
            [KEEP, BACK, KEEP, BACK, LAST],
        ),
        ({"higher_is_better": False}, [0.0, 0.0, -1.0], [KEEP, SLOW, KEEP]),
    ],
)
def test_learning_rate_control(settings, criteria, expected):
    control = LearningRateControl(0.02, **settings)
    assert [control.decide(criterion) for criterion in criteria] == expected


@pytest.mark.parametrize(
    ("beginning", "criterion", "expected"),
    [
        (0.5, 0.6, KEEP),
        (0.5, 0.5, SLOW),
        (0.5, 0.4, BACK),
        (0.5, NAN, BACK),
        (NAN, 0.1, KEEP),
        (INF, 0.1, KEEP),
        (NAN, NAN, BACK),
    ],
)
def test_first_evaluation_is_compared_with_the_beginning(beginning, criterion, expected):
    control = LearningRateControl(0.02, higher_is_better=True)
    control.begin(beginning)
    assert control.decide(criterion) == expected


def test_best_is_the_best_criterion_so_far():
    control = LearningRateControl(0.5, higher_is_better=True)
    best = []
    for criterion in (NAN, 0.2, 0.21, 0.1, 0.5):
        control.decide(criterion)
        best.append(control.best)
    assert best == [None, 0.2, 0.21, 0.21, 0.5]


def test_learning_rate_is_reduced_to_the_least_and_never_grows():
    assert reduced_rate(1.0, 0.5, 0.1) == 0.5
    assert reduced_rate(0.15, 0.5, 0.1) == 0.1
    assert reduced_rate(0.1, 0.5, 0.1) == 0.1
    assert reduced_rate(0.05, 0.5, 0.1) == 0.05


@pytest.mark.parametrize(
    ("monitor", "mode", "expected"),
    [
        ("loss", "auto", False),
        ("val_loss", "auto", False),
        ("mean_squared_error", "auto", False),
        ("accent_loss", "auto", False),
        ("accuracy", "auto", True),
        ("auc", "auto", True),
        ("accuracy", "min", False),
        ("anything", "max", True),
    ],
)
def test_names_tell_whether_a_criterion_is_to_grow(monitor, mode, expected):
    assert higher_is_better(monitor, mode) == expected


@pytest.mark.parametrize(("monitor", "mode"), [("recall", "auto"), ("loss", "largest")])
def test_a_criterion_of_unknown_direction_is_refused(monitor, mode):
    with pytest.raises(ValueError, match="mode"):
        higher_is_better(monitor, mode)
