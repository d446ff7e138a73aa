"""BlockMomentum in `model.fit` of one worker, and what it refuses."""

import functools

import keras
import numpy as np
import pytest

import tf_onebit.horovod as hvd
from tests.support.bits import assert_same_bits
from tests.support.nightly import nightly, nightly_rows
from tf_onebit import FullPrecision, Local, OneBit, optimizers
from tf_onebit._bmuf.equations import BlockFilter
from tf_onebit.callbacks import BackupAndRestore, BlockMomentum

INPUTS, OUTPUTS = 4, 2
BATCH_SIZE, BATCHES = 4, 7  # of an epoch
RNG = np.random.default_rng(0)
X = RNG.standard_normal((BATCHES * BATCH_SIZE, INPUTS)).astype(np.float32)
Y = np.sin(X[:, :OUTPUTS]) + X[:, -1:]


@pytest.fixture(autouse=True, scope="module")
def one_worker():
    hvd.init()


def sgd(**arguments):
    return keras.optimizers.SGD(0.1, **arguments)


def sgd_with_momentum():
    return sgd(momentum=0.9)


def adam():
    return optimizers.Adam(0.01)


def make_model(optimizer=None, distribute=True, built=True, exchange=None, **arguments):
    keras.utils.set_random_seed(0)
    optimizer = optimizer or sgd()
    if distribute:
        optimizer = hvd.DistributedOptimizer(optimizer, exchange=exchange or Local())
    model = keras.Sequential(
        [
            *([keras.Input([INPUTS])] if built else []),
            keras.layers.Dense(5, activation="relu"),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dense(OUTPUTS),
        ]
    )
    model.compile(optimizer, "mse", **arguments)
    return model


@functools.cache
def _traced(make_optimizer, distribute):
    model = make_model(make_optimizer(), distribute)
    model.optimizer.build(model.trainable_variables)
    return model, state(model)


def untrained(make_optimizer, distribute=True):
    """Returns a model as if it had never been trained, which is traced once."""
    model, begin = _traced(make_optimizer, distribute)
    for variable, value in zip(variables_of(model), begin, strict=True):
        variable.assign(value)
    return model


def variables_of(model):
    return [*model.variables, *model.optimizer.variables]


