"""Bad gradients, workers that differ, and workers that die."""

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.launch import horovodrun
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import assert_same_bits_on_all_ranks, digest, gather, rank
from tests.support.training import compiled, fit_part, make_data, make_model
from tf_onebit import FullPrecision, OneBit, WarmStart

SHAPES = {"kernel": (64, 32), "bias": (32,), "table": (6, 3)}
EXCHANGES = {
    "full_precision": FullPrecision(),
    "one_bit": OneBit(),
    "warming": WarmStart(OneBit(), steps=10),
    "warmed": WarmStart(OneBit(), steps=1),
}
# An exchange, and whether it runs eagerly.
MODES = [("one_bit", False), ("warmed", True)]
MODES += [(name, False) for name in ("full_precision", "warming", "warmed")]
# With the variable whose gradient is not finite.
POISONED = [("one_bit", False, "table"), ("warmed", True, "kernel")]
OTHERS = [run for m in MODES for name in SHAPES if (run := (*m, name)) not in POISONED]


class Training:
    """An optimizer that is given gradients directly, on the rows of a table, too."""

    def __init__(self, optimizer, exchange, run_eagerly=False, **options):
        self.optimizer = hvd.DistributedOptimizer(optimizer, exchange, **options)
        self.variables = [
            keras.Variable(np.ones(shape, np.float32), name=name) for name, shape in SHAPES.items()
        ]
        self.optimizer.build(self.variables)
        self.step = self._step if run_eagerly else tf.function(self._step)

    def _step(self, kernel, bias, rows):
        table = tf.IndexedSlices(rows, tf.constant([1, 4]), tf.constant(SHAPES["table"]))
        self.optimizer.apply([kernel, bias, table], self.variables)

    def state(self, with_exchange=True):
        """Returns a digest of the weights and, by default, of all other state."""
        everything = [*self.variables, *self.optimizer.variables]
        for exchange in self.optimizer.gradient_exchange.built:
            everything += exchange.variables
        return digest(everything if with_exchange else self.variables)


def gradients_of(step, poisoned=None, value=np.nan):
    """Returns gradients of this rank.

    On rank 1, the one of the variable `poisoned` has a `value`.
    """
    rng = np.random.default_rng([step, rank()])
    shapes = SHAPES | {"table": (2, 3)}
    gradients = [rng.standard_normal(shape).astype(np.float32) for shape in shapes.values()]
    if poisoned is not None and rank() == 1:
        gradients[list(SHAPES).index(poisoned)].flat[-1] = value
    return [tf.constant(gradient) for gradient in gradients]


@pytest.mark.workers(2)
@pytest.mark.parametrize("name, run_eagerly, poisoned", [*POISONED, *nightly_rows(*OTHERS)])
def test_not_finite_gradient_is_an_error_that_leaves_the_weights(
    name, poisoned, run_eagerly, world_size
):
    # With decay, weights wait for it, and so for the check.
    decay = 0.1 if run_eagerly else None
    optimizer = keras.optimizers.Adam(0.01, weight_decay=decay, use_ema=True)
    training = Training(optimizer, EXCHANGES[name], run_eagerly)
    for step in range(2):
        training.step(*gradients_of(step))
    before = training.state(with_exchange=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"Rank 1 .*\W{poisoned}\W"):
        training.step(*gradients_of(2, poisoned))
    assert training.state(with_exchange=False) == before


@pytest.mark.workers(2)
def test_an_error_drops_what_was_accumulated_and_training_goes_on(world_size):
    optimizer = keras.optimizers.SGD(0.01, gradient_accumulation_steps=2)
    training = Training(optimizer, OneBit())
    training.step(*gradients_of(0, "kernel"))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Rank 1 .*\Wkernel\W"):
        training.step(*gradients_of(1))
    before = training.state(with_exchange=False)
    for step in range(2, 4):
        training.step(*gradients_of(step))
    assert training.state(with_exchange=False) != before
    assert all(np.isfinite(variable).all() for variable in training.variables)
    assert_same_bits_on_all_ranks(training.variables)


