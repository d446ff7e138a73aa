"""The oracle against examples that were worked out by hand."""

import numpy as np
import pytest

from tests.reference import one_bit, threshold


def test_levels_are_the_means_of_either_side():
    codes, reconstruction = one_bit.quantize([4.0, -1.0, 0.0, -5.0])
    assert codes.tolist() == [True, False, True, False]
    assert reconstruction.tolist() == [2.0, -3.0, 2.0, -3.0]


def test_symmetric_levels_are_the_mean_and_the_mean_deviation():
    codes, reconstruction = one_bit.quantize([1.0, 2.0, 3.0, 6.0], levels="symmetric")
    assert codes.tolist() == [False, False, True, True]
    assert reconstruction.tolist() == [1.5, 1.5, 4.5, 4.5]


def test_quantization_error_is_added_to_the_next_gradient():
    quantizer = one_bit.Quantizer([slice(0, 2)], size=2)
    assert quantizer([1.0, 3.0]).tolist() == [2.0, 2.0]
    # Corrected: 1 - 1 and -4 + 1.
    assert quantizer([1.0, -4.0]).tolist() == [0.0, -3.0]


def test_sum_over_workers_is_quantized_a_second_time():
    cluster = one_bit.Cluster(2, [slice(0, 2)], size=2)
    assert cluster.exchange([[1.0, -2.0], [3.0, 4.0]]).tolist() == [3.0, 3.0]
    # The first quantizations sent [1, -2] and [3.5, 3.5]. The second kept the difference to 3.
    assert cluster.owners.residual.tolist() == [1.5, -1.5]


@pytest.mark.parametrize("shape", [(1, 1), (31, 5), (3, 3, 16, 24), (5, 930), (7, 100)])
def test_columns_cover_every_value_once(shape):
    covered = np.zeros(np.prod(shape), int)
    for column in one_bit.columns_of(shape, min_column_size=64, max_column_size=128):
        covered[column] += 1
    assert (covered == 1).all()


def test_values_above_the_threshold_are_sent_and_subtracted():
    corrected = np.array([0.5, 1.5, -1.0, -3.0, 1.0])
    message, residual, exceeding = threshold.encode(corrected, 1.0)
    assert (message, exceeding) == ([(1, 1), (3, -1)], 2)
    assert residual.tolist() == [0.5, 0.5, -1.0, -2.0, 1.0]


def test_values_beyond_the_capacity_wait():
    message, residual, exceeding = threshold.encode(np.array([-2.0, 0.0, 2.0, 2.0]), 1.5, 2)
    assert (message, exceeding) == ([(0, -1), (2, 1)], 3)
    assert residual.tolist() == [-0.5, 0.0, 0.5, 2.0]


def test_residuals_of_the_threshold_are_added_to_the_next_gradients():
    cluster = threshold.Cluster(2, size=2)
    assert cluster.exchange([np.array([3.0, 0.75]), np.array([1.5, -0.5])], 1.0).tolist() == [2, 0]
    # Corrected: 2 + 0 and 0.75 + 0.5; 0.5 - 2 and -0.5 - 1.
    gradients = [np.array([0.0, 0.5]), np.array([-2.0, -1.0])]
    assert cluster.exchange(gradients, 1.0).tolist() == [0.0, 0.0]
    assert [residual.tolist() for residual in cluster.residuals] == [[1.0, 0.25], [-0.5, -0.5]]


def test_tau_begins_at_a_quantile_and_then_follows_the_average_density():
    tau = threshold.Tau(0.3173)  # values above one standard deviation
    tau.follow(0.0, mean_square=4.0)
    assert tau.value == pytest.approx(2.0, rel=1e-4)
    tau.follow(0.3673, mean_square=4.0)
    # The average is 0.01 above the target.
    assert tau.value == pytest.approx(2.0 * 1.04, rel=1e-4)
    tau.follow(1.0, mean_square=4.0)
    assert tau.value == pytest.approx(2.0 * 1.04 * 1.1, rel=1e-4)


def test_capacity_follows_the_average_and_grows_at_once_when_far_too_small():
    capacity = threshold.Capacity(most=1000, expected=10)
    assert capacity.value == 12  # 11, rounded up to 2^(14 / 4)
    for _ in range(32):
        assert capacity.value == 12
        capacity.follow(24)
    assert capacity.value == 27  # 26.4, rounded up to 2^(19 / 4)
    for _ in range(32):
        assert capacity.value == 27
        capacity.follow(6)
    assert capacity.value == 7
    capacity.follow(15)
    assert capacity.value == 20  # 16.5, rounded up to 2^(17 / 4)
    capacity.follow(2000)
    assert capacity.value == 1000
