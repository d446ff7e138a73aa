"""AsynchronousOptimizer over real processes: workers do not wait for each other."""

import pathlib
import re
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support.launch import horovodrun
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import gather, rank
from tests.support.training import compiled, embedding_model, fit_part, make_model
from tf_onebit import Threshold
from tf_onebit.horovod import pump
from tf_onebit.horovod.pump import Pump

SHAPES = [(40, 30), (30,), (7, 11, 13)]
RATE = 0.5
EXCHANGES = {
    "given": Threshold(tau=0.7),
    "found": Threshold(target_density=0.05),
    "coded": Threshold(target_density=0.05, coding="golomb_rice"),
}


class Training:
    """An optimizer that is given gradients directly, and their sum to compare with."""

    def __init__(self, exchange, rate=RATE, **options):
        self.rate = rate
        self.optimizer = hvd.AsynchronousOptimizer(keras.optimizers.SGD(rate), exchange, **options)
        self.variables = [keras.Variable(np.ones(shape, np.float32)) for shape in SHAPES]
        self.optimizer.build(self.variables)
        self.rng = np.random.default_rng([7, rank()])
        self.total = [np.zeros(shape) for shape in SHAPES]
        self._step = tf.function(lambda *gradients: self.optimizer.apply(gradients, self.variables))

    def steps(self, number, seconds=0.0):
        for _ in range(number):
            gradients = [self.rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
            self.total = [t + g for t, g in zip(self.total, gradients, strict=True)]
            self._step(*map(tf.constant, gradients))
            time.sleep(seconds)

    def end(self):
        self.exchange.drain("the end", last=True)

    @property
    def exchange(self):
        return self.optimizer.gradient_exchange

    def weights(self):
        return np.concatenate([variable.numpy().ravel() for variable in self.variables])

    def sent(self):
        """Returns the sum of all deltas that this worker has sent: gradients less the residual."""
        total = np.concatenate([total.ravel() for total in self.total])
        (built,) = self.exchange.built
        return self.rate * (total - built.exchange.residual.numpy())


def assert_every_delta_is_applied_once(training, share):
    """Asserts that weights are the sum of all deltas.

    A lost delta would show as a large difference.
    """
    weights, sent = gather(training.weights()), gather(training.sent())
    for mine in weights:
        np.testing.assert_allclose(mine, 1 - share * np.sum(sent, axis=0), atol=2e-4)
    assert min(np.abs(one).max() for one in sent) > 0.1


@pytest.mark.workers(3)
@pytest.mark.parametrize(
    "op, name",
    [
        *((hvd.Average, "coded"), (hvd.Sum, "given")),
        *nightly_rows((hvd.Average, "given"), (hvd.Average, "found")),
        *nightly_rows((hvd.Sum, "found"), (hvd.Sum, "coded")),
    ],
    ids=["average-coded", "sum-given", "average-given", "average-found", "sum-found", "sum-coded"],
)
def test_every_delta_is_applied_exactly_once_on_every_worker(op, name, world_size):
    training = Training(EXCHANGES[name], op=op)
    # Each worker makes another number of steps, at another pace.
    training.steps(20 + 10 * rank(), seconds=0.002 * (world_size - rank()))
    training.end()
    assert_every_delta_is_applied_once(training, 1 / world_size if op == hvd.Average else 1)


@pytest.mark.workers(3)
def test_training_goes_on_after_a_drain(world_size):
    training = Training(EXCHANGES["found"])
    for number in (5, 0, 12):
        training.steps(number * (1 + rank()))
        training.exchange.drain("a backup", last=number == 0)
    training.end()
    assert_every_delta_is_applied_once(training, 1 / world_size)


@pytest.mark.workers(3)
def test_workers_may_have_different_learning_rates(world_size):
    training = Training(EXCHANGES["given"], rate=0.1 * (1 + rank()))
    training.steps(20)
    training.end()
    assert_every_delta_is_applied_once(training, 1 / world_size)


@pytest.mark.workers(3)
def test_messages_in_several_parts(world_size, monkeypatch):
    monkeypatch.setattr(Threshold, "part_size", 1000)
    training = Training(EXCHANGES["coded"])
    training.steps(15)
    training.end()
    assert_every_delta_is_applied_once(training, 1 / world_size)


@pytest.mark.workers(3)
@pytest.mark.parametrize("after_a_drain", [True, *nightly(False)])
def test_nobody_waits_for_a_worker_that_stands_still(after_a_drain, world_size):
    training = Training(EXCHANGES["given"])
    training.steps(1)
    if after_a_drain:
        training.exchange.drain("a backup")
    if rank() > 0:
        training.steps(50)
    # The first worker has made no step all that time. The others meet it only here.
    assert training.exchange.metrics()["staleness"] >= (50 if rank() > 0 else 0)
    gather(None)
    training.end()
    assert_every_delta_is_applied_once(training, 1 / world_size)


@pytest.mark.workers(3)
def test_staleness_is_bounded(world_size):
    bound = 2
    training = Training(EXCHANGES["found"], max_staleness=bound)
    seen = []
    for _ in range(25):
        training.steps(1, seconds=0.02 if rank() == 0 else 0)
        seen.append(training.exchange.metrics()["staleness"])
    training.end()
    # When it is read, the others may have gone on. The worker can never be further behind.
    assert max(seen) <= bound
    assert rank() == 0 or max(seen) == bound
    assert_every_delta_is_applied_once(training, 1 / world_size)


@pytest.mark.workers(3)
def test_steps_do_not_run_away_from_a_slow_network(world_size, monkeypatch):
    gather_rows, in_a_round = pump._gather, []

    def slowly(words):
        time.sleep(0.05)
        rows = gather_rows(words)
        in_a_round.append(max(len(pump._unpacked(row)[0]) for row in rows))
        return rows

    monkeypatch.setattr(pump, "_gather", slowly)
    training = Training(EXCHANGES["given"])
    training.steps(60)
    delay = training.exchange.metrics()["delay"]
    training.end()
    assert max(in_a_round) > 1  # steps are faster than rounds, and do not wait for each of them
    assert max(in_a_round) <= pump._MOST_UNDER_WAY + 1
    assert 1 < delay <= pump._MOST_UNDER_WAY
    assert_every_delta_is_applied_once(training, 1 / world_size)


@pytest.mark.workers(3)
def test_a_gradient_that_is_not_finite_ends_training_on_all_workers(world_size):
    training = Training(EXCHANGES["given"])
    training.steps(3)
    before = None
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Rank 1 met .* in the gradient of"):
        if rank() == 1:
            before = training.weights()
            gradients = [np.zeros(shape, np.float32) for shape in SHAPES]
            gradients[1][3] = np.inf
            training._step(*map(tf.constant, gradients))
        training.steps(2000, seconds=0.01)
    if rank() == 1:
        np.testing.assert_array_equal(training.weights(), before)


@pytest.mark.workers(3)
@pytest.mark.parametrize(
    "arguments", [{"steps_per_execution": 3}, *nightly({}, {"run_eagerly": True})]
)
def test_fit_ends_with_equal_replicas_that_have_learned(arguments, world_size):
    # The learning rate starts at zero, so the first messages change nothing.
    rate = keras.optimizers.schedules.CosineDecay(0.0, 100, warmup_target=1.0, warmup_steps=5)
    optimizer = hvd.AsynchronousOptimizer(
        keras.optimizers.SGD(rate), Threshold(target_density=0.05), max_staleness=5
    )
    model = compiled(make_model(), optimizer, **arguments)
    history = fit_part(
        model, 12, world_size, epochs=3, callbacks=[tf_onebit.callbacks.Monitor(1)]
    ).history
    assert {"density", "tau", "staleness", "delay", "bytes_sent"} <= set(history)
    assert history["bytes_sent"][-1] > 0
    assert history["loss"][-1] < 0.9 * history["loss"][0]
    first, *others = gather(model.get_weights())
    for weights in others:
        for mine, theirs in zip(first, weights, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.workers(3)
def test_rows_of_embeddings_and_accumulated_gradients(world_size):
    sgd = keras.optimizers.SGD(0.5, gradient_accumulation_steps=2)
    model = compiled(embedding_model(), hvd.AsynchronousOptimizer(sgd, Threshold(tau=1e-3)))
    before = model.get_weights()
    fit_part(model, 8, world_size, epochs=1)
    for weights in gather(model.get_weights()):
        for mine, theirs, initial in zip(model.get_weights(), weights, before, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)
            assert np.any(mine != initial)


@pytest.mark.workers(3)
def test_a_broadcast_in_the_midst_makes_replicas_equal(world_size):
    model = make_model(seed=rank())
    model = compiled(
        model, hvd.AsynchronousOptimizer(keras.optimizers.SGD(0.5), Threshold(tau=1e-2))
    )
    broadcast = hvd.BroadcastGlobalVariablesCallback(0)
    broadcast.set_model(model)

    def end_of_batch(batch, logs):
        if batch == 3:  # the first worker's messages are still under way
            broadcast._broadcast()
        time.sleep(0.01 * rank())

    at_own_pace = keras.callbacks.LambdaCallback(on_train_batch_end=end_of_batch)
    fit_part(model, 8, world_size, callbacks=[at_own_pace])
    for weights in gather(model.get_weights()):
        for mine, theirs in zip(model.get_weights(), weights, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.workers(3)
def test_backups_hold_equal_replicas_and_training_goes_on_from_them(world_size, tmp_path):
    folder = pathlib.Path(gather(str(tmp_path))[0])
    model = compiled(
        make_model(),
        hvd.AsynchronousOptimizer(keras.optimizers.SGD(0.5), Threshold(target_density=0.05)),
    )
    backup = tf_onebit.callbacks.BackupAndRestore(folder, save_freq=4, delete_checkpoint=False)
    pace = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: time.sleep(0.01 * rank())
    )
    fit_part(model, 10, world_size, callbacks=[pace, backup])
    with np.load(folder / "backup-00000002" / f"process_{rank()}.npz") as file:
        saved = [file[name] for name in sorted(file) if name.startswith("model/")]
    for others in gather(saved):
        for mine, theirs in zip(saved, others, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)

    resumed = compiled(
        make_model(seed=1),
        hvd.AsynchronousOptimizer(keras.optimizers.SGD(0.5), Threshold(target_density=0.05)),
    )
    backup = tf_onebit.callbacks.BackupAndRestore(folder, save_freq=4)
    fit_part(resumed, 10, world_size, callbacks=[backup])
    assert resumed.optimizer.iterations == 10
    # Two steps later, with deltas in another order.
    for mine, theirs in zip(model.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=0.05)


@pytest.mark.workers(3)
def test_all_gathers_of_the_program_do_not_meet_those_of_the_pump(world_size):
    training = Training(EXCHANGES["found"])
    for step in range(20):
        training.steps(1)
        mine = tf.constant([100 * step + rank()], tf.int32)
        gathered = hvd.allgather(mine, name="of_the_program")
        assert gathered.numpy().tolist() == [100 * step + k for k in range(world_size)]
    training.end()
    assert_every_delta_is_applied_once(training, 1 / world_size)


@pytest.mark.workers(3)
def test_one_asynchronous_optimizer_at_a_time(world_size):
    first, second = Training(EXCHANGES["given"]), Training(EXCHANGES["given"])
    first.steps(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one asynchronous optimizer at a"):
        second.steps(1)
    first.end()
    second.steps(2)
    second.end()
    assert_every_delta_is_applied_once(first, 1 / world_size)


@pytest.mark.workers(3)
def test_workers_that_wait_for_each_other_at_different_places_are_told(world_size, tmp_path):
    folder = pathlib.Path(gather(str(tmp_path))[0])
    optimizer = hvd.AsynchronousOptimizer(keras.optimizers.SGD(0.5), Threshold(tau=1e-2))
    model = compiled(make_model(), optimizer)
    backup = tf_onebit.callbacks.BackupAndRestore(folder, save_freq=2)
    # A callback may decide by what its own worker has seen.
    stop = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(model, "stop_training", rank() == 1)
    )
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as error:
        fit_part(model, 3, world_size, callbacks=[backup, stop])
    told = "rank 0 at the backup after 2 batches of epoch 1; rank 1 at the end of training"
    assert told in str(error.value)
    assert (folder / f"replica-{rank()}.weights.h5").exists()


def first_word(message):
    return int(message[0, 0])


def pump_that_fails_at(word, fails):
    def rescue():
        fails.set()
        raise OSError("The disk is full")

    def fault_of(message, rank):
        return ValueError(f"{word} from rank {rank}.") if first_word(message) == word else None

    return Pump(None, 60.0, fault_of, rescue)


@pytest.mark.workers(3)
def test_what_came_before_a_failure_is_read_before_it_is_raised(world_size):
    fails = threading.Event()
    pump = pump_that_fails_at(-1, fails)
    assert pump.swap(np.array([[rank()]], np.int32)) == []
    time.sleep(0.5)
    gather(None)  # all of them have arrived
    # An error while saving a replica does not hide the error that came before.
    told = "-1 from rank 1. This worker's replica could not be saved: The disk is full"
    if rank() == 1:
        with pytest.raises(ValueError, match=told):
            pump.swap(np.array([[-1]], np.int32))
        return
    assert fails.wait(30)
    time.sleep(0.5)
    messages = pump.swap(np.array([[7]], np.int32))
    assert sorted(map(first_word, messages)) == sorted({0, 1, 2} - {rank()} | {-1})
    with pytest.raises(ValueError, match=told):
        pump.swap(np.array([[8]], np.int32))


@pytest.mark.workers(3)
def test_other_variables_than_in_the_first_step_are_an_error(world_size):
    training = Training(EXCHANGES["given"])
    training.steps(1)
    with pytest.raises(ValueError, match="the same variables in every step"):
        training.optimizer.apply([tf.zeros(SHAPES[1])], [training.variables[1]])
    training.end()


@pytest.mark.workers(3)
def test_workers_that_differ_are_told_before_they_train(world_size):
    training = Training(EXCHANGES["given" if rank() else "coded"])
    with pytest.raises(ValueError, match="tau of the exchange = |coding of the exchange = "):
        training.steps(1)


LOSE_A_WORKER = """
import os, pathlib, signal, sys, time
import keras
import tf_onebit, tf_onebit.horovod as hvd
from tests.support.training import INPUTS, compiled, make_data, make_model

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's, as soon as it misses one
hvd.init()
folder = pathlib.Path(sys.argv[1])
optimizer = hvd.AsynchronousOptimizer(
    keras.optimizers.SGD(0.5), tf_onebit.Threshold(tau=1e-2), timeout_seconds=5
)
model = compiled(make_model(), optimizer)

class Die(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)
        if batch == 10:
            (folder / f"learned-{hvd.rank()}").touch()
        if hvd.rank() == 1 and batch >= 10 and len(list(folder.glob("learned-*"))) == hvd.size():
            os._exit(7) if sys.argv[2] == "exit" else os.kill(os.getpid(), signal.SIGSTOP)

x, labels = (array[:, hvd.rank()] for array in make_data(500, hvd.size()))
backup = tf_onebit.callbacks.BackupAndRestore(folder)
try:
    model.fit(x.reshape(-1, INPUTS), labels.ravel(), 16, verbose=0, callbacks=[Die(), backup])
except Exception as error:
    (folder / f"report-{hvd.rank()}").write_text(str(error))
    raise
"""


@pytest.mark.parametrize(
    "fault, reason",
    [("stop", "any more: no sign of life for . seconds"), *nightly_rows(("exit", ""))],
)
def test_when_a_worker_is_lost_the_others_end_with_an_error_and_their_replicas_saved(
    fault, reason, tmp_path
):
    # Horovod itself waits so long for the worker when the others end: by default, half a minute.
    command = ["-c", LOSE_A_WORKER, str(tmp_path), fault]
    job = horovodrun(3, command, HOROVOD_GLOO_TIMEOUT_SECONDS="15")
    assert job.returncode != 0
    for survivor in (0, 2):
        error = (tmp_path / f"report-{survivor}").read_text()
        assert "Another worker of this asynchronous training has ended" in error
        assert re.search(reason, error)
        assert f"replica-{survivor}.weights.h5" in error
        replica = make_model()
        initial = replica.get_weights()
        replica.load_weights(tmp_path / f"replica-{survivor}.weights.h5")
        assert any(
            np.any(mine != then) for mine, then in zip(replica.get_weights(), initial, strict=True)
        )
