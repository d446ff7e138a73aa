"""Normalized AdaGrad and momentum against their oracles, in every place of use."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.reference import adagrad as reference
from tests.reference.one_bit import Cluster, columns_of
from tests.support.gradients import (
    as_float64,
    assert_close,
    build_workers,
    exchange,
    flat,
    gradients_of,
    specs_of,
)
from tests.support.nightly import nightly, nightly_rows
from tests.support.transforms import DivideByTotal
from tf_onebit import OneBit, WarmStart
from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.exchanges import Bucketed, GradientSpec
from tf_onebit.exchanges.uncompressed import Uncompressed
from tf_onebit.transforms import Momentum, NormalizedAdaGrad

SMALL = {"min_column_size": 32, "max_column_size": 64, "min_size": 31}
# Matrices that straddle two or more shards, plain ones, and empty ones.
SHAPES = [(33,), (31, 1), (40, 100), (), (0,), (3, 3, 4, 24), (1, 1)]
TIME_CONSTANT, SAMPLES, EPSILON = 50.0, 16, 1e-2
every_world_size = pytest.mark.parametrize("world_size", [1, 3, *nightly(2, 8)])


def adagrad():
    return NormalizedAdaGrad(TIME_CONSTANT, SAMPLES, EPSILON)


CHAINS = {
    "adagrad": lambda: [adagrad()],
    "momentum": lambda: [Momentum(0.75)],
    "nesterov": lambda: [Momentum(0.75, nesterov=True)],
    "adagrad_then_momentum": lambda: [adagrad(), Momentum(0.75)],
    "momentum_then_adagrad": lambda: [Momentum(0.75), adagrad()],
}
PLACEMENTS = "transforms", "local_transforms"
every_chain = pytest.mark.parametrize("chain", CHAINS)
# Each chain, and each number of workers.
RUNS = [
    *(("adagrad", 2), ("momentum", 3), ("nesterov", 1)),
    *(("adagrad_then_momentum", 8), ("momentum_then_adagrad", 3)),
]
OTHER_RUNS = [run for run in itertools.product(CHAINS, [1, 2, 3, 8]) if run not in RUNS]
every_run = pytest.mark.parametrize("chain, world_size", [*RUNS, *nightly_rows(*OTHER_RUNS)])


class Oracle:
    """The transforms of a chain, in float64."""

    def __init__(self, chain):
        self.stages = [
            reference.NormalizedAdaGrad(TIME_CONSTANT, EPSILON)
            if isinstance(transform, NormalizedAdaGrad)
            else reference.Momentum(transform.momentum, transform.nesterov)
            for transform in CHAINS[chain]()
        ]

    def step(self, gradients, samples=SAMPLES):
        for stage in self.stages:
            gradients = stage.step(gradients, samples)
        return gradients


def sum_of(gradients):
    return [sum(map(as_float64, parts)) for parts in zip(*gradients, strict=True)]


def assert_all_close(exchanged, expected, relative=1e-4):
    for tensor, value in zip(exchanged, expected, strict=True):
        assert_close(tensor, value, relative)


@every_run
def test_transforms_the_sum_as_one_worker_would_whatever_the_shards(rng, world_size, chain):
    template = OneBit(transforms=CHAINS[chain](), **SMALL).uncompressed()
    workers, oracle = build_workers(template, specs_of(SHAPES), world_size), Oracle(chain)
    for samples in (SAMPLES, SAMPLES, 64, 2):
        for worker in workers:
            worker.set_global_batch_size(samples)
        gradients = [gradients_of(rng, SHAPES) for _ in range(world_size)]
        exchanged, flags = exchange(workers, gradients, scale=0.5)
        expected = oracle.step(sum_of(gradients), samples)
        for mine in exchanged:
            assert_all_close(mine, [0.5 * value for value in expected])
        assert not np.any(flags)


def test_averages_are_of_unit_gain_from_the_first_step_on(rng):
    template = OneBit(transforms=[adagrad()]).uncompressed()
    (worker,) = build_workers(template, specs_of([(33,)]), 1)
    oracle = reference.NormalizedAdaGrad(TIME_CONSTANT, EPSILON)
    for _ in range(3):
        gradients = gradients_of(rng, [(33,)])
        exchange([worker], [gradients])
        oracle.step(gradients, SAMPLES)
        averages = [value for value in worker.state().values() if value.shape == (33,)]
        np.testing.assert_allclose(np.sqrt(averages), oracle.deviations, rtol=1e-5)


@every_run
def test_transforms_each_workers_own_gradients(rng, world_size, chain):
    template = OneBit(local_transforms=CHAINS[chain](), **SMALL).uncompressed()
    workers = build_workers(template, specs_of(SHAPES), world_size)
    oracles = [Oracle(chain) for _ in workers]
    for _ in range(3):
        gradients = [gradients_of(rng, SHAPES) for _ in range(world_size)]
        exchanged, _ = exchange(workers, gradients)
        each = [
            oracle.step([as_float64(gradient) for gradient in mine])
            for oracle, mine in zip(oracles, gradients, strict=True)
        ]
        assert_all_close(exchanged[0], sum_of(each))


@every_world_size
def test_quantizes_before_and_after(rng, world_size):
    shape = (40, 100)
    columns = columns_of(shape, SMALL["min_column_size"], SMALL["max_column_size"])
    template = OneBit(transforms=CHAINS["adagrad_then_momentum"](), **SMALL)
    workers = build_workers(template, specs_of([shape]), world_size)
    cluster, owners = (Cluster(n, columns, 4000) for n in (world_size, 1))
    oracle = Oracle("adagrad_then_momentum")
    for _ in range(3):
        gradients = [gradients_of(rng, [shape]) for _ in range(world_size)]
        exchanged, _ = exchange(workers, gradients)
        cluster.exchange([as_float64(mine[0]).ravel() for mine in gradients])
        (transformed,) = oracle.step([cluster.aggregate])
        assert_close(as_float64(exchanged[0][0]).ravel(), owners.owners(transformed), 1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_quantizes_what_local_transforms_made(rng, dtype):
    shape = (40, 100)
    columns = columns_of(shape, SMALL["min_column_size"], SMALL["max_column_size"])
    workers = build_workers(
        OneBit(local_transforms=CHAINS["nesterov"](), **SMALL), specs_of([shape], dtype), 2
    )
    cluster, oracles = Cluster(2, columns, 4000), [Oracle("nesterov") for _ in workers]
    for _ in range(3):
        gradients = [gradients_of(rng, [shape], dtype) for _ in range(2)]
        exchanged, _ = exchange(workers, gradients)
        each = [
            oracle.step([as_float64(mine[0]).ravel()])[0]
            for oracle, mine in zip(oracles, gradients, strict=True)
        ]
        assert exchanged[0][0].dtype == dtype
        received, expected = as_float64(exchanged[0][0]).ravel(), cluster.exchange(each)
        assert_close(received, expected, 1e-4 if dtype == "float32" else 2.0**-7)


# Plain values are exact before and after, so they show the transforms' memory.
@pytest.mark.parametrize(
    "chain, placement, in_a_graph",
    [
        ("adagrad_then_momentum", "transforms", True),
        ("momentum_then_adagrad", "local_transforms", False),
        *nightly_rows(*((chain, "transforms", False) for chain in CHAINS)),
        *nightly_rows(
            *((c, "local_transforms", False) for c in CHAINS if c != "momentum_then_adagrad")
        ),
        *nightly_rows(
            ("momentum_then_adagrad", "local_transforms", True), ("nesterov", "transforms", True)
        ),
    ],
)
def test_warm_start_transforms_from_the_first_step_on(rng, chain, placement, in_a_graph):
    shapes = [(40, 100), (33,)]
    template = WarmStart(OneBit(**{placement: CHAINS[chain]()}), steps=2)
    workers = build_workers(template, specs_of(shapes), 2)
    oracles = [Oracle(chain) for _ in range(1 if placement == "transforms" else 2)]

    def run(gradients):
        return exchange(workers, gradients)[0][0]

    step = tf.function(run) if in_a_graph else run
    for i in range(4):
        gradients = [gradients_of(rng, shapes) for _ in range(2)]
        exchanged = step(gradients)
        given = [sum_of(gradients)] if len(oracles) == 1 else [sum_of([g]) for g in gradients]
        expected = sum_of([o.step(g) for o, g in zip(oracles, given, strict=True)])
        is_close = [
            np.allclose(*pair, rtol=1e-4, atol=1e-5)
            for pair in zip(exchanged, expected, strict=True)
        ]
        assert is_close == [i < 2, True]


def test_warm_start_counts_samples(rng):
    workers = build_workers(
        WarmStart(OneBit(), samples=10, global_batch_size=4), specs_of([(40, 100)]), 2
    )
    warm = []
    # 4 + 4 of 10 samples have passed before the third, 9 before the fourth, 10 before the fifth.
    for samples in (4, 4, 1, 1, 4):
        for worker in workers:
            worker.set_global_batch_size(samples)
        gradients = [gradients_of(rng, [(40, 100)]) for _ in range(2)]
        exchanged, _ = exchange(workers, gradients)
        warm.append(np.array_equal(exchanged[0][0], gradients[0][0] + gradients[1][0]))
    assert warm == [True] * 4 + [False]


def test_a_row_or_column_of_another_size_changes_its_own_matrix_only(rng):
    """The mean is over a tensor of the list. Parts of a tensor are normalized apart."""
    (matrix,) = gradients_of(rng, [(40, 100)])
    matrix = matrix * tf.concat([tf.ones([20, 1]), tf.fill([20, 1], 100.0)], axis=0)

    def normalized(gradients):
        template = OneBit(transforms=[adagrad()]).uncompressed()
        workers = build_workers(template, specs_of([g.shape for g in gradients]), 1)
        return np.concatenate(exchange(workers, [gradients])[0][0])

    whole, halves = normalized([matrix]), normalized([matrix[:20], matrix[20:]])
    ratios = [np.abs(part[:20]).sum() / np.abs(part[20:]).sum() for part in (whole, halves)]
    assert 0.5 < ratios[0] < 2 and ratios[1] < 0.05


def test_gradients_that_are_zero_stay_zero(rng):
    shapes = [(40, 100), (33,)]
    template = OneBit(transforms=[adagrad()], local_transforms=[adagrad()])
    workers = build_workers(template, specs_of(shapes), 2)
    for zero in (True, False, True):
        gradients = [[tf.zeros_like(g) if zero else g for g in gradients_of(rng, shapes)]] * 2
        exchanged, flags = exchange(workers, gradients)
        assert np.isfinite(flat(exchanged[0])).all() and not np.any(flags)
        if zero and not any(np.any(worker.worker_residual) for worker in workers):
            assert not flat(exchanged[0]).any()


def states_of(workers):
    return [
        {k: v for k, v in worker.state().items() if k.startswith("transform")} for worker in workers
    ]


@pytest.mark.parametrize("full_precision", [False, True], ids=["quantized", "in_full_precision"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("tensor", [0, 1])
def test_a_step_that_is_flagged_leaves_the_transforms_alone(rng, full_precision, value, tensor):
    shapes = [(40, 100), (33,)]
    template = OneBit(transforms=CHAINS["adagrad_then_momentum"](), **SMALL)
    workers = build_workers(
        template.uncompressed() if full_precision else template, specs_of(shapes), 3
    )
    exchange(workers, [gradients_of(rng, shapes) for _ in range(3)])
    before = states_of(workers)
    gradients = [gradients_of(rng, shapes) for _ in range(3)]
    bad = gradients[1][tensor].numpy()
    bad.flat[7] = value
    gradients[1][tensor] = tf.constant(bad)
    _, flags = exchange(workers, gradients)
    assert [mine.numpy().tolist() for mine in flags] == [[0, 1 + tensor, 0]] * 3
    for mine, expected in zip(states_of(workers), before, strict=True):
        assert mine.keys() == expected.keys() and mine
        for name in mine:
            np.testing.assert_array_equal(mine[name], expected[name])


def test_a_gradient_that_is_not_finite_does_not_stay_in_local_transforms(rng):
    shapes = [(40, 100), (33,)]
    template = OneBit(local_transforms=CHAINS["momentum_then_adagrad"](), **SMALL)
    (worker,) = build_workers(template, specs_of(shapes), 1)
    for bad in (np.nan, np.inf, -np.inf, None):
        gradients = [g.numpy() for g in gradients_of(rng, shapes)]
        if bad is not None:
            gradients[0][3, 4] = gradients[1][5] = bad
        exchanged, flags = exchange([worker], [[tf.constant(g) for g in gradients]])
    assert np.isfinite(flat(exchanged[0])).all() and not np.any(flags)


@every_chain
def test_a_worker_alone_transforms_and_does_not_quantize(rng, chain):
    template = WarmStart(OneBit(transforms=CHAINS[chain]()), steps=1)
    alone = GradientExchange(template, LockstepEngine(["CPU:0"]), mean=True)
    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    oracle = Oracle(chain)
    for step in range(3):
        gradients = gradients_of(rng, SHAPES)
        if step == 2:  # It is resumed.
            states = alone.carried.states()
            alone = GradientExchange(template, LockstepEngine(["CPU:0"]), mean=True)
            alone.load_states(states, alone.scale)
        (exchanged,) = alone([gradients], variables)
        assert_all_close(exchanged, oracle.step(sum_of([gradients])))


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: WarmStart(e, 1)], ids=["", "warm_start"])
@pytest.mark.parametrize("placement", ["transforms", "local_transforms"])
def test_what_is_not_quantized_is_transformed_too(rng, wrap, placement):
    specs = [
        GradientSpec("excluded", (40, 100), "float32"),
        GradientSpec("double", (40, 100), "float64"),
        GradientSpec("embedding", (10, 3), "float32", sparse=True),
        GradientSpec("excluded_embedding", (10, 3), "float32", sparse=True),
    ]
    template = wrap(OneBit(**{placement: [Momentum(0.75)]}, exclude=["excluded"]))
    (worker,) = build_workers(Bucketed(template), specs, 1)
    oracle = reference.Momentum(0.75)
    for _ in range(3):
        gradients = [tf.constant(rng.normal(size=s.shape), s.dtype) for s in specs[:2]]
        for _ in range(2):
            values = tf.constant(rng.normal(size=(2, 3)), tf.float32)
            rows = tf.constant(rng.integers(0, 10, size=2))
            gradients.append(tf.IndexedSlices(values, rows, tf.constant([10, 3])))
        ((exchanged,), _) = exchange([worker], [gradients])
        expected = oracle.step([as_float64(tf.convert_to_tensor(g)) for g in gradients], 1)
        assert [tensor.dtype for tensor in exchanged] == [spec.dtype for spec in specs]
        assert_all_close(exchanged, expected, 1e-5)


def test_local_transforms_cannot_communicate(rng):
    (worker,) = build_workers(OneBit(local_transforms=[DivideByTotal()]), specs_of([(40, 100)]), 1)
    with pytest.raises(ValueError, match="cannot communicate.* Received: one that requests AllRed"):
        exchange([worker], [gradients_of(rng, [(40, 100)])])


def test_a_mere_sum_needs_nothing_but_full_precision():
    assert OneBit().uncompressed() is None
    assert WarmStart(OneBit(), 1).uncompressed() is None
    assert isinstance(OneBit(transforms=[adagrad()]).uncompressed(), Uncompressed)


@pytest.mark.parametrize("before, after", [(1, 3), (3, 2), *nightly_rows((2, 1))])
@pytest.mark.parametrize(
    "wrap", [lambda e: WarmStart(e, 9), *nightly(lambda e: e)], ids=["warm_start", ""]
)
def test_another_number_of_workers_goes_on_with_the_same_averages(rng, before, after, wrap):
    template = wrap(OneBit(transforms=CHAINS["adagrad_then_momentum"](), **SMALL))
    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    oracle, exchange = Oracle("adagrad_then_momentum"), None
    for world_size in (before, after, after):
        saved = exchange and (exchange.carried.states(), exchange.scale)
        exchange = GradientExchange(template, LockstepEngine(["CPU:0"] * world_size), mean=True)
        if saved:
            exchange.load_states(*saved)
            # The part of a mean that is still to come keeps its value.
            momentum = oracle.stages[1]
            momentum.velocities = [v * saved[1] / exchange.scale for v in momentum.velocities]
        for _ in range(2):
            gradients = [gradients_of(rng, SHAPES) for _ in range(world_size)]
            exchanged = exchange(gradients, variables)
            expected = [g / world_size for g in oracle.step(sum_of(gradients))]
            # Plain values are exact. Others are exact during the warm-up, when nothing is
            # quantized.
            for i, shape in enumerate(SHAPES):
                if len(shape) < 2 or isinstance(template, WarmStart):
                    assert_close(exchanged[0][i], expected[i], 1e-4)


def test_local_transforms_are_resumed_by_as_many_workers(rng):
    template = OneBit(local_transforms=[adagrad()], **SMALL)
    states = [worker.state() for worker in build_workers(template, specs_of(SHAPES), 2)]
    (worker,) = build_workers(template, specs_of(SHAPES), 1)
    with pytest.raises(ValueError, match="with as many workers .*: a state of 2 workers for 1"):
        worker.load_state(states)
