"""Classes that descriptions name: at the top of modules, and made by functions."""

import copy
import json

import pytest

from tests.support.gradients import build_workers, specs_of
from tf_onebit import OneBit, WarmStart
from tf_onebit._configurable import class_path, deserialize, import_class, serialize
from tf_onebit.exchanges import Bucketed


def made_in_a_function(bits):
    class Local(OneBit):
        number = bits

    return Local


def test_a_class_of_a_function_is_found_by_its_description():
    classes = [made_in_a_function(bits) for bits in (1, 2)]
    paths = copy.deepcopy([class_path(cls) for cls in classes])
    assert paths[0] == paths[1] and json.loads(json.dumps(paths)) == paths
    assert [import_class(path) for path in paths] == classes


def test_an_exchange_of_a_function_can_be_wrapped_and_built():
    template = Bucketed(WarmStart(made_in_a_function(3)(), steps=2))
    (worker,) = build_workers(template, specs_of([(40, 100)]), 1)
    assert worker.buckets[0].exchange.number == 3


def test_another_process_is_told_why_a_class_is_not_found():
    description = json.loads(json.dumps(serialize(made_in_a_function(1)())))
    with pytest.raises(ValueError, match="top level of a module .*Received: made_in_a_function"):
        deserialize(description)
    assert deserialize(json.loads(json.dumps(serialize(OneBit(min_size=7))))).min_size == 7


@pytest.mark.parametrize(
    "path",
    [
        "tf_onebit.exchanges.delayed:Delayed",
        "tf_onebit.exchanges.full_precision:FullPrecision",
        "tf_onebit.exchanges.one_bit:OneBit",
        "tf_onebit.exchanges.threshold:Threshold",
        "tf_onebit.exchanges.warm_start:WarmStart",
        "tf_onebit.transforms.adagrad:NormalizedAdaGrad",
        "tf_onebit.transforms.momentum:Momentum",
    ],
)
def test_classes_in_old_backups_are_found(path):
    # Backups of `Auto` hold its decision with these paths, wherever the classes are now.
    assert import_class(path).__name__ == path.split(":")[1]
