"""ResizableBatches over several processes."""

import itertools

import keras
import numpy as np
import pytest

import tf_onebit.horovod as hvd
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import assert_same_bits_on_all_ranks, gather, rank
from tests.support.recording import DATA, Between, Recording, fit, numbered, resizing, times_each
from tf_onebit import FullPrecision, OneBit, ResizableBatches
from tf_onebit.distribute import MultiWorkerMirroredStrategy

JOBS = [("horovod", 3), ("tensorflow", 2)]
both_engines = pytest.mark.workers(jobs=[*JOBS, *nightly_rows(("tensorflow", 3))])
horovod_first = pytest.mark.workers(3, engines=["horovod", *nightly("tensorflow")])


def recording(engine, exchange, **arguments):
    """Returns a model whose workers exchange gradients."""
    optimizer = keras.optimizers.SGD(1e-4, weight_decay=0.1)
    if engine == "horovod":
        model = Recording()
        optimizer = hvd.DistributedOptimizer(optimizer, exchange=exchange)
        model.compile(optimizer, "mse", **arguments)
        return model
    with MultiWorkerMirroredStrategy(exchange).scope():
        model = Recording()
        model.compile(keras.optimizers.SGD(1e-4, weight_decay=0.1), "mse", **arguments)
    return model


EVERY_SAMPLE = [
    (*job, *kind)
    for job in [*JOBS, ("tensorflow", 3)]
    for kind in itertools.product(["arrays", "PyDataset"], [1, 2])
]
USUAL = [("horovod", 3, "PyDataset", 1), ("tensorflow", 2, "arrays", 2)]


@pytest.mark.workers(
    jobs=[*USUAL, *nightly_rows(*(run for run in EVERY_SAMPLE if run not in USUAL))],
    also=["kind", "steps_per_execution"],
)
def test_every_sample_once_on_one_worker(engine, world_size, kind, steps_per_execution):
    model = recording(engine, OneBit(), steps_per_execution=steps_per_execution)
    batches = ResizableBatches(DATA[kind](), 6, seed=1)
    sizes = {1: 30, 2: 6, 4: 48, 5: 12}
    fit(model, batches, resizing(batches, sizes), epochs=2)
    assert batches.position == 210
    parts = gather(model.batches)
    minibatches = [sum(step, []) for step in zip(*parts, strict=True)]
    assert times_each(sum(minibatches, []), 105) == 2
    assert times_each(sum(minibatches, [])[:105], 105) == 1
    assert all(all(step) for step in zip(*parts, strict=True))
    assert [len(minibatch) for minibatch in minibatches][: 2 * steps_per_execution] == (
        steps_per_execution * [6] + steps_per_execution * [30]
    )
    assert model.steps == len(minibatches)
    assert_same_bits_on_all_ranks([np.array(v) for v in model.trainable_variables])


@both_engines
def test_workers_train_as_one_would(engine, world_size):
    data = numbered(96)
    model = recording(engine, FullPrecision())
    batches = ResizableBatches(data, 12, seed=1)
    weights = model.get_weights()
    fit(model, batches, resizing(batches, {2: 24, 4: 6}))
    alone = Recording()
    alone.compile(keras.optimizers.SGD(1e-4, weight_decay=0.1), "mse")
    alone.set_weights(weights)
    batches = ResizableBatches(data, 12, seed=1, rank=0, world_size=1)
    fit(alone, batches, resizing(batches, {2: 24, 4: 6}))
    assert model.steps == alone.steps == 8
    for weights, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(weights, expected, rtol=1e-4)


@horovod_first
def test_trials_are_the_same_on_all_workers(engine, world_size):
    model = recording(engine, OneBit())
    batches = ResizableBatches(numbered(96), 12, seed=1)
    trials = []

    def look(steps):
        if steps == 2:
            before = len(model.batches)
            for minibatch in batches.peek(40, 18):
                model.train_function(minibatch)
            trials.extend(model.batches[before:])
            del model.batches[before:]

    fit(model, batches, Between(look))
    assert_same_bits_on_all_ranks([np.array(v) for v in model.trainable_variables])
    tried = [sum(step, []) for step in zip(*gather(trials), strict=True)]
    trained = [sum(step, []) for step in zip(*gather(model.batches), strict=True)]
    assert [len(minibatch) for minibatch in tried] == [18, 11, 11]
    assert sum(tried, []) == sum(trained[2:], [])[:40]


@horovod_first
@pytest.mark.parametrize("name", ["seed", "global_batch_size", "samples"])
def test_workers_that_differ_are_refused(engine, world_size, name):
    is_last = rank() == world_size - 1
    batches = ResizableBatches(
        numbered(60 + (name == "samples" and is_last)),
        12 + 6 * (name == "global_batch_size" and is_last),
        seed=int(name == "seed" and is_last),
    )
    with pytest.raises(ValueError, match=f"{name} of ResizableBatches must be the same on all"):
        recording(engine, OneBit()).fit(batches, verbose=0)


@both_engines
def test_another_rank_than_that_of_the_job_is_refused(engine, world_size):
    batches = ResizableBatches(
        numbered(60), 12, rank=(rank() + 1) % world_size, world_size=world_size
    )
    with pytest.raises(ValueError, match=f"must agree with the job.*worker {rank()} of"):
        recording(engine, OneBit()).fit(batches, verbose=0)


@pytest.mark.workers(2)
def test_workers_of_horovod_must_be_known(world_size):
    model = Recording()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="2 workers of Horovod.*rank=hvd.rank"):
        model.fit(ResizableBatches(numbered(60), 12), verbose=0)
    fit(model, ResizableBatches(numbered(60), 12, seed=1, rank=rank(), world_size=2))
    assert times_each(sum(gather(model.samples), []), 60) == 1
