"""Model parallelism: what members of a group hold, and what they send each other."""

import collections
import gc
import weakref

import keras
import numpy as np
import pytest

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support.groups import clipped_adam, fit_group, groups_of, momentum, trained
from tests.support.model_parallel import CLASSES, MODELS, compiled, data_of
from tests.support.nightly import nightly
from tests.support.ranks import request_bytes
from tf_onebit import model_parallel
from tf_onebit._shares import is_part
from tf_onebit.collectives.requests import tap_requests


@pytest.mark.nightly
@pytest.mark.workers(4)
def test_a_member_holds_its_part_of_weights_gradients_state_and_residuals(world_size):
    held = []
    for members in (1, 2):
        model = trained("mlp", members, clipped_adam, tf_onebit.OneBit(min_size=0), epochs=1)
        residuals = [v for e in model.optimizer.gradient_exchange.built for v in e.variables]
        kinds = model.weights, model.trainable_weights, model.optimizer.variables, residuals
        held.append([sum(np.size(v) for v in variables) for variables in kinds])
    whole, half = held
    assert all(part <= 0.6 * all_of_it for part, all_of_it in zip(half, whole, strict=True)), held


@pytest.mark.workers(2, *nightly(4))
def test_members_hold_no_more_than_their_parts_and_copies(world_size):
    model = MODELS["transformer"]()
    kernel = weakref.ref(model.hidden.kernel.value)
    model_parallel.split(model, groups_of(world_size), min_size=0)
    compiled(model, hvd.DistributedOptimizer(clipped_adam()))
    fit_group(model, "transformer", epochs=1)
    gc.collect()
    assert kernel() is None
    whole = sum(np.size(w) for w in MODELS["transformer"]().get_weights())
    copied = sum(np.size(v) for v in model.weights if not is_part(v))
    sizes = [np.size(v) for v in model.weights]
    assert sum(sizes) == (whole - copied) / world_size + copied
    slots = [np.size(v) for v in model.optimizer.variables if np.size(v) > 1]
    assert sum(slots) == 2 * sum(sizes)


@pytest.mark.workers(2)
@pytest.mark.parametrize("policy", ["float32", *nightly("mixed_bfloat16")])
def test_members_exchange_each_activation_once_forward_and_once_backward(policy, world_size):
    """Members send each value to each other, in the type of the computation, and get it back."""
    keras.config.set_dtype_policy(policy)
    try:
        model = MODELS["transformer"]()
    finally:
        keras.config.set_dtype_policy("float32")
    groups = model_parallel.Groups(2)
    model = model_parallel.split(model, groups, min_size=0)
    sent, run = collections.Counter(), groups.within.run

    def recording(generators):
        def note(request):
            sent[request.name.rpartition("/")[2]] += request_bytes(request, world_size)

        return run([tap_requests(generator, note) for generator in generators])

    groups.within.run = recording
    compiled(model, hvd.DistributedOptimizer(momentum()), run_eagerly=True)
    x, y, _ = data_of("transformer")
    model.train_on_batch(x[:4], y[:4])
    tokens, size = 4 * 6, 2 if policy == "mixed_bfloat16" else 4  # bytes
    # Positions have no batch. Hidden values and last ones follow.
    values = 6 * 8 + tokens * (32 + 8)
    logits = tokens * CLASSES * 4  # Keras computes them in the type of the embeddings
    assert sent["gather"] == sent["scatter"] == (values * size + logits) / 2
    # The rows of tied embeddings and the output of attention are added up: 2 (M - 1) / M.
    assert sent["sum"] == sent["sum_of_gradients"] == 2 * tokens * 8 * size
    copies = sum(np.size(v) for v in model.trainable_weights if not is_part(v))
    assert sent["copies"] == copies * 4
    others = {"gather", "scatter", "sum", "sum_of_gradients", "copies"}
    assert sum(count for name, count in sent.items() if name not in others) < 100
