"""Names of before, which go in 0.3."""

import importlib
import sys

import pytest

import tf_onebit


def test_the_former_place_of_flush_works_and_says_so():
    sys.modules.pop("tf_onebit.training.model_optimizers", None)
    with pytest.warns(DeprecationWarning, match="use tf_onebit.flush .* go in 0.3"):
        former = importlib.import_module("tf_onebit.training.model_optimizers")
    assert former.flush is tf_onebit.flush
    assert former.without_delay is tf_onebit.without_delay
