"""Model parallelism: split models in mixed precision."""

import keras
import numpy as np
import pytest

import tf_onebit.horovod as hvd
from tests.support.groups import fit_group, momentum, split
from tests.support.model_parallel import MODELS, compiled, plain_model
from tests.support.ranks import assert_same_bits_on_all_ranks, from_first, gather
from tf_onebit._shares import is_part


def distance(arrays, others):
    """Returns the root of the sum of squares of the differences of two lists of arrays."""
    pairs = zip(arrays, others, strict=True)
    return np.sqrt(sum(np.square(one - other).sum() for one, other in pairs))


def scaled_momentum(initial_scale=2.0**10):
    return keras.optimizers.LossScaleOptimizer(momentum(), initial_scale=initial_scale)


@pytest.mark.nightly
@pytest.mark.workers(2, 4)
@pytest.mark.parametrize(
    "policy, optimizer", [("mixed_bfloat16", momentum), ("mixed_float16", scaled_momentum)]
)
@pytest.mark.parametrize("name", MODELS)
def test_mixed_precision_is_that_of_the_unsplit_model(name, policy, optimizer, world_size):
    """They differ by rounding: about as much as unsplit models of both types, and of that one."""

    def references():
        mixed = plain_model(name, optimizer, epochs=1).get_weights()
        keras.config.set_dtype_policy("float32")
        before = MODELS[name]().get_weights()
        return mixed, plain_model(name, momentum, epochs=1).get_weights(), before

    keras.config.set_dtype_policy(policy)
    try:
        model = compiled(split(name), hvd.DistributedOptimizer(optimizer()))
        fit_group(model, name, epochs=1)
        expected, in_float32, before = from_first(references)
    finally:
        keras.config.set_dtype_policy("float32")
    weights = model.get_weights()
    assert distance(weights, expected) < 2 * distance(in_float32, expected)
    assert distance(weights, expected) < 0.1 * distance(before, expected)


@pytest.mark.nightly
@pytest.mark.workers(4)
def test_all_members_of_all_groups_skip_a_step_if_the_scaled_loss_overflows(world_size):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = compiled(split("mlp"), hvd.DistributedOptimizer(scaled_momentum(2.0**20)))
    finally:
        keras.config.set_dtype_policy("float32")
    fit_group(model, "mlp", epochs=1)
    optimizer = model.optimizer
    told = gather([float(optimizer.dynamic_scale), int(optimizer.inner_optimizer.iterations)])
    assert told == told[:1] * world_size
    scale, steps = told[0]
    assert 10 < steps < 20 and scale == 2.0**steps  # each of 20 steps halves it, or updates weights
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert_same_bits_on_all_ranks([v for v in model.trainable_weights if not is_part(v)])
