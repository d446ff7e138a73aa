"""Fragments of a model that synchronize in turn, some steps late, in lockstep."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.reference.bmuf import LateFragments
from tests.support.nightly import nightly
from tests.unit.bmuf.test_blocks import assign_flat, flat
from tf_onebit import FullPrecision, OneBit, optimizers
from tf_onebit._bmuf.equations import BlockFilter
from tf_onebit._bmuf.fragments import divide
from tf_onebit._bmuf.meeting import End
from tf_onebit._bmuf.synchronization import BlockSynchronization
from tf_onebit._bmuf.variables import block_variables
from tf_onebit.collectives.lockstep import LockstepEngine

WORKERS, FRAGMENTS, UNITS = 3, 3, 4
SIZE = FRAGMENTS * (UNITS * UNITS + UNITS)
PLACES = [slice(i * SIZE // FRAGMENTS, (i + 1) * SIZE // FRAGMENTS) for i in range(FRAGMENTS)]
# Steps of each worker between two turns. In the last row one has no more data.
STEPS = [[2, 2, 2], [1, 3, 2], [2, 0, 2]]
# Of a block, which has others in fact.
NOMINAL_STEPS = 6
# Steps of each worker while a fragment is under way.
LATE = [1, 1, 1]


class Workers:
    """Models whose weights change at random in place of training, and their oracle."""

    def __init__(
        self,
        block_filter,
        dtype="float64",
        exchange=None,
        workers=WORKERS,
        normalized=False,
        outer_optimizer=None,
        overlaps=True,
    ):
        self.models = [make_model(dtype, normalized) for _ in range(workers)]
        self.dtype, self.rng, self._filter = dtype, np.random.default_rng(1), block_filter
        self.blocks = BlockSynchronization(
            LockstepEngine(["CPU:0"] * workers),
            BlockFilter(*block_filter) if outer_optimizer is None else BlockFilter(0.0),
            exchange or FullPrecision(),
            [block_variables(model, "bmuf_adam", weights_alone=True) for model in self.models],
            fragments=FRAGMENTS,
            nominal_steps=NOMINAL_STEPS if overlaps else None,
            outer_optimizer=outer_optimizer,
        )
        self._end_block = self.blocks.start if overlaps else self.blocks.synchronize
        self.blocks.train()
        self.oracle = LateFragments(self.weights[0], workers, PLACES, *block_filter)
        self.steps = np.zeros([FRAGMENTS, workers], int)  # since a fragment's block began
        self.sent = {}  # steps of the blocks that are under way, by fragment

    def train(self, steps):
        """Changes the weights, and counts steps."""
        for worker, count in enumerate(steps):
            change = 0.1 * count * self.rng.standard_normal(SIZE).astype(self.dtype)
            weights = self.models[worker].trainable_variables
            assign_flat(weights, self.weights[worker] + change)
            self.models[worker].optimizer.iterations.assign_add(count)
            for statistic in self.models[worker].non_trainable_variables:
                statistic.assign_add(np.full(statistic.shape, count))
            self.oracle.theta[worker] += change
        self.steps += steps
        self.blocks.count_batches(1)

    def start(self):
        turn = self.blocks.turn
        self.oracle.start(turn)
        self.sent[turn] = self.steps[turn].copy()
        self.steps[turn] = 0
        self._end_block()

    def finish(self, batches):
        """Finishes the oldest of what is under way, which is that many batches old."""
        self.blocks.finish(batches)
        turn = next(iter(self.sent))
        self.oracle.finish(turn, self.sent.pop(turn))

    def resume(self, before):
        """Takes the state of other workers, through a backup."""
        with before.blocks.view():
            states = before.blocks.states()
            shown = [[v.numpy() for v in all_variables(model)] for model in before.models]
        as_many = len(self.models) == len(before.models)
        for i, model in enumerate(self.models):
            assign(model, shown[i if as_many else 0])
        self.blocks.load_states(states, list(range(len(self.models))), as_many)

    @property
    def weights(self):
        return np.stack([flat(model.trainable_variables) for model in self.models])

    @property
    def global_models(self):
        with self.blocks.view():
            return self.weights


def make_model(dtype="float32", normalized=False):
    layers = [keras.layers.Dense(UNITS, dtype=dtype) for _ in range(FRAGMENTS)]
    if normalized:  # without weights of its own
        layers.append(keras.layers.BatchNormalization(center=False, scale=False, dtype=dtype))
    model = keras.Sequential([keras.Input((UNITS,), dtype=dtype), *layers])
    model.compile(optimizers.Adam(0.01), "mse")
    return model


# Nesterov's momentum, and the classical one with another learning rate.
@pytest.mark.parametrize("block_filter", [(0.75, 1.0, True), (0.6, 0.9, False)])
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("at_once", [1, 2, FRAGMENTS])
def test_late_fragments_are_filtered_as_their_equations_say(
    block_filter, dtype, tolerance, at_once
):
    """Several fragments are under way at once."""
    workers = Workers(block_filter, dtype)
    iterations, since = 0, np.zeros(WORKERS, int)
    for turn in range(12):
        workers.train(STEPS[turn % len(STEPS)])
        # Schedules follow the worker that has made the most steps.
        iterations += max(since + STEPS[turn % len(STEPS)])
        workers.start()
        workers.train(LATE)
        since = np.array(LATE)
        if len(workers.sent) == at_once:
            workers.finish(2 * at_once - 1)
            assert_close(workers.weights, workers.oracle.theta, tolerance)
    while workers.sent:
        workers.finish(1)
    for model in workers.models:
        assert int(model.optimizer.iterations) == iterations + LATE[0]
    for model in workers.global_models:
        assert_close(model, workers.oracle.theta_global, tolerance)


def assert_close(ours, theirs, tolerance):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def test_at_the_end_of_an_epoch_all_fragments_are_synchronized():
    workers = Workers((0.0, 1.0, True))
    begin = workers.weights[0]
    workers.train([2, 2, 2])
    workers.start()
    workers.train([1, 1, 1])
    made = workers.weights.mean(axis=0) - begin
    workers.blocks.end(End.EPOCH)
    np.testing.assert_allclose(workers.weights, np.tile(begin + made, (WORKERS, 1)), rtol=1e-12)
    assert workers.blocks.turn == 0


def test_nothing_is_lost_of_late_fragments_that_are_exchanged_with_one_bit():
    """Error feedback: the models' change and the unsent rest add up to the workers' change."""
    exchange = OneBit(min_size=1, min_column_size=1)
    workers = Workers((0.0, 1.0, True), "float32", exchange)
    begin, made = workers.weights[0], np.zeros(SIZE)
    for _ in range(4 * FRAGMENTS):
        before = workers.weights
        workers.train([1, 1, 1])
        made += (workers.weights - before).mean(axis=0)
        workers.blocks.start()
    workers.blocks.end(End.EPOCH)
    assert len(np.unique(workers.weights, axis=0)) == 1
    unsent = np.linalg.norm(workers.weights[0] - begin - made)
    sent_last = workers.blocks.residual_sum_of_squares()
    assert 0 < unsent < 0.5 * np.linalg.norm(made)
    assert sent_last > 0


@pytest.mark.parametrize("exchange", [OneBit(min_size=1, min_column_size=1), *nightly(None)])
@pytest.mark.parametrize("at_end", [False, True], ids=["in_an_epoch", "at_its_end"])
def test_a_backup_goes_on_with_what_was_under_way(at_end, exchange):
    before, after = (Workers((0.75, 1.0, True), "float32", exchange) for _ in range(2))
    for _ in range(FRAGMENTS + 1):
        before.train([1, 2, 1])
        before.blocks.start()
    before.train([1, 1, 1])
    after.resume(before)
    if not at_end:
        after.blocks.train()
        np.testing.assert_array_equal(after.weights, before.weights)
    for workers in (before, after):
        if at_end:
            break
        workers.rng = np.random.default_rng(2)
        workers.blocks.finish()
        for _ in range(2):
            workers.train([2, 1, 1])
            workers.blocks.start()
    for workers in (before, after):
        workers.blocks.end(End.EPOCH)
    np.testing.assert_array_equal(after.weights, before.weights)


@pytest.mark.parametrize(
    "steps, workers", [([2, 2, 2], 2), ([3, 1, 2], 2), ([3, 1, 2], 1), ([2], 3), ([2, 4], 3)]
)
def test_other_numbers_of_workers_go_on_from_the_mean_of_what_was_under_way(steps, workers):
    before = Workers((0.0, 1.0, True), workers=len(steps))
    before.train(steps)
    where = before.weights
    before.blocks.start()
    before.train([1] * len(steps))
    learned = (before.weights - where).mean(axis=0)
    after = Workers((0.0, 1.0, True), workers=workers)
    after.resume(before)
    after.blocks.train()
    assert_close(after.weights, np.tile(where.mean(axis=0) + learned, (workers, 1)), 1e-12)
    after.blocks.finish()
    # Until then workers with more steps counted more.
    expected = np.average(where, axis=0, weights=steps) + learned
    own = PLACES[0]
    assert_close(after.weights[:, own], np.tile(expected[own], (workers, 1)), 1e-12)


def all_variables(model):
    return [v.value for v in (*model.variables, *model.optimizer.variables)]


def assign(model, arrays):
    for variable, array in zip(all_variables(model), arrays, strict=True):
        variable.assign(array)


def test_a_backup_of_other_fragments_is_refused():
    before = Workers((0.75, 1.0, True))
    before.train([1, 1, 1])
    with before.blocks.view():
        states = before.blocks.states()
    model = make_model("float64")
    one = BlockSynchronization(
        LockstepEngine(["CPU:0"]),
        BlockFilter(0.75),
        FullPrecision(),
        [block_variables(model, "bmuf_adam", weights_alone=True)],
    )
    one.train()
    with pytest.raises(ValueError, match="state of 3 fragments. Expected: 1. Use the earlier"):
        one.load_states(states[:1], [0], as_many=True)


def test_what_is_not_finite_is_an_error_and_training_goes_on_from_before():
    workers = Workers((0.75, 1.0, True))
    workers.train([1, 1, 1])
    workers.blocks.start()
    workers.blocks.finish()
    good = workers.global_models
    workers.train([1, 1, 1])
    workers.models[1].layers[1].bias.assign(np.full(UNITS, np.nan))
    workers.blocks.start()
    with pytest.raises(tf.errors.InvalidArgumentError, match="Rank 1 met .*dense.*/bias'"):
        workers.blocks.finish()
    np.testing.assert_array_equal(workers.weights, good)


def test_late_blocks_without_any_step_leave_models_alone():
    """A loss scale that is too large lets all workers skip their steps."""
    workers = Workers((0.75, 1.0, True), normalized=True)
    workers.train([1, 1, 1])
    for _ in range(FRAGMENTS):
        workers.blocks.start()
    workers.blocks.finish()
    mean = np.array(workers.models[0].layers[-1].moving_mean)
    for _ in range(FRAGMENTS):
        workers.blocks.start()
        workers.blocks.finish()
    # The look-ahead moves on, as after any block.
    assert np.isfinite(workers.weights).all()
    np.testing.assert_array_equal(workers.models[0].layers[-1].moving_mean, mean)
    assert mean.all()


def test_a_backup_of_what_is_not_finite_is_the_same_error():
    workers = Workers((0.75, 1.0, True))
    workers.train([1, 1, 1])
    begin = workers.global_models
    workers.models[1].layers[1].bias.assign(np.full(UNITS, np.nan))
    for _ in range(2):
        workers.blocks.start()
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="Weights must be finite after a block"
    ):
        with workers.blocks.view():
            workers.blocks.states()
    workers.blocks.train()
    assert np.isfinite(workers.weights).all()
    np.testing.assert_array_equal(workers.weights[:, PLACES[1]], begin[:, PLACES[1]])


def test_weights_that_are_assigned_while_a_fragment_is_under_way_are_begun_from():
    workers = Workers((0.75, 1.0, True))
    workers.train([1, 3, 2])
    workers.blocks.start()
    with workers.blocks.view():
        for model in workers.models:
            assign_flat(model.trainable_variables, np.ones(SIZE))
    workers.blocks.finish()
    np.testing.assert_array_equal(workers.weights, np.ones([WORKERS, SIZE]))
    assert {int(model.optimizer.iterations) for model in workers.models} == {3}


# Each layer has twice as many weights as units, but for the one after the large one.
SIZES = [([1, 1, 1, 1], 2, [2, 2]), ([1, 1, 1, 9], 3, [2, 1, 1]), ([9, 1, 1, 1], 4, [1, 1, 1, 1])]


@pytest.mark.parametrize("units, count, expected", SIZES)
def test_fragments_are_consecutive_layers_of_about_equal_size(units, count, expected):
    layers = [keras.layers.Dense(n) for n in units]
    model = keras.Sequential([keras.Input((1,)), *layers])
    weights = model.trainable_variables
    parts = [weights[places] for places in divide(weights, count)]
    assert [len(part) // 2 for part in parts] == expected  # a kernel and a bias each
    assert sum(parts, []) == weights


def test_a_model_has_no_more_fragments_than_layers():
    with pytest.raises(
        ValueError, match="fragments=4 for a model of 3 such layers. Use fragments=3"
    ):
        divide(make_model().trainable_variables, 4)
