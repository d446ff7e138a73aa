"""Arguments of exchanges: refused values, and configurations that round-trip."""

import inspect
import json

import numpy as np
import pytest

from tests.support.gradients import build_workers, specs_of
from tests.support.transforms import DivideByTotal
from tf_onebit import FullPrecision, OneBit, Threshold, WarmStart
from tf_onebit._configurable import deserialize, serialize
from tf_onebit.exchanges import Bucketed, Exchange
from tf_onebit.exchanges.schedule import innermost
from tf_onebit.horovod import Compression
from tf_onebit.horovod.compression import CompressedAllReduce
from tf_onebit.transforms import Momentum, NormalizedAdaGrad, Transform

EXCHANGES = {
    "full_precision": FullPrecision(bucket_bytes=5),
    "one_bit": OneBit(
        error_feedback=False,
        levels="symmetric",
        min_column_size=3,
        max_column_size=96,
        min_size=7,
        bucket_bytes=11,
        exclude=["a", "b$"],
        transforms=[DivideByTotal(0.5), DivideByTotal(2.0)],
        local_transforms=[NormalizedAdaGrad(1000, 8, epsilon=0.1), Momentum(0.5, nesterov=True)],
    ),
    "one_bit_by_default": OneBit(),
    "one_bit_of_updates": OneBit(moments="local", aggregate_bits=1, residual_dtype="bfloat16"),
    "threshold": Threshold(
        tau=0.5, coding="golomb_rice", bucket_bytes=11, exclude=["a", "b$"], moments="local"
    ),
    "threshold_by_default": Threshold(),
    "density": Threshold(target_density=np.float32(0.25)),
    "top_k": Threshold(target_density=0.25, selection="top_k", residual_decay=0.9),
    "warm_start": WarmStart(OneBit(min_size=3, exclude=("x",)), steps=9),
    "warm_start_by_samples": WarmStart(OneBit(), samples=100, global_batch_size=8),
    "uncompressed": OneBit(transforms=[Momentum(0.5)]).uncompressed(),
    "float16": CompressedAllReduce(Compression.fp16),
    "bucketed": Bucketed(OneBit(min_size=3)),
}
every_exchange = pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES.keys())


@every_exchange
def test_configuration_round_trips_through_json(exchange):
    config = json.loads(json.dumps(exchange.get_config()))
    again = type(exchange).from_config(config)
    assert again.get_config() == exchange.get_config()


@every_exchange
def test_description_names_the_class(exchange):
    again = deserialize(json.loads(json.dumps(serialize(exchange))))
    assert type(again) is type(exchange)
    assert again.get_config() == exchange.get_config()


@pytest.mark.parametrize("cls", [OneBit, Threshold])
def test_every_argument_is_in_the_configuration(cls):
    configs = [one.get_config() for one in EXCHANGES.values() if type(one) is cls]
    default = cls().get_config()
    assert default.keys() == inspect.signature(cls).parameters.keys()
    # Updates have no transforms, so not all arguments can differ at once.
    assert not [name for name in default if all(c[name] == default[name] for c in configs)]


@every_exchange
def test_clones_have_state_of_their_own(exchange):
    (first,), (second,) = (build_workers(exchange, specs_of([(40, 100)]), 1) for _ in range(2))
    assert exchange.clone().get_config() == exchange.get_config()
    shared = {id(variable) for variable in first.variables} & {id(v) for v in second.variables}
    assert not shared
    assert not getattr(innermost(exchange), "variables", ())


