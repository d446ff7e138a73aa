"""The papers' cost models give the papers' own figures, from the inputs that they print."""

import dataclasses
import math

import numpy as np
import pytest

from tf_onebit.planner import CompressedDataParallelism, DataParallelism, ModelParallelism

# "On Parallelizability of Stochastic Gradient Descent for Speech DNNs", section 5.
MODEL = {"parameters": 46e6, "operations_per_second": 976e9, "bytes_per_second": 4.83e9}
FIXED_STEPS = 4
FIXED_SLOWDOWN = 18.2e-3 / FIXED_STEPS * MODEL["operations_per_second"] / MODEL["parameters"]
# Seide et al. 2014 ("1-Bit Stochastic Gradient Descent"), table 1: seconds per frame.
SUB_BATCHES = 256, 512, 1024, 2048, 4096, 8192
FRAME_SECONDS = 156e-6, 137e-6, 122e-6, 118e-6, 115e-6, 114e-6


def model_parallel(**changes):
    settings = {"minibatch_size": 1024, "activations": 12e3, "connection_slowdown": lambda _: 2.0}
    return ModelParallelism(**MODEL, **settings | changes)


def data_parallel(minibatch_size, connection_slowdown, **changes):
    return DataParallelism(
        **MODEL,
        minibatch_size=minibatch_size,
        fixed_steps=FIXED_STEPS,
        fixed_slowdown=FIXED_SLOWDOWN,
        connection_slowdown=lambda _: connection_slowdown,
        **changes,
    )


def frame_seconds(samples):
    return float(np.interp(np.log2(samples), np.log2(SUB_BATCHES), FRAME_SECONDS))


def one_bit(minibatch_size, double_buffering, gpus_per_node=1):
    # Two-way model parallelism halves the fixed cost, and is 55 % efficient in the rest.
    return CompressedDataParallelism(
        minibatch_size=minibatch_size,
        sample_seconds=lambda n: frame_seconds(n) / (1.0, 1.55)[gpus_per_node - 1],
        post_seconds=9.2e-3 / gpus_per_node,
        update_seconds=9e-3 / gpus_per_node,
        exchange_seconds=32 * 6.5e-3 / gpus_per_node,
        compression=32,
        double_buffering=double_buffering,
    )


def test_model_parallelism_cannot_use_more_than_three_gpus():
    assert model_parallel().optimal_workers() == pytest.approx(3.3, abs=0.1)
    # Half-batches are 1.2 times slower.
    slower = model_parallel(minibatch_slowdown=lambda n: 1.0 if n == 1024 else 1.2)
    assert slower.speed_up(3) == pytest.approx(2.5)
    assert slower.communication_seconds(3) < slower.calculation_seconds(3)
    assert slower.communication_seconds(4) > slower.calculation_seconds(4)


def test_data_parallelism_of_small_minibatches_is_bleak():
    of_1024 = data_parallel(1024, 1.0, minibatch_slowdown=lambda n: 1.2 if n < 1024 else 1.0)
    ideal = data_parallel(1024, 1.0)
    assert ideal.optimal_workers() < 1.5 < of_1024.optimal_workers()
    assert ideal.speed_up(2) == pytest.approx(1.1, abs=0.05)


@pytest.mark.parametrize("minibatch_size, slowdown, workers", [(4096, 2.0, 2), (16384, 3.0, 6)])
def test_optimal_number_of_nodes_grows_with_the_minibatch(minibatch_size, slowdown, workers):
    assert round(data_parallel(minibatch_size, slowdown).optimal_workers()) == workers


def test_six_nodes_are_five_times_as_fast_with_large_minibatches():
    assert data_parallel(16384, 3.0).speed_up(6) == pytest.approx(5.1, abs=0.05)


@pytest.mark.parametrize("minibatch_size, slowdown, workers", [(4096, 4.3, 5), (16384, 6.3, 12)])
def test_what_8_bits_would_take_to_be_as_printed(minibatch_size, slowdown, workers):
    model = data_parallel(minibatch_size, slowdown, parameter_bytes=1)
    assert round(model.optimal_workers()) == workers


