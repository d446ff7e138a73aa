"""State of optimizers of workers that train in blocks: averaged, kept, and counted."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.nightly import nightly, nightly_rows
from tests.unit.bmuf.test_blocks import (
    EVEN,
    NO_DATA,
    ONE_BIT,
    UNEVEN,
    WORKERS,
    Workers,
    batch,
    linear_model,
)
from tf_onebit import optimizers


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("Adam", NO_DATA),
        ("Nadam", UNEVEN),
        *nightly_rows(("Adam", EVEN), ("Adam", UNEVEN), ("Nadam", EVEN), ("Nadam", NO_DATA)),
    ],
)
def test_moments_that_workers_keep_are_corrected_for_their_own_steps(name, steps, eagerly):
    def make():
        return linear_model(optimizer=getattr(optimizers, name)(0.01))

    workers = Workers((0.75, 1.0, True), template=ONE_BIT, make=make)
    own = np.zeros(WORKERS)
    for block in range(3):
        workers.train(block, steps)
        kept = [own_state(model.optimizer) for model in workers.models]
        workers.blocks.synchronize()
        own += steps
        assert [m.optimizer.moment_steps for m in workers.models] == pytest.approx(own)
        for model, state in zip(workers.models, kept, strict=True):
            assert own_state(model.optimizer) == state
        # Schedules follow the worker with the most steps.
        assert {int(m.optimizer.iterations) for m in workers.models} == {(block + 1) * max(steps)}


def own_state(optimizer):
    """Returns the moments' state, without counters."""
    return [np.array(v).tolist() for v in optimizer.variables[2:] if "ahead" not in v.path]


AVERAGING = {
    "ours": lambda: optimizers.Adam(0.01, amsgrad=True),
    "nadam": lambda: optimizers.Nadam(0.01),
    "stock_adam": lambda: keras.optimizers.Adam(0.01),
    "stock_nadam": lambda: keras.optimizers.Nadam(0.01),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "normalized_adagrad": lambda: optimizers.NormalizedAdaGrad(0.01, 500, 8, momentum=0.5),
}


# Of them, one has a product, one a maximum, and one a velocity.
AVERAGED = ("stock_nadam", "ours", "momentum")


@pytest.mark.parametrize("exchange", [ONE_BIT, *nightly(None)], ids=["one_bit", "full_precision"])
@pytest.mark.parametrize(
    "name", [*AVERAGED, *nightly(*(name for name in AVERAGING if name not in AVERAGED))]
)
def test_state_of_optimizers_is_averaged_on_request(name, exchange, eagerly):
    steps = UNEVEN[:2]
    workers = Workers(
        (0.75, 1.0, True),
        make=lambda: linear_model(optimizer=AVERAGING[name]()),
        correction="average",
        template=exchange,
        corrects_moments=False,
        workers=len(steps),
    )
    workers.train(0, steps)
    weights = np.array(steps) / sum(steps)
    before = [optimizer_state(model) for model in workers.models]
    workers.blocks.synchronize()
    for model in workers.models:
        for array, *parts in zip(optimizer_state(model), *before, strict=True):
            expected = np.tensordot(weights, np.stack(parts).astype(np.float64), axes=1)
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-9)


def optimizer_state(model):
    return [np.array(v) for v in own_variables(model.optimizer)]


def own_variables(optimizer):
    return [v for v in optimizer.variables if len(v.shape) or "product" in v.path]


OURS = {
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "nadam": lambda: optimizers.Nadam(0.01),
    "rectified_adam": lambda: optimizers.RectifiedAdam(0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5),
    "normalized_adagrad": lambda: optimizers.NormalizedAdaGrad(0.01, 500, 8, momentum=0.5),
}


@pytest.mark.parametrize(
    "name", ["nadam", "rmsprop", *nightly("adamw", "rectified_adam", "normalized_adagrad")]
)
def test_workers_with_the_same_batches_train_as_one(name, eagerly):
    """There is no block momentum, and the moments of all workers have the same form."""
    make = OURS[name]
    workers = Workers((0.0, 1.0, True), make=lambda: linear_model(optimizer=make()), workers=2)
    alone = linear_model(optimizer=make())
    for block in range(4):
        for step in range(3):
            x, y = (tf.constant(a, tf.float32) for a in batch(block, step, 0))
            alone.train_on_batch(x, y)
            for worker in range(len(workers.models)):
                workers.step(worker, x, y)
        workers.blocks.synchronize()
    expected = [np.array(v) for v in (*alone.variables, *alone.optimizer.variables)]
    for model in workers.models:
        for variable, value in zip(
            (*model.variables, *model.optimizer.variables), expected, strict=True
        ):
            np.testing.assert_allclose(variable, value, rtol=1e-4, atol=1e-6)


LOCAL = {
    "stock_adam": lambda: keras.optimizers.Adam(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
}


@pytest.mark.parametrize("name", ["adafactor", "stock_adam", *nightly("muon", "momentum")])
def test_state_of_any_optimizer_stays_with_its_worker_on_request(name, eagerly):
    workers = Workers(
        (0.75, 1.0, True),
        make=lambda: linear_model(optimizer=LOCAL[name]()),
        correction="local",
        corrects_moments=False,
        workers=2,
    )
    workers.train(0, [2, 2])
    kept = [own_state(model.optimizer) for model in workers.models]
    mean = workers.weights.mean(axis=0)
    workers.blocks.synchronize()
    assert kept[0] != kept[1]
    assert [own_state(model.optimizer) for model in workers.models] == kept
    np.testing.assert_allclose(workers.global_models, np.tile(mean, (2, 1)), rtol=1e-5, atol=1e-6)