def test_clones_share_no_transforms():
    template = EXCHANGES["one_bit"]
    own = {id(transform) for transform in template.transforms + template.local_transforms}
    clone = template.clone()
    assert not own & {id(transform) for transform in clone.transforms + clone.local_transforms}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OneBit(levels="median"), r'levels must be "mean" or "symmetric".*\'median\''),
        (lambda: OneBit(max_column_size=100), "multiple of 32.*max_column_size=100"),
        (lambda: OneBit(aggregate_bits=3), "must be 1, or 2 with.*aggregate_bits=3"),
        (lambda: OneBit(aggregate_bits=0), "must be 1, or 2 with.*aggregate_bits=0"),
        (lambda: OneBit(aggregate_bits=2, error_feedback=False), "error_feedback=False"),
        (lambda: OneBit(max_column_size=0), "multiple of 32.*max_column_size=0"),
        (lambda: OneBit(max_column_size=-32), "multiple of 32.*max_column_size=-32"),
        (lambda: OneBit(min_column_size=0), "from 1 to max_column_size.*min_column_size=0"),
        (lambda: OneBit(min_column_size=513), "from 1 to max_column_size.*min_column_size=513"),
        (lambda: OneBit(min_size=-1), "min_size must be a number of values.*min_size=-1"),
        (lambda: OneBit(bucket_bytes=0), "bucket_bytes must be a positive.*bucket_bytes=0"),
        (lambda: FullPrecision(bucket_bytes=-1), "bucket_bytes must be a positive.*=-1"),
        (lambda: OneBit(bucket_bytes=float("nan")), "bucket_bytes must be a positive.*=nan"),
        (lambda: OneBit(exclude="bias"), r"list of regular expressions.*Use exclude=\['bias'\]"),
        (lambda: OneBit(exclude=["a", "(b"]), r"Received: '\(b' in exclude=\['a', '\(b'\]"),
        (lambda: OneBit(exclude=[5]), r"list of regular expressions. Received: 5 in exclude=\[5\]"),
        (
            lambda: OneBit(transforms=[5]),
            "^transforms must be a list.*Received: 5 of type int",
        ),
        (lambda: OneBit(local_transforms=[5]), "^local_transforms must be a list of .*: 5 of type"),
        (lambda: NormalizedAdaGrad(0, 8), "time_constant must be a positive.*time_constant=0. Two"),
        (lambda: NormalizedAdaGrad("9", 8), "time_constant must be a positive.*time_constant='9'"),
        (lambda: NormalizedAdaGrad(float("inf"), 8), "time_constant must be a pos.*constant=inf"),
        (lambda: NormalizedAdaGrad(9, 0), "global_batch_size must be a positive whole number.*=0"),
        (lambda: NormalizedAdaGrad(9, 0.5), "global_batch_size must be a positive whole.*=0.5"),
        (lambda: NormalizedAdaGrad(9, 8, 0.0), "epsilon must be positive.*epsilon=0.0"),
        (lambda: NormalizedAdaGrad(9, 8, float("nan")), "epsilon must be positive.*epsilon=nan"),
        (lambda: Momentum(1.0), "momentum must be at least 0 and less than 1.*momentum=1.0"),
        (lambda: Momentum(-0.1), "momentum must be at least 0 and less than 1.*momentum=-0.1"),
        (lambda: Threshold(0), "tau must be a positive, finite float32. Received: tau=0"),
        (lambda: Threshold(-0.1), "tau must be a positive, finite.*tau=-0.1.*target_density=0.001"),
        (lambda: Threshold(1e-50), "tau must be a positive, finite float32. Received: tau=1e-50"),
        (lambda: Threshold(float("nan")), "tau must be a positive, finite float32.*tau=nan"),
        (lambda: Threshold(float("inf")), "tau must be a positive, finite float32.*tau=inf"),
        (lambda: Threshold("0.1"), "tau must be a positive, finite float32.*tau='0.1'"),
        (lambda: Threshold([0.1]), r"tau must be a positive, finite float32.*tau=\[0.1\]"),
        (lambda: Threshold(target_density="0.1"), "between 0 and 1.*target_density='0.1'"),
        (lambda: Threshold(0.1, 0.2), "two ways to say.*tau=0.1, target_density=0.2. Pass one"),
        (lambda: Threshold(target_density=0.0), "between 0 and 1.*target_density=0.0"),
        (lambda: Threshold(target_density=1), "between 0 and 1.*target_density=1"),
        (lambda: Threshold(target_density=-0.1), "between 0 and 1.*=-0.1. Use 0.001 to send one"),
        (lambda: Threshold(target_density=float("nan")), "between 0 and 1.*target_density=nan"),
        (lambda: OneBit(moments="mine"), 'must be "local".*"after".*or None.*moments=\'mine\''),
        (lambda: Threshold(moments=1), 'moments must be "local".*moments=1'),
        (lambda: Threshold(coding="zip"), r"coding must be .*golomb_rice.*coding='zip'"),
        (lambda: Threshold(bucket_bytes=0), "bucket_bytes must be a positive.*bucket_bytes=0"),
        (lambda: WarmStart(OneBit(), steps=-1), "steps must be a whole number.*steps=-1"),
        (lambda: WarmStart(OneBit(), steps=1.5), "steps must be a whole number.*steps=1.5"),
        (lambda: WarmStart(OneBit()), "number of steps, or one of samples.*steps=None, samples=No"),
        (lambda: WarmStart(OneBit(), 1, 8, 8), "number of steps, or .*steps=1, samples=8, global"),
        (lambda: WarmStart(OneBit(), samples=8), "and a global_batch_size.*global_batch_size=None"),
        (lambda: WarmStart(OneBit(), 1, global_batch_size=8), "a number of steps, or one of sam"),
        (lambda: WarmStart(OneBit(), samples=0, global_batch_size=8), "samples must be a pos.*=0"),
        (
            lambda: WarmStart(OneBit(), samples=8, global_batch_size=-1),
            "global_batch_size must .*1",
        ),
        (lambda: WarmStart(OneBit, steps=1), "WarmStart needs an exchange.*OneBit"),
        (lambda: WarmStart(None, steps=1), "WarmStart needs an exchange.*exchange=None"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def _whole(exchange):
    return exchange.clone() if isinstance(exchange, Bucketed) else Bucketed(exchange)


@every_exchange
@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "bucketed"])
def test_an_empty_list_of_gradients_is_refused(exchange, wrapped):
    exchange = _whole(exchange) if wrapped else innermost(exchange).clone()
    with pytest.raises(ValueError, match="needs at least one gradient. Received an empty list"):
        exchange.build([], 0, 1, "test")


@every_exchange
@pytest.mark.parametrize(("rank", "world_size"), [(0, 0), (-1, 1), (1, 1), (5, 3), (0, -1)])
def test_a_rank_that_is_not_among_the_workers_is_refused(exchange, rank, world_size):
    expected = f"rank must be from 0 .*rank={rank}, world_size={world_size}"
    with pytest.raises(ValueError, match=expected):
        innermost(exchange).clone().build(specs_of([(2, 2)]), rank, world_size, "test")


@pytest.mark.parametrize("base", [Exchange, Transform])
def test_a_subclass_is_told_what_it_must_define(base):
    class Unfinished(base):
        pass

    unfinished = Unfinished()
    methods = {
        Exchange: [
            lambda: unfinished.encode([]),
            lambda: unfinished.deliver([], [], 1.0),
            lambda: unfinished.bytes_sent(),
        ],
        Transform: [lambda: unfinished.transform(None, None)],
    }
    for method in (unfinished.get_config, *methods[base]):
        with pytest.raises(NotImplementedError, match="Unfinished must define"):
            method()