def fit(model, callbacks=(), epochs=2, **arguments):
    settings = {"batch_size": BATCH_SIZE, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(X, Y, callbacks=list(callbacks), **(settings | arguments)).history


def state(model):
    return [v.numpy() for v in variables_of(model)]


# Without block momentum, one worker trains as without the callback.

OPTIMIZERS = {
    "sgd_momentum": lambda: sgd(momentum=0.9, nesterov=True),
    "adam_amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "nadam": lambda: optimizers.Nadam(0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5),
}
WAYS = {
    "plain": ({}, {}),
    "validation": ({}, {"validation_data": (X, Y)}),
    "unbuilt": ({"built": False}, {}),
    "steps_per_execution": ({"steps_per_execution": 3}, {}),
}


@pytest.mark.parametrize(
    "optimizer, way",
    [
        ("sgd_momentum", "validation"),
        ("nadam", "unbuilt"),
        ("adam_amsgrad", "steps_per_execution"),
        *nightly_rows(*((name, "plain") for name in OPTIMIZERS)),
        *nightly_rows(("adam_amsgrad", "validation"), ("adam_amsgrad", "unbuilt")),
    ],
)
def test_one_worker_without_momentum_trains_as_ever(optimizer, way):
    compiling, fitting = WAYS[way]
    plain = make_model(OPTIMIZERS[optimizer](), distribute=False, **compiling)
    expected = fit(plain, **fitting)
    model = make_model(OPTIMIZERS[optimizer](), **compiling)
    assert fit(model, [BlockMomentum(3)], **fitting) == expected
    assert_same_bits(state(model), state(plain))


# With block momentum, training follows the equations.


def trained_in_blocks(blocks, filters, make_optimizer=sgd, forget=None):
    """Returns the global models after each of some blocks of one worker, by the equations.

    Args:
        blocks: list of numbers of steps.
        filters: list of (eta, zeta, whether momentum is Nesterov's), by block.
        make_optimizer: function that makes a Keras optimizer.
        forget: function of the optimizer, called at the end of each block.
    """
    model = untrained(make_optimizer, distribute=False)
    batch, models = 0, []
    weights = model.trainable_variables
    begin = [v.numpy() for v in weights]
    deltas = [0.0] * len(begin)
    for steps, (eta, zeta, nesterov) in zip(blocks, filters, strict=True):
        for _ in range(steps):
            rows = slice(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE)
            model.train_on_batch(X[rows], Y[rows])
            batch = (batch + 1) % BATCHES
        update = BlockFilter(eta, zeta, nesterov).model
        ends = [v.numpy() for v in weights]
        filtered = [update(*of_one) for of_one in zip(ends, begin, deltas, strict=True)]
        shown, begin, deltas = map(list, zip(*filtered, strict=True))
        if eta == 0:  # while the model is warmed up
            deltas = [0.0] * len(begin)
        statistics = [v.numpy() for v in model.non_trainable_variables if "seed" not in v.path]
        models.append((shown, statistics))
        for variable, value in zip(weights, begin, strict=True):
            variable.assign(value)
        if forget is not None:
            forget(model.optimizer)
    return models


def assert_close_to(model, expected):
    shown, statistics = expected
    for variable, value in zip(model.trainable_variables, shown, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-4, atol=2e-6)
    for variable, value in zip(model.non_trainable_variables, statistics, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-4, atol=2e-6)


# Blocks of three steps, in epochs of seven.
BLOCKS = [3, 3, 1, 3, 3, 1]


@pytest.mark.parametrize("block_filter", [(0.5, 1, True), (0.5, 0.75, True), (0.5, 1, False)])
def test_epochs_end_with_the_global_model(block_filter):
    model = untrained(sgd)
    eta, zeta, nesterov = block_filter
    fit(model, [BlockMomentum(3, eta, zeta, nesterov)])
    assert_close_to(model, trained_in_blocks(BLOCKS, [block_filter] * 6)[-1])


@pytest.mark.parametrize(
    "make_optimizer, arguments, blocks",
    [
        (sgd, {"steps_per_execution": 2}, [4, 3, 4, 3]),
        # In batches: three steps of two each, of which one spans two epochs.
        (lambda: sgd(gradient_accumulation_steps=2), {}, [6, 7, 1]),
    ],
    ids=["steps_per_execution", "accumulating"],
)
def test_blocks_are_of_steps(make_optimizer, arguments, blocks):
    model = make_model(make_optimizer(), **arguments)
    fit(model, [BlockMomentum(3, 0.5)])
    expected = trained_in_blocks(blocks, [(0.5, 1, True)] * len(blocks), make_optimizer)
    assert_close_to(model, expected[-1])


def forget_momentum(optimizer):
    for variable in optimizer.momentums:
        variable.assign(np.zeros(variable.shape))


@pytest.mark.parametrize(
    "correction, block_momentum, forget",
    [
        ("average", 0.5, None),
        ("reset", 0.5, forget_momentum),
        ("reset", 0.0, forget_momentum),
        ("bmuf_adam", 0.5, forget_momentum),
        ("bmuf_adam", 0.0, None),
    ],
)
def test_momentum_of_sgd_is_kept_or_begins_anew(correction, block_momentum, forget):
    model = untrained(sgd_with_momentum)
    fit(model, [BlockMomentum(3, block_momentum, moment_correction=correction)])
    filters = [(block_momentum, 1, True)] * 6
    expected = trained_in_blocks(BLOCKS, filters, sgd_with_momentum, forget)
    assert_close_to(model, expected[-1])


def test_reset_of_adam_begins_to_count_anew():
    model = untrained(adam)
    forget = optimizers.Adam.reset_moments
    fit(model, [BlockMomentum(3, 0.5, moment_correction="reset")])
    expected = trained_in_blocks(BLOCKS, [(0.5, 1, True)] * 6, adam, forget)
    assert_close_to(model, expected[-1])


def test_moments_of_adam_are_as_far_ahead_as_the_model():
    model = untrained(adam)
    fit(model, [BlockMomentum(3, 0.5)], epochs=1)
    # k of Eq. 4 and Algorithm 1, for blocks of 3, 3 and 1 steps.
    rho, k = 0.0, 0.0
    for steps in BLOCKS[:3]:
        rho = 0.5 * rho + steps
        k += steps + 0.5 * rho
    assert model.optimizer.moment_steps == pytest.approx(k)
    assert int(model.optimizer.iterations) == BATCHES
    averaged = untrained(adam)
    fit(averaged, [BlockMomentum(3, 0.5, moment_correction="average")], epochs=1)
    assert averaged.optimizer.moment_steps == BATCHES


def test_warm_up_has_no_momentum_and_leaves_none():
    model = untrained(sgd)
    fit(model, [BlockMomentum(3, 0.5, 0.75, warmup_steps=4)])
    filters = [(0, 1, True)] * 2 + [(0.5, 0.75, True)] * 4
    # The next blocks have no momentum of the blocks before.
    assert_close_to(model, trained_in_blocks(BLOCKS, filters)[-1])


def test_exchange_of_a_worker_alone_changes_nothing():
    states = []
    for exchange in (None, FullPrecision(), OneBit(min_size=1)):
        model = untrained(sgd)
        fit(model, [BlockMomentum(3, 0.5, exchange=exchange)])
        states.append(state(model))
    assert_same_bits(states[0], states[1])
    assert_same_bits(states[0], states[2])


# Other callbacks see the global model.


class Looking(keras.callbacks.Callback):
    """A callback that reads the weights often, and in all other ways at some places."""

    def __init__(self, folder, places):
        super().__init__()
        self.folder, self.places, self.weights, self.seen = folder, places, [], []

    def on_train_batch_end(self, batch, logs=None):
        self._look(batch)

    def on_epoch_end(self, epoch, logs=None):
        self._look("epoch")

    def _look(self, place):
        self.weights.append(self.model.get_weights())
        if len(self.weights) not in self.places:
            return
        paths = [self.folder / f"{len(self.seen)}{end}" for end in (".keras", ".weights.h5")]
        self.model.save(paths[0])
        self.model.save_weights(paths[1])
        losses = self.model.evaluate(X, Y, verbose=0), self.model.predict_on_batch(X)
        self.seen.append((self.weights[-1], paths, losses))


def test_others_see_the_global_model_and_do_not_disturb_training(tmp_path):
    # In the middle of a block of the second epoch, and at its end.
    looking = Looking(tmp_path, places=(8 + 5, 8 + 8))
    model = untrained(sgd_with_momentum)
    fit(model, [BlockMomentum(3, 0.5)])
    undisturbed = state(model)
    fit(untrained(sgd_with_momentum), [BlockMomentum(3, 0.5), looking])
    assert_same_bits(state(model), undisturbed)
    filters = [(0.5, 1, True)] * 6
    models = trained_in_blocks(BLOCKS, filters, sgd_with_momentum, forget_momentum)
    begin = [v.numpy() for v in make_model().trainable_variables]
    statistics = [v.numpy() for v in make_model().non_trainable_variables]
    # The last block to end, after each of seven batches and at the end of the epoch.
    ended = [-1, -1, 0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5]
    reference = make_model()
    for block, weights in zip(ended, looking.weights, strict=True):
        reference.set_weights(weights)
        assert_close_to(reference, models[block] if block >= 0 else (begin, statistics))
    for weights, (whole, file), (loss, predictions) in looking.seen:
        saved = keras.models.load_model(whole, compile=False).get_weights()
        assert_same_bits(saved, weights)
        reference.load_weights(file, skip_mismatch=True)
        assert_same_bits(reference.get_weights(), weights)
        assert loss == pytest.approx(reference.evaluate(X, Y, verbose=0), rel=1e-5)
        np.testing.assert_allclose(predictions, reference.predict(X, verbose=0), rtol=1e-5)


def test_validation_is_of_the_model_that_is_returned():
    model = untrained(sgd)
    history = fit(model, [BlockMomentum(3, 0.5)], validation_data=(X, Y))
    expected = model.evaluate(X, Y, BATCH_SIZE, verbose=0)
    assert history["val_loss"][-1] == pytest.approx(expected, rel=1e-6)


def test_methods_of_the_model_are_its_own_again_after_fit():
    model = untrained(sgd)
    fit(model, [BlockMomentum(3, 0.5)])
    own = {"evaluate", "export", "get_weights", "predict", "save", "save_weights"}
    assert not own & vars(model).keys()


def test_weights_that_are_assigned_between_epochs_are_begun_from():
    others = [np.full_like(w, 0.1) for w in make_model().get_weights()]
    changing = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: epoch == 0 and model.set_weights(others)
    )
    model = untrained(sgd)
    fit(model, [BlockMomentum(3, 0.5), changing])
    changed = model.get_weights()
    anew = untrained(sgd)
    anew.set_weights(others)
    fit(anew, [BlockMomentum(3, 0.5)], epochs=1)
    assert_same_bits(changed, anew.get_weights())


