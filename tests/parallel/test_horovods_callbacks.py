"""Horovod's schedules of the learning rate, and its checkpoint of the best model."""

import keras
import numpy as np
import pytest

import tf_onebit.horovod as hvd
from tests.support.nightly import nightly
from tests.support.ranks import digest, gather, rank
from tests.support.training import compiled, fit_part, make_model
from tf_onebit import FullPrecision


class Rates(keras.callbacks.Callback):
    """A callback that keeps the learning rate of every step."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))


def fitted(optimizer, callback, world_size, steps=4, epochs=3):
    """Returns the model after some epochs, the learning rate of each step, and the history."""
    model = compiled(make_model(), hvd.DistributedOptimizer(optimizer, FullPrecision()))
    rates = Rates()
    history = fit_part(model, steps, world_size, epochs=epochs, callbacks=[callback, rates])
    return model, rates.rates, history.history


@pytest.mark.workers(2)
def test_warm_up_begins_at_the_rate_of_one_worker(world_size, capsys):
    callback = hvd.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=2, verbose=1)
    _, rates, history = fitted(keras.optimizers.Adam(0.2), callback, world_size)
    # Each of 8 batches adds an eighth of the difference between 0.1 and 0.2.
    warm_up = [0.1 + 0.1 * (i + 1) / 8 for i in range(8)]
    assert rates == pytest.approx([*warm_up, *[0.2] * 4])
    assert history["lr"] == pytest.approx([0.15, 0.2, 0.2])
    told = "Epoch 2: the learning rate is warmed up, to 0.2." in capsys.readouterr().out
    assert told == (rank() == 0)


@pytest.mark.workers(2)
def test_schedule_multiplies_between_its_epochs(world_size):
    by_number = hvd.callbacks.LearningRateScheduleCallback(0.4, 0.5, start_epoch=1, end_epoch=3)
    _, rates, _ = fitted(keras.optimizers.SGD(0.1), by_number, world_size, steps=2, epochs=4)
    assert rates == pytest.approx([0.1] * 2 + [0.4] * 2 + [0.2] * 4)
    by_function = hvd.LearningRateScheduleCallback(0.4, lambda epoch: 1 + epoch, staircase=False)
    _, rates, _ = fitted(keras.optimizers.SGD(0.1), by_function, world_size, steps=2, epochs=2)
    assert rates == pytest.approx([0.4, 0.6, 0.8, 1.0])

    asked = []
    once = hvd.LearningRateScheduleCallback(0.4, lambda epoch: asked.append(epoch) or 1.0)
    once.set_model(compiled(make_model(), "sgd"))
    once.on_epoch_begin(2)
    for batch in range(3):
        once.on_train_batch_begin(batch)
    assert asked == [2]


OPTIMIZERS = {
    "sgd": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "rmsprop": lambda rate: keras.optimizers.RMSprop(rate, momentum=0.9),
}


@pytest.mark.workers(2)
@pytest.mark.parametrize("name", ["sgd", *nightly("rmsprop")])
def test_momentum_is_corrected_where_the_rate_changes(name, world_size):
    callbacks = [
        hvd.LearningRateScheduleCallback(0.01, 0.5, momentum_correction=corrected)
        for corrected in (False, True)
    ]
    model, _, _ = fitted(OPTIMIZERS[name](0.01), callbacks[0], world_size, steps=1, epochs=1)
    (*_, velocity) = [v for v in model.optimizer.variables if v.path.endswith("momentum")]
    before = velocity.numpy()
    for epoch, (callback, factor) in enumerate(zip(callbacks, [1.0, 0.5], strict=True), 1):
        callback.set_model(model)
        callback.on_epoch_begin(epoch)
        callback.on_train_batch_begin(0)
        assert float(model.optimizer.learning_rate) == pytest.approx(0.01 * 0.5**epoch)
        np.testing.assert_allclose(velocity, before * factor, rtol=1e-6)


@pytest.mark.workers(2)
def test_schedules_say_what_they_need(world_size):
    with pytest.raises(ValueError, match=r"initial_lr must be .* Received: initial_lr=None"):
        hvd.callbacks.LearningRateWarmupCallback(None)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    warm_up = hvd.callbacks.LearningRateWarmupCallback(0.2)
    with pytest.raises(ValueError, match="optimizer with the schedule ExponentialDecay"):
        fitted(keras.optimizers.SGD(schedule), warm_up, world_size)
    callback = hvd.callbacks.LearningRateWarmupCallback(0.2)
    callback.set_model(compiled(make_model(), "sgd"))
    callback.set_params({"steps": None})
    with pytest.raises(ValueError, match="Received: steps_per_epoch=None. Pass steps_per_epoch"):
        callback.on_train_begin()


@pytest.mark.workers(2)
def test_best_model_is_saved_where_it_is_told(world_size, tmp_path):
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    with pytest.raises(ValueError, match="BestModelCheckpoint needs the path of a file"):
        fitted(keras.optimizers.SGD(0.1), callback, world_size)
    callback.filepath = str(tmp_path / f"{rank()}.keras")
    model, _, _ = fitted(keras.optimizers.SGD(0.1), callback, world_size)
    assert callback.best < np.inf
    again = hvd.load_model(callback.filepath)
    assert digest(again.get_weights()) == digest(model.get_weights())


@pytest.mark.workers(2)
def test_broadcast_leaves_local_variables(world_size):
    model = compiled(make_model(seed=rank()), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    kernel = model.layers[0].kernel
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, "/cpu:0", [kernel])
    callback.set_model(model)
    callback.on_train_begin()
    others = [weight for weight in model.weights if weight is not kernel]
    assert len(set(gather(digest([kernel])))) == world_size
    assert len(set(gather(digest(others)))) == 1
