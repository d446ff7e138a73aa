"""Gradients for tests, and the workers that exchange them."""

import math

import numpy as np
import tensorflow as tf

from tf_onebit.collectives import lockstep
from tf_onebit.exchanges import Bucketed, FullPrecision, GradientSpec, Recipe, run_stages
from tf_onebit.exchanges.schedule import innermost

# The shapes of a model's variables, with empty ones, scalars and odd sizes.
SHAPES = [(33,), (10, 100), (), (0,), (31, 1), (3, 3, 4, 24), (1, 1)]
SIZE = sum(map(math.prod, SHAPES))

# Largest relative error of rounding to a type. For float32 it is the error of a few sums.
ROUNDING = {"float32": 2e-6, "float16": 2.0**-11, "bfloat16": 2.0**-8}


class Exact(FullPrecision):
    """The exact sum of updates."""

    moments = "local"


def gradient_values(rng, shape):
    """Returns heavy-tailed values, like gradients, with zeros of both signs and one-sided runs."""
    values = rng.normal(size=math.prod(shape)) * np.exp(rng.normal(size=math.prod(shape)))
    values[3::7] = 0.0
    values[5::11] = -0.0
    values[: values.size // 4] = np.abs(values[: values.size // 4])
    return values.reshape(shape)


def gradients_of(rng, shapes, dtype="float32"):
    return [tf.constant(gradient_values(rng, shape), dtype) for shape in shapes]


def specs_of(shapes, dtype="float32"):
    return [GradientSpec(f"layer_{i}/kernel", shape, dtype) for i, shape in enumerate(shapes)]


def build_workers(template, specs, world_size):
    """Returns the exchange of each rank. A recipe is divided into buckets.

    If its moments are local, it takes updates.
    """
    if isinstance(template, Recipe):
        takes_updates = innermost(template).moments == "local"
        workers = [Bucketed(template, takes_updates) for _ in range(world_size)]
    else:
        workers = [template.clone() for _ in range(world_size)]
    for rank, worker in enumerate(workers):
        worker.build(specs, rank, world_size, "test")
    return workers


def run(worker, gradients, scale=1.0):
    """Generator: runs the step of a worker."""
    if hasattr(worker, "run"):
        return worker.run(gradients, scale)
    return run_stages(worker, gradients, scale)


def exchange(workers, gradients, scale=1.0):
    """Runs one step. Returns the exchanged gradients of each rank, and the flags."""
    results = lockstep.run(
        [run(worker, mine, scale) for worker, mine in zip(workers, gradients, strict=True)]
    )
    exchanged, flags = zip(*results, strict=True)
    return list(exchanged), list(flags)


def as_float64(tensor):
    return tf.cast(tensor, tf.float64).numpy()


def flat(tensors, dtype=tf.float32):
    """Returns all values of a list of tensors, one after the other."""
    return np.concatenate([tf.cast(tensor, dtype).numpy().ravel() for tensor in tensors])


def assert_close(actual, expected, relative=ROUNDING["float32"]):
    np.testing.assert_allclose(actual, expected, rtol=relative, atol=2e-5)
