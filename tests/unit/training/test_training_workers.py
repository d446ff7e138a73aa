"""`TrainingWorkers`: who makes every step together with whom."""

import types

import pytest

from tf_onebit._training.training_workers import TrainingWorkers
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.collectives.whereabouts import Whereabouts

JOB, BETWEEN, WITHIN = (LockstepEngine(["CPU:0"] * size) for size in (4, 2, 3))
JOB.whereabouts = Whereabouts()  # not those of this process
OF_PROCESSES = types.SimpleNamespace(between=BETWEEN, within=WITHIN, processes=2)
OF_DEVICES = types.SimpleNamespace(between=BETWEEN, within=WITHIN, processes=1)


def together(train_apart=False, divided=False, follows=None):
    workers = TrainingWorkers(JOB, train_apart)
    if divided:
        workers.divide(BETWEEN)
    if follows is not None:
        workers.follow(follows)
    return workers


@pytest.mark.parametrize(
    "workers, are_in_step, in_step, holders",
    [
        (together(), True, JOB, JOB),
        (together(train_apart=True), False, None, JOB),
        (together(divided=True), False, BETWEEN, JOB),
        (together(follows=OF_PROCESSES), True, JOB, BETWEEN),
        (together(follows=OF_PROCESSES, train_apart=True), False, WITHIN, BETWEEN),
        (together(follows=OF_DEVICES, train_apart=True), False, None, BETWEEN),
    ],
    ids=["all", "apart", "divided", "groups", "groups apart", "groups of devices apart"],
)
def test_workers_make_steps_together_with(workers, are_in_step, in_step, holders):
    assert workers.are_in_step == are_in_step
    assert workers.in_step is in_step
    assert workers.holders is holders


def test_devices_belong_to_workers_in_turn():
    assert together(follows=OF_DEVICES).of_worker(1, ["a", "b", "c", "d"]) == ["b", "d"]
    assert together(divided=True).of_worker(0, ["a", "b", "c", "d"]) == ["a", "c"]
