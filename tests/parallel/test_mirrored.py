"""`MirroredStrategy` trains several devices as one process trains on the whole batch."""

import pytest

from tests.parallel.train_mirrored import BATCH_SIZE, CASES, STEPS
from tests.support.launch import run_apart
from tests.support.nightly import nightly
from tests.support.recording import times_each

MODULE = "tests.parallel.train_mirrored"
USUAL = ("accumulated", "overwritten", "decayed", "synchronized_in_a_loop", "partly_used")
OTHERS = [name for name in CASES if name not in USUAL]


@pytest.fixture(scope="module")
def result():
    return run_apart(MODULE)


@pytest.mark.parametrize("cases", [USUAL, *nightly(OTHERS)], ids=["usual", "others"])
def test_full_precision_equals_one_device_on_the_whole_batch(cases):
    distances = run_apart(MODULE, *cases)
    assert distances == pytest.approx(dict.fromkeys(cases, 0.0), abs=1e-5)


def test_batches_that_do_not_divide_are_learned(result):
    first, last, validation = result["uneven"]
    assert last < 0.7 * first
    assert validation < first
    assert result["predictions"] < 1e-5


@pytest.mark.parametrize("data", ["arrays-1", "tf.data-2"])
@pytest.mark.parametrize("package", ["tf_onebit", "tensorflow"])
def test_devices_share_minibatches_whose_size_changes(package, data, result):
    trained, tried, steps, position = result["resized"][f"{package}-{data}"]
    assert position == 210
    assert times_each(sum(trained, []), 105) == 2
    assert len(trained) == 3 * steps  # every device has a part in every step
    assert sorted(map(len, tried)) == [3, 3, 4, 4, 4, 4, 6, 6, 6]  # 18, 11 and 11
    if data == "arrays-1":
        sizes = [sum(map(len, trained[i : i + 3])) for i in range(0, len(trained), 3)]
        # With 48 still to come, 63 samples are left. Two of their minibatches have equal parts.
        assert sizes[:4] == [6, 30, 3, 3] and sizes[4:6] == [32, 12]


def test_delayed_devices_train_as_one_with_late_gradients(result):
    assert result["late"] < 1e-5


def test_a_monitor_shows_what_devices_exchange(result):
    monitored = result["monitored"]
    assert monitored["step/learning_rate"] == [STEPS, pytest.approx(0.1)]
    assert monitored["step/global_batch_size"] == [STEPS, BATCH_SIZE]
    assert 0 < monitored["exchange/seconds"][1] < monitored["step/seconds"][1]
    assert monitored["exchange/residual_norm"][1] > 0


def test_devices_are_tuned(result):
    moved, searches, sizes, losses, criteria = result["tuned"]
    assert (moved, searches) == (0.0, 3)
    assert sizes == [12, 24]
    assert losses[1] < losses[0]
    assert criteria[-1] < criteria[0]


def test_what_cannot_work_is_refused(result):
    assert "was made outside of the scope of the MirroredStrategy" in result["outside"]
