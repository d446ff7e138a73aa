"""The comparison between workers before the first step."""

import dataclasses

import pytest

from tests.support.gradients import specs_of
from tf_onebit import FullPrecision, OneBit, WarmStart
from tf_onebit.collectives import lockstep
from tf_onebit.exchanges import Bucketed, handshake

SPECS = specs_of([(40, 100), (100,), (3, 3, 2, 2)])
WORLD_SIZE = 3


def handshake_of(exchange=None, specs=SPECS, world_size=WORLD_SIZE, scope="first"):
    return Bucketed(exchange or OneBit()).handshake(specs, world_size, scope)


def error_of(handshake):
    """Runs a handshake, and returns the text of its ValueError. All ranks get that far."""
    try:
        yield from handshake
    except ValueError as error:
        return str(error)


def errors(handshakes):
    return lockstep.run([error_of(handshake) for handshake in handshakes])


def test_workers_that_agree_pass():
    assert errors([handshake_of() for _ in range(WORLD_SIZE)]) == [None] * WORLD_SIZE


def test_workers_whose_variables_have_other_names_pass():
    others = [handshake_of(specs=renamed(1, name=name)) for name in ("größe", "kernel_1")]
    assert errors([handshake_of(), *others]) == [None] * WORLD_SIZE


def test_exclusions_are_compared_by_what_they_exclude():
    others = [handshake_of(OneBit(exclude=[name])) for name in ("1/kernel", "layer_1")]
    assert errors([handshake_of(OneBit(exclude=["_1"])), *others]) == [None] * WORLD_SIZE


def test_one_worker_passes():
    assert errors([handshake_of(world_size=1)]) == [None]


def renamed(index, **changes):
    return [
        dataclasses.replace(spec, **changes) if i == index else spec for i, spec in enumerate(SPECS)
    ]


OTHERS = {
    "class": (
        {"exchange": FullPrecision()},
        "exchange = tf_onebit.exchanges.one_bit:OneBit",
        "exchange = tf_onebit.exchanges.full_precision:FullPrecision",
    ),
    "setting": (
        {"exchange": OneBit(max_column_size=1024, min_size=5)},
        "max_column_size of the exchange = 512",
        "max_column_size of the exchange = 1024",
    ),
    "excluded": (
        {"exchange": OneBit(exclude=["layer_2"])},
        "gradient 2 = (3, 3, 2, 2) float32 (layer_2/kernel)",
        "gradient 2 = (3, 3, 2, 2) float32, excluded (layer_2/kernel)",
    ),
    "excluded by another name": (
        {"exchange": OneBit(exclude=["größe"]), "specs": renamed(1, name="größe")},
        "gradient 1 = (100,) float32 (layer_1/kernel)",
        "gradient 1 = (100,) float32, excluded (größe)",
    ),
    "fewer_gradients": (
        {"specs": SPECS[:2]},
        "number of gradients = 3",
        "number of gradients = 2",
    ),
    "shape": (
        {"specs": renamed(0, shape=(100, 40))},
        "gradient 0 = (40, 100) float32 (layer_0/kernel)",
        "gradient 0 = (100, 40) float32 (layer_0/kernel)",
    ),
    "dtype": (
        {"specs": renamed(2, dtype="float16")},
        "gradient 2 = (3, 3, 2, 2) float32 (layer_2/kernel)",
        "gradient 2 = (3, 3, 2, 2) float16 (layer_2/kernel)",
    ),
    "sparse": (
        {"specs": renamed(2, sparse=True)},
        "gradient 2 = (3, 3, 2, 2) float32 (layer_2/kernel)",
        "gradient 2 = (3, 3, 2, 2) float32, sparse (layer_2/kernel)",
    ),
    "order": (
        {"specs": SPECS[::-1]},
        "gradient 0 = (40, 100) float32 (layer_0/kernel)",
        "gradient 0 = (3, 3, 2, 2) float32 (layer_2/kernel)",
    ),
    "another_exchange": (
        {"scope": "second"},
        "next use of tf_onebit = first",
        "next use of tf_onebit = second",
    ),
    "world_size": ({"world_size": 4}, "world size = 3", "world size = 4"),
}


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize(("change", "mine", "theirs"), OTHERS.values(), ids=OTHERS.keys())
def test_every_rank_is_told_the_first_difference_and_both_ranks(change, mine, theirs, rank):
    workers = [handshake_of(**(change if k == rank else {})) for k in range(WORLD_SIZE)]
    first, *others = errors(workers)
    assert f"The first difference: rank 0 has {mine}, rank {rank} has {theirs}. " in first
    assert others == [first] * 2


def test_a_difference_of_rank_0_is_told_too():
    workers = [handshake_of(FullPrecision()), handshake_of(), handshake_of()]
    first, *others = errors(workers)
    assert "rank 0 has exchange = tf_onebit.exchanges.full_precision:FullPrecision, " in first
    assert "rank 1 has exchange = tf_onebit.exchanges.one_bit:OneBit. " in first
    assert others == [first] * 2


def test_settings_of_a_wrapped_exchange_are_compared():
    exchanges = [WarmStart(OneBit(), steps=5), WarmStart(OneBit(min_size=7), steps=5)]
    first, second = errors([handshake_of(exchange, world_size=2) for exchange in exchanges])
    assert '"min_size": 1024' in first
    assert '"min_size": 7' in first
    assert first == second


def test_versions_are_compared(monkeypatch):
    def of_version(version):
        # A generator starts when it is first asked. Then the version is read.
        monkeypatch.setattr(handshake, "__version__", version)
        yield from handshake_of(world_size=2)

    first, second = errors([of_version("1.0"), of_version("1.1")])
    assert "rank 0 has version of tf_onebit = 1.0, rank 1 has version of tf_onebit = 1.1" in first
    assert first == second
