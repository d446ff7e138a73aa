"""Our `MirroredStrategy` gives the same results as TensorFlow's, except for gradients."""

import pytest

from tests.parallel.compare_mirrored import cases
from tests.support.launch import run_apart


@pytest.fixture(scope="module")
def results():
    return run_apart("tests.parallel.compare_mirrored")


@pytest.mark.parametrize("case", cases())
def test_same_as_in_the_strategy_of_tensorflow(case, results):
    stock, ours, of_workers = results[0][case]
    assert ours == of_workers == stock


def test_a_function_is_traced_once_and_freed(results):
    assert results[1] == str([("int64", 1), ("int64", 1)])


def test_a_tensor_that_is_one_object_on_all_replicas_is_summed_over_them(results):
    assert results[2] == str([("float32", 2.0)] * 2)
