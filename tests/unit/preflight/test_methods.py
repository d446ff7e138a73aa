"""The methods of a plan."""

import keras
import pytest

import tf_onebit.horovod as hvd
from tf_onebit._measurement import Alone, measure_exchange
from tf_onebit._preflight.block_ends import BlockEnd, Blocks
from tf_onebit._preflight.methods import Candidates, Exchanges
from tf_onebit.exchanges import FullPrecision, GradientSpec, Local, OneBit, Threshold, WarmStart
from tf_onebit.transforms import NormalizedAdaGrad

KERNEL = GradientSpec("kernel", (64, 64), "float32")
TABLE = GradientSpec("table", (64, 64), "float32", sparse=True)


class Own(OneBit):
    """An exchange that users have derived from one of ours."""


def candidates_for(exchange, target_density=None):
    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), exchange)
    return {one.name: one.exchange for one in Candidates(optimizer, target_density)}


def test_a_program_without_an_exchange_is_planned_with_ours():
    candidates = list(Candidates(keras.optimizers.SGD(0.1), None))
    assert [one.name for one in candidates] == ["full precision", "1-bit", "threshold"]
    assert candidates[2].exchange.target_density == 0.001


@pytest.mark.parametrize(
    "optimizer, bits, moments",
    [
        (keras.optimizers.SGD(0.1), 1, "after"),
        (keras.optimizers.SGD(0.1, momentum=0.9), 2, "local"),
        (keras.optimizers.Adam(), 2, "local"),
        (keras.optimizers.Ftrl(), 1, "after"),
    ],
    ids=["sgd", "momentum", "adam", "ftrl"],
)
def test_exchanges_have_the_moments_of_the_optimizer(optimizer, bits, moments):
    one_bit, threshold = [one.in_steps for one in Candidates(optimizer, None)][1:]
    assert (one_bit.aggregate_bits, one_bit.moments or "after") == (bits, moments)
    assert (threshold.moments or "after") == moments


@pytest.mark.parametrize(
    "optimizer, adding",
    [
        (keras.optimizers.SGD(0.1), {"1-bit", "threshold"}),
        (keras.optimizers.Adam(), {"1-bit", "threshold"}),
        (keras.optimizers.Ftrl(), set()),
    ],
    ids=["sgd", "adam", "ftrl"],
)
def test_exchanges_are_measured_with_the_adding_that_they_do_in_steps(
    monkeypatch, optimizer, adding
):
    measured = []

    def measure_one(exchange, *arguments, **options):
        measured.append((type(exchange), options.get("adds", False)))
        return measure_exchange(exchange, *arguments, **options)

    monkeypatch.setattr("tf_onebit._preflight.methods.measure_exchange", measure_one)
    exchanges = Exchanges(Candidates(optimizer, None), [KERNEL], None, Alone(), 2)
    assert {m.name.removesuffix(", delayed") for m in exchanges.methods() if m.adds} == adding
    assert [adds for _, adds in measured] == [False, bool(adding), bool(adding)]
    measured.clear()
    end = BlockEnd([KERNEL], [], [])
    blocks = exchanges.blocks({True: end, False: end}, (0.0, 0.0), Blocks(16))
    assert not any(method.adds for method in blocks)
    # Blocks decode apart.
    assert measured == ([(OneBit, False)] if adding else [])


@pytest.mark.parametrize(
    "exchange, name",
    [
        (FullPrecision(bucket_bytes=2**20), "full precision"),
        (OneBit(max_column_size=64, exclude=["kernel"]), "1-bit"),
        (OneBit(transforms=[NormalizedAdaGrad(time_constant=100, global_batch_size=8)]), "1-bit"),
        (Threshold(tau=0.5, coding="golomb_rice"), "threshold"),
        (Own(min_size=9), "Own"),
    ],
)
@pytest.mark.parametrize("recipe", [lambda one: one, lambda one: WarmStart(one, steps=5)])
def test_the_users_own_exchange_keeps_its_arguments(exchange, name, recipe):
    candidates = candidates_for(recipe(exchange))
    own = candidates[name]
    assert type(own) is type(exchange) and own.get_config() == exchange.get_config()
    ours = ["full precision", "1-bit", "threshold"]
    assert list(candidates) == list(dict.fromkeys([*ours, name]))


def test_an_asked_for_density_replaces_that_of_the_users_own():
    own = Threshold(tau=0.5, coding="golomb_rice")
    planned = candidates_for(own, target_density=0.25)["threshold"]
    assert planned.get_config() == own.get_config() | {"tau": None, "target_density": 0.25}


def test_workers_that_exchange_nothing_are_planned_with_ours():
    assert list(candidates_for(Local())) == ["full precision", "1-bit", "threshold"]


@pytest.mark.parametrize(
    "exchange, alike",
    [
        (OneBit(transforms=[NormalizedAdaGrad(time_constant=100, global_batch_size=8)]), OneBit()),
        (Threshold(tau=1e-6), Threshold(target_density=0.01)),
    ],
)
def test_sends_in_measurements_what_it_sends_to_others(exchange, alike):
    ((own,), (other,)) = (measure_exchange(one, [KERNEL], 4) for one in (exchange, alike))
    assert own.sent_bytes == other.sent_bytes


def test_sparse_gradients_that_transforms_make_dense_are_measured_so():
    transforming = OneBit(transforms=[NormalizedAdaGrad(time_constant=100, global_batch_size=8)])
    (sparse,), (dense,) = (measure_exchange(transforming, [one], 2) for one in (TABLE, KERNEL))
    assert sparse.sent_bytes == dense.sent_bytes
    (rows,) = measure_exchange(OneBit(), [TABLE], 2)
    assert [one.kind for one in rows.collectives] != [one.kind for one in sparse.collectives]


def test_full_precision_and_what_cannot_wait_are_not_delayed():
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1), compression=hvd.Compression.fp16
    )
    methods = Exchanges(Candidates(optimizer, None), [KERNEL], None, Alone(), 2).methods()
    names = [method.name for method in methods]
    assert "full precision, delayed" not in names and "CompressedAllReduce, delayed" not in names
    assert {"1-bit, delayed", "threshold, delayed", "CompressedAllReduce"} < set(names)