@pytest.mark.workers(2)
@pytest.mark.parametrize("on_nonfinite", ["skip", *nightly("error")])
def test_not_finite_sample_in_fit(on_nonfinite, world_size):
    optimizer = keras.optimizers.SGD(0.01, weight_decay=0.1)
    model = compiled(
        make_model(),
        hvd.DistributedOptimizer(optimizer, OneBit(), on_nonfinite=on_nonfinite),
    )
    fit_part(model, 2, world_size)
    before = digest(model.get_weights())
    x, labels = (array[0, rank()] for array in make_data(1, world_size))
    if rank() == 1:
        x[0, 0] = np.inf
    if on_nonfinite == "error":
        # Processors differ in which of the gradients it is.
        with pytest.raises(tf.errors.InvalidArgumentError, match="Rank 1 .*(kernel|bias)"):
            model.fit(x, labels, verbose=0)
    else:
        model.fit(x, labels, verbose=0)
        assert int(model.optimizer.iterations) == 2
    assert digest(model.get_weights()) == before


@pytest.mark.workers(2)
@pytest.mark.parametrize("name, run_eagerly", [MODES[0], *nightly_rows(*MODES[1:])])
def test_skipped_steps_never_were(name, run_eagerly, world_size):
    def train(poisoned_steps):
        optimizer = keras.optimizers.Adam(0.01, weight_decay=0.1)
        training = Training(optimizer, EXCHANGES[name], run_eagerly, on_nonfinite="skip")
        for step in range(4):
            for poisoned, value in poisoned_steps:
                before = training.state()
                training.step(*gradients_of(step, poisoned, value))
                # The exchange itself is built in the first step that is not skipped.
                assert step == 0 or training.state() == before
            training.step(*gradients_of(step))
        assert int(training.optimizer.iterations) == 4
        assert_same_bits_on_all_ranks(training.variables)
        return training.state()

    skipped = train([("kernel", np.nan), ("bias", np.inf), ("table", -np.inf)])
    assert skipped == train([])


@pytest.mark.workers(2)
def test_skipped_micro_steps_are_not_accumulated(world_size):
    def train(poisoned_steps):
        optimizer = keras.optimizers.SGD(0.01, gradient_accumulation_steps=2)
        training = Training(optimizer, OneBit(), on_nonfinite="skip")
        for step in range(4):
            for poisoned in poisoned_steps:
                training.step(*gradients_of(step, poisoned))
            training.step(*gradients_of(step))
        return training.state()

    assert train(["kernel", "bias"]) == train([])


MODELS = {
    "other width": (
        lambda: make_model(units=32 + 16 * rank()),
        OneBit,
        r"rank 0 has gradient 0 = \(64, 32\) float32 \(.*first/kernel\), "
        r"rank 1 has gradient 0 = \(64, 48\) float32 \(.*first/kernel\)",
    ),
    "fewer layers": (
        lambda: make_model() if rank() == 0 else make_smaller_model(),
        OneBit,
        "rank 0 has number of gradients = 3, rank 1 has number of gradients = 2",
    ),
    "other setting": (
        make_model,
        lambda: OneBit(max_column_size=512 * (1 + rank())),
        "rank 0 has max_column_size of the exchange = 512, rank 1 has .* = 1024",
    ),
    "other exchange": (
        make_model,
        lambda: OneBit() if rank() == 0 else FullPrecision(),
        "rank 0 has exchange = .*OneBit, rank 1 has exchange = .*FullPrecision",
    ),
    "other steps of the warm start": (
        make_model,
        lambda: WarmStart(OneBit(), steps=100 + rank()),
        "rank 0 has steps of the exchange = 100, rank 1 has steps of the exchange = 101",
    ),
    "other exclusions": (
        make_model,
        lambda: OneBit(exclude=["first"] if rank() == 0 else []),
        r"rank 0 has gradient 0 = \(64, 32\) float32, excluded \(.*, rank 1 has .* float32 \(",
    ),
}


def make_smaller_model():
    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, name="first")])