def test_second_fit_goes_on():
    model = untrained(adam)
    fit(model, [BlockMomentum(3, 0.5)])
    once = state(model)
    untrained(adam)
    callback = BlockMomentum(3, 0.5)
    for _ in range(2):
        fit(model, [callback], epochs=1)
    assert_same_bits(state(model), once)


def fit_interrupted(model):
    """Interrupts fit in a block, and returns the weights of the global model."""

    def interrupt(batch, logs):
        if batch == 4:  # one step into the third block
            raise KeyboardInterrupt

    interrupting = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
    seen = []
    watching = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(model.get_weights())
    )
    with pytest.raises(KeyboardInterrupt):
        fit(model, [BlockMomentum(2, 0.5), watching, interrupting])
    return seen[-1]


@pytest.mark.parametrize("steps", [2, *nightly(1)])
def test_a_backup_in_a_block_remembers_how_many_batches_it_has(steps, tmp_path):
    """Among them are batches after which the optimizer has made no step yet."""

    def interrupt(batch, logs):
        if batch == 5:
            raise KeyboardInterrupt

    def trained(*callbacks):
        model = make_model(sgd(gradient_accumulation_steps=2), steps_per_execution=steps)
        # Blocks of six batches.
        fit(model, [BlockMomentum(3, 0.5), *callbacks], epochs=3)
        return model

    backups = BackupAndRestore(tmp_path / "backups", save_freq=3)
    interrupting = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        trained(backups, interrupting)
    assert_same_bits(state(trained(backups)), state(trained()))