def test_calculation_and_communication_balance_at_the_optimum():
    for model in (model_parallel(), data_parallel(16384, 3.0)):
        best = model.optimal_workers()
        assert model.calculation_seconds(best) == pytest.approx(model.communication_seconds(best))


def test_equation_4():
    model = dataclasses.replace(one_bit(16384, True), sample_seconds=lambda _: 118e-6)
    model = dataclasses.replace(model, exchange_seconds=1.0)
    expected = (16384 / 2 * 118e-6 + 9.2e-3) / (1.0 / 32 - 9e-3)
    assert model.optimal_workers() == pytest.approx(expected)


def test_below_fixed_cost_there_is_no_optimal_number_of_nodes():
    assert one_bit(16384, True).optimal_workers() == math.inf
    # Half-batches then pay the fixed cost twice, and hide less time.
    small, large = one_bit(2048, False), one_bit(2048, True)
    assert small.speed_up(16) > large.speed_up(16)


def test_trends_of_table_4():
    sizes = 2048, 2880, 4096, 8192, 16384, 32768, 65536
    plain, buffered = (
        [one_bit(size, on, gpus_per_node=2).samples_per_second(4) for size in sizes]
        for on in (False, True)
    )
    assert plain == sorted(plain) and buffered == sorted(buffered)
    # Larger minibatches gain less and less.
    assert plain[-1] / plain[-2] < 1.02 < plain[2] / plain[1]
    assert plain[-1] == pytest.approx(45e3, rel=0.25)
    # The gain of double buffering does not follow, because messages take less than the fixed cost.
    assert all(both < one for one, both in zip(plain, buffered, strict=True))


@pytest.mark.parametrize(
    "model", [model_parallel(), data_parallel(1024, 1.0), one_bit(2880, False)], ids=type
)
def test_refuses_no_workers(model):
    for method in (model.speed_up, model.step_seconds, model.calculation_seconds):
        with pytest.raises(ValueError, match="at least one worker. Received: workers=0"):
            method(0)


def test_trends_of_table_5():
    def speed(minibatch_size, nodes, gpus_per_node):
        return one_bit(minibatch_size, False, gpus_per_node).samples_per_second(nodes)

    assert speed(2880, 1, 1) == pytest.approx(7.5e3, rel=0.1)
    assert speed(16384, 1, 1) == pytest.approx(8.2e3, rel=0.1)
    assert speed(2880, 1, 2) / speed(2880, 1, 1) == pytest.approx(1.55, abs=0.05)
    # Only large minibatches use 16 GPUs well, and data parallelism uses them better.
    assert speed(16384, 16, 1) / speed(16384, 8, 1) > speed(2880, 16, 1) / speed(2880, 8, 1)
    assert speed(16384, 16, 1) > speed(16384, 8, 2)
    assert speed(16384, 8, 1) > speed(16384, 4, 2)
    # With small minibatches, model parallelism does not fall behind as much.
    assert speed(2880, 8, 2) / speed(2880, 16, 1) > speed(16384, 8, 2) / speed(16384, 16, 1)


@pytest.mark.parametrize(
    "name, value", [("bytes_per_second", 0), ("minibatch_size", -1), ("parameters", math.nan)]
)
def test_refuses_what_is_not_positive(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a positive number. Received: {name}="):
        dataclasses.replace(data_parallel(1024, 1.0), **{name: value})


def test_refuses_negative_times():
    with pytest.raises(ValueError, match="update_seconds must be a time, at least 0. Received"):
        dataclasses.replace(one_bit(1024, True), update_seconds=-1.0)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_refuses_what_is_not_finite(value):
    with pytest.raises(ValueError, match="post_seconds must be a time.*Received: post_seconds="):
        dataclasses.replace(one_bit(1024, True), post_seconds=value)
    with pytest.raises(ValueError, match="parameters must be a positive.*Received: parameters="):
        dataclasses.replace(data_parallel(1024, 1.0), parameters=value)


def test_refuses_samples_that_take_no_time():
    quick = dataclasses.replace(one_bit(1024, False), sample_seconds=lambda _: 0.0)
    with pytest.raises(ValueError, match=r"sample_seconds\(1024\) must be a positive.*=0.0"):
        quick.samples_per_second(1)