@pytest.mark.workers(3)
@pytest.mark.parametrize("difference", MODELS)
def test_workers_that_differ_get_an_error_on_every_rank(difference, world_size):
    make, exchange, message = MODELS[difference]
    model = compiled(make(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), exchange()))
    with pytest.raises(ValueError, match=message):
        fit_part(model, 1, world_size)


def distributed(optimizer=None, **options):
    return hvd.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.01), OneBit(), **options)


OPTIMIZERS = {
    "other op": (
        lambda: distributed(op=hvd.Average if rank() == 0 else hvd.Sum),
        "rank 0 has op = Average, rank 1 has op = Sum",
    ),
    "other treatment of bad gradients": (
        lambda: distributed(on_nonfinite="error" if rank() == 0 else "skip"),
        "rank 0 has on_nonfinite = error, rank 1 has on_nonfinite = skip",
    ),
    "other optimizer": (
        lambda: distributed(keras.optimizers.Adam() if rank() == 0 else None),
        "rank 0 has optimizer = Adam, rank 1 has optimizer = SGD",
    ),
    "other accumulation": (
        lambda: distributed(
            keras.optimizers.SGD(0.01, gradient_accumulation_steps=None if rank() == 0 else 2)
        ),
        "rank 0 has gradient_accumulation_steps = None, rank 1 has .* = 2",
    ),
}


@pytest.mark.workers(3)
def test_a_worker_may_have_made_another_model_before(world_size):
    """Then its layers have other names: Horovod's programs load a model on one worker only."""
    if rank() == 1:
        keras.layers.Dense(3)
    layers = [keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(10)]
    model = compiled(keras.Sequential(layers), distributed(keras.optimizers.Adam(0.01)))
    assert len(set(gather(model.layers[0].name))) == 2
    fit_part(model, 3, world_size, callbacks=[hvd.BroadcastGlobalVariablesCallback(0)])
    assert_same_bits_on_all_ranks(model.weights)


@pytest.mark.workers(2)
@pytest.mark.parametrize("difference", OPTIMIZERS)
def test_optimizers_that_differ_are_an_error_on_every_rank(difference, world_size):
    make, message = OPTIMIZERS[difference]
    with pytest.raises(ValueError, match=message):
        fit_part(compiled(make_model(), make()), 1, world_size)


BROADCASTS = {
    "other width": (
        lambda: make_model(units=32 + 16 * rank()),
        0.0,
        r"rank 0 has variable 0 of the model = \(64, 32\) float32 \(.*first/kernel\), rank 1 has",
    ),
    "fewer layers": (
        lambda: make_model() if rank() == 0 else make_smaller_model(),
        0.0,
        "rank 0 has number of the model's variables = 3, rank 1 has .* = 2",
    ),
    "other state of the optimizer": (
        make_model,
        0.9,
        "rank 0 has number of the optimizer's variables = 2, rank 1 has .* = 5",
    ),
}


@pytest.mark.workers(2)
@pytest.mark.parametrize("difference", BROADCASTS)
def test_variables_that_differ_are_not_broadcast(difference, world_size):
    make, momentum, message = BROADCASTS[difference]
    optimizer = distributed(keras.optimizers.SGD(0.01, momentum=rank() * momentum))
    callbacks = [hvd.BroadcastGlobalVariablesCallback(0)]
    with pytest.raises(ValueError, match=message):
        fit_part(compiled(make(), optimizer), 1, world_size, callbacks=callbacks)


@pytest.mark.workers(2)
@pytest.mark.parametrize(
    "exchange, dtype, value",
    [
        (hvd.Compression.fp16, "float32", 1e5),  # too large for the wire
        (hvd.Compression.none, "float16", 4e4),  # their sum is too large
    ],
)
def test_overflow_on_the_way_is_an_error_on_all_ranks(exchange, dtype, value, world_size):
    variable = keras.Variable(np.ones(4), dtype=dtype, name="kernel")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=exchange)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"All ranks met .*\Wkernel\W"):
        optimizer.apply([tf.constant([value, 0, 0, 0], dtype)], [variable])
    np.testing.assert_array_equal(variable, np.ones(4))