def test_blocks_come_before_backups(tmp_path):
    callbacks = [BackupAndRestore(tmp_path / "backups"), BlockMomentum(3)]
    with pytest.raises(ValueError, match="Put BlockMomentum before BackupAndRestore in the list"):
        fit(make_model(), callbacks)


def test_after_an_interruption_the_model_is_the_global_one_and_the_users_again():
    model = make_model()
    expected = fit_interrupted(model)
    assert_same_bits(model.get_weights(), expected)
    for variable in model.weights:
        variable.assign(np.zeros(variable.shape))
    assert model.evaluate(X, Y, verbose=0) == pytest.approx((Y**2).mean())


def test_a_model_that_trains_on_without_blocks_is_what_is_saved(tmp_path):
    model = make_model()
    fit_interrupted(model)
    path = tmp_path / "saved.weights.h5"
    backup = BackupAndRestore(tmp_path / "backups", delete_checkpoint=False)
    fit(model, [keras.callbacks.ModelCheckpoint(path, save_weights_only=True), backup], epochs=1)
    saved, resumed = make_model(), make_model()
    saved.load_weights(path)
    assert_same_bits(saved.get_weights(), model.get_weights())
    fit(resumed, [BackupAndRestore(tmp_path / "backups")], epochs=1)  # nothing is left to do
    assert_same_bits(resumed.get_weights(), model.get_weights())


LATE = {"one": (1, 4), "two_with_a_rest": (2, 1), "two": (2, 0)}


@pytest.mark.parametrize("fragments, overlap", LATE.values(), ids=LATE)
def test_late_blocks_of_one_worker_without_momentum_are_plain_training(fragments, overlap):
    """Epochs of seven batches end in the middle of a block of five."""
    late, plain = untrained(adam), untrained(adam, distribute=False)
    callback = BlockMomentum(5, 0.0, fragments=fragments, overlap=min(overlap, 5 // fragments))
    fit(late, [callback])
    fit(plain)
    for array, expected in zip(state(late), state(plain), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)


# By step: the fragment whose turn it is, and those under way.
TURNS = {
    2: [(0, []), (1, [0]), (1, [0]), (1, []), (0, [1]), (0, [1]), (1, [0])],
    4: [(0, []), (1, [0]), (1, [0]), (1, [0]), (0, [0, 1]), (0, [1]), (1, [1, 0])],
}


@pytest.mark.parametrize("overlap", TURNS)
def test_fragments_synchronize_in_turn(overlap):
    """Two fragments divide a block of five steps into two and three."""
    model, turns = untrained(sgd), []
    callback = BlockMomentum(5, 0.5, fragments=2, overlap=overlap)

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            blocks = callback._blocks
            turns.append((blocks.turn, [underway.index for underway in blocks._underway]))

    fit(model, [callback, Look()], epochs=1)
    assert turns == TURNS[overlap]


def test_weights_that_are_assigned_after_an_interruption_are_begun_from():
    model = untrained(sgd)
    callback = BlockMomentum(2, 0.5, overlap=2)

    def interrupt(batch, logs=None):
        if batch == 2:
            raise KeyboardInterrupt

    interrupting = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        fit(model, [callback, interrupting])
    assigned = [np.full_like(w, 0.5) for w in model.get_weights()]
    model.set_weights(assigned)
    model.optimizer.learning_rate = 0.0
    fit(model, [callback], epochs=1)
    for weight in model.trainable_variables:
        np.testing.assert_array_equal(weight, np.full(weight.shape, np.float32(0.5)))
