"""The oracle, by examples that were worked out by hand."""

import numpy as np
import pytest

from tests.reference import one_bit


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
    # The first quantizations sent [1, -2] and [3.5, 3.5]; the second kept what is not 3.
    assert cluster.owners.residual.tolist() == [1.5, -1.5]


@pytest.mark.parametrize("shape", [(1, 1), (31, 5), (3, 3, 16, 24), (5, 930), (7, 100)])
def test_columns_cover_every_value_once(shape):
    covered = np.zeros(np.prod(shape), int)
    for column in one_bit.columns_of(shape, min_column_size=64, max_column_size=128):
        covered[column] += 1
    assert (covered == 1).all()