def train_until_a_worker_dies():
    """Lets rank 1 die in the middle of `fit`. The others say how their own `fit` ended."""
    # horovodrun ends the other workers as soon as one has died. Only a worker that stays can
    # report.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hvd.init()
    death = os.environ["TEST_DEATH"]

    def die(batch, logs=None):
        if rank() == 1 and batch == 3:
            if death == "exit":
                os._exit(7)
            os.kill(os.getpid(), signal.SIGKILL)

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=die)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), OneBit())
    try:
        fit_part(compiled(make_model(), optimizer), 1000, hvd.size(), callbacks=[callback])
        print(f"rank {rank()} finished", flush=True)
    except tf.errors.OpError as error:
        print(f"rank {rank()} ended with {type(error).__name__}", flush=True)
        raise


@pytest.mark.parametrize("death, world_size", [("kill", 3), *nightly_rows(("exit", 2))])
def test_a_worker_that_dies_ends_the_job(death, world_size):
    program = f"import {__name__} as faults; faults.train_until_a_worker_dies()"
    job = horovodrun(world_size, ["-c", program], timeout_seconds=90, TEST_DEATH=death)
    assert job.returncode != 0
    for survivor in {0, 2} & set(range(world_size)):
        assert f"rank {survivor} ended with" in job.output, job.output


UNEVEN = """
import keras, sys, tensorflow as tf, tf_onebit, tf_onebit.horovod as hvd

hvd.init()
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), tf_onebit.OneBit()), "mse")
data = tf.data.Dataset.from_tensors((tf.ones([4, 64]), tf.zeros([4, 64])))
data = data.repeat(6 if hvd.rank() == 0 else 3).filter(lambda *_: True)  # of a length not known
epochs, *names = sys.argv[1:]
callbacks = {
    "broadcast": hvd.BroadcastGlobalVariablesCallback(0),
    "backup": tf_onebit.callbacks.BackupAndRestore(sys.argv[-1], save_freq=3),
}
model.fit(data, epochs=int(epochs), verbose=0, callbacks=[callbacks[n] for n in names[:-1]])
"""


@pytest.mark.parametrize(
    "epochs, callbacks, occasion",
    [
        (3, ["broadcast"], "begin of an epoch"),
        *nightly_rows((1, [], "end of fit"), (3, ["backup"], "begin of an epoch")),
    ],
)
def test_numbers_of_batches_that_nobody_knows_end_the_job(epochs, callbacks, occasion, tmp_path):
    arguments = ["-c", UNEVEN, str(epochs), *callbacks, str(tmp_path / "backup")]
    job = horovodrun(2, arguments, HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="5")
    assert job.returncode != 0
    assert "RuntimeError: Worker 1 waits between two steps" in job.output
    assert "Worker 0 is still in the middle of its epoch after 5 seconds" in job.output
    assert f"here: {occasion}, " in job.output and "after 3 steps" in job.output
    if callbacks:  # otherwise no code of this package runs before the first epoch begins
        assert "UnknownError: Worker 1 has " in job.output


@pytest.mark.workers(2)
@pytest.mark.parametrize("callback", [True, False])
def test_numbers_of_batches_that_differ_are_an_error_on_every_rank(callback, world_size):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), OneBit())
    model = compiled(make_model(), optimizer)
    callbacks = [hvd.BroadcastGlobalVariablesCallback(0)] if callback else []
    with pytest.raises(ValueError) as error:
        fit_part(model, 2 + rank(), world_size, callbacks=callbacks)
    assert "rank 0 has number of batches in an epoch = 2, rank 1 has" in str(error.value)
    assert "Give every worker the same number of batches" in str(error.value)


@pytest.mark.nightly
def test_a_job_that_hangs_is_ended():
    job = "import time, horovod.tensorflow as hvd; hvd.init(); time.sleep(hvd.rank() * 1000)"
    with pytest.raises(TimeoutError, match="did not end within 10 seconds"):
        horovodrun(2, ["-c", job], timeout_seconds=10)
