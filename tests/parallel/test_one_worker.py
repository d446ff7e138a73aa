"""One worker alone, and arguments that are refused before any worker is asked."""

import contextlib
import gc
import subprocess
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support.launch import ROOT, python
from tests.support.ranks import digest
from tests.support.training import compiled, fit_part, make_model
from tf_onebit import FullPrecision, OneBit, WarmStart
from tf_onebit.callbacks import Monitor


def train_alone():
    """Trains with all parts of this package, and without it, to the same bits."""
    hvd.init()
    callbacks = [
        hvd.BroadcastGlobalVariablesCallback(0),
        hvd.MetricAverageCallback(),
        Monitor(update_freq=1),
    ]
    weights = []
    for distribute in (
        lambda optimizer: optimizer,
        lambda optimizer: hvd.DistributedOptimizer(optimizer, WarmStart(OneBit(), 1)),
        lambda optimizer: hvd.DistributedOptimizer(optimizer, on_nonfinite="skip"),
    ):
        optimizer = distribute(keras.optimizers.Adam(0.01, clipnorm=1.0))
        model = compiled(make_model(), optimizer)
        used = callbacks if hasattr(optimizer, "gradient_exchange") else []
        history = fit_part(model, 4, 1, callbacks=used).history
        weights.append(digest(model.get_weights()))
    assert len(set(weights)) == 1
    assert history["bytes_sent"] == [0.0] and history["compression_ratio"] == [1.0]

    variable = tf.Variable(tf.ones([64, 32]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * variable)
    (gradient,) = hvd.DistributedGradientTape(tape, OneBit()).gradient(loss, [variable])
    np.testing.assert_array_equal(gradient, 2 * np.ones([64, 32]))
    compressed = hvd.allreduce(variable, compression=hvd.Compression.onebit)
    np.testing.assert_array_equal(compressed, variable)


@pytest.mark.workers(1)
def test_one_worker_of_horovodrun_exchanges_nothing(world_size):
    train_alone()


def test_a_program_without_horovodrun_is_one_worker():
    program = f"import {__name__} as one_worker; one_worker.train_alone()"
    process = subprocess.run(python(["-c", program]), cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, clipnorm=1.0),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
    ],
    ids=["accumulation", "loss_scale"],
)
def test_one_device_of_a_strategy_trains_as_without(make_optimizer):
    strategy = tf_onebit.distribute.MirroredStrategy(OneBit(), devices=["CPU:0"])
    weights = []
    for scope in (strategy.scope, contextlib.nullcontext):
        with scope():
            model = compiled(make_model(), make_optimizer())
        fit_part(model, 4, 1)
        weights.append(digest(model.get_weights()))
    assert weights[0] == weights[1]


@pytest.mark.parametrize("wrapper", [lambda o: o, keras.optimizers.LossScaleOptimizer])
def test_one_worker_skips_steps_too(wrapper):
    hvd.init()
    distributed = hvd.DistributedOptimizer(wrapper(optimizer()), on_nonfinite="skip")
    variable = keras.Variable(np.ones(3, np.float32))
    distributed.apply([tf.constant([1.0, np.nan, 1.0])], [variable])
    np.testing.assert_array_equal(variable, np.ones(3))


def test_a_tape_keeps_nothing_of_an_exchange_that_is_gone():
    hvd.init()
    exchange = OneBit()
    hvd.DistributedGradientTape(tf.GradientTape(), exchange)
    reference = weakref.ref(exchange)
    del exchange
    gc.collect()
    assert reference() is None


def test_sources_of_a_tape_must_be_variables():
    hvd.init()
    x = tf.ones([3])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(x * x)
    with pytest.raises(ValueError, match="gradients of variables. Received: a source of type Eag"):
        hvd.DistributedGradientTape(tape, OneBit()).gradient(y, [x])


def test_a_tape_has_no_moments():
    hvd.init()
    with pytest.raises(ValueError, match="A tape returns gradients, and has no moments.*'local'"):
        hvd.DistributedGradientTape(tf.GradientTape(), OneBit(moments="local"))


def optimizer():
    return keras.optimizers.SGD(0.01)


def test_exchange_must_be_an_exchange():
    with pytest.raises(ValueError, match="must be a tf_onebit.Exchange.*exchange='onebit'"):
        hvd.DistributedOptimizer(optimizer(), exchange="onebit")


def test_a_class_is_not_an_exchange():
    with pytest.raises(ValueError, match="must be a tf_onebit.Exchange.*of type type"):
        hvd.DistributedOptimizer(optimizer(), exchange=OneBit)


def test_compression_must_be_a_compressor():
    with pytest.raises(ValueError, match="compression must be a compressor.*OneBit.*exchange="):
        hvd.DistributedOptimizer(optimizer(), compression=OneBit())


def test_exchange_and_compression_exclude_each_other():
    with pytest.raises(ValueError, match="two ways to say the same thing"):
        hvd.DistributedOptimizer(optimizer(), OneBit(), compression=hvd.Compression.fp16)
    with pytest.raises(ValueError, match="two ways to say the same thing"):
        hvd.DistributedGradientTape(tf.GradientTape(), OneBit(), hvd.Compression.onebit)


@pytest.mark.parametrize("wrong", ["sgd", None, keras.optimizers.SGD])
def test_optimizer_must_be_a_keras_optimizer(wrong):
    with pytest.raises(ValueError, match="wraps a keras.optimizers.Optimizer. Received: "):
        hvd.DistributedOptimizer(wrong, OneBit())


@pytest.mark.parametrize("wrong", ["Average", 17, None])
def test_op_must_be_average_or_sum(wrong):
    with pytest.raises(ValueError, match=f"op must be Average or Sum.*Received: op={wrong!r}"):
        hvd.DistributedOptimizer(optimizer(), OneBit(), op=wrong)
    with pytest.raises(ValueError, match=f"op must be Average or Sum.*Received: op={wrong!r}"):
        hvd.DistributedGradientTape(tf.GradientTape(), OneBit(), op=wrong)


def test_on_nonfinite_must_be_known():
    with pytest.raises(ValueError, match="on_nonfinite must be .* Received: on_nonfinite='stop'"):
        hvd.DistributedOptimizer(optimizer(), OneBit(), on_nonfinite="stop")


@pytest.mark.parametrize("wrapper", [lambda o: o, keras.optimizers.LossScaleOptimizer])
def test_an_optimizer_is_distributed_once(wrapper):
    distributed = hvd.DistributedOptimizer(wrapper(optimizer()), FullPrecision())
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(distributed, FullPrecision())


def test_an_optimizer_is_distributed_once_also_inside_of_another():
    distributed = hvd.DistributedOptimizer(optimizer(), FullPrecision())
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(distributed))


def test_exclusions_from_weight_decay_are_kept():
    adam = keras.optimizers.AdamW(0.01)
    excluded = keras.Variable(np.ones(3, np.float32), name="excluded")
    adam.exclude_from_weight_decay(var_names=["bias"], var_list=[excluded])
    distributed = hvd.DistributedOptimizer(adam, OneBit())
    bias, kernel = (keras.Variable(np.ones(3, np.float32), name=n) for n in ("bias", "kernel"))
    decayed = [distributed._use_weight_decay(v) for v in (bias, excluded, kernel)]
    assert decayed == [False, False, True]


def _half():
    return 0.5


def test_schedules_and_functions_of_the_user_are_kept():
    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.5

        def get_config(self):
            return {}

    schedule = Schedule()
    assert hvd.DistributedOptimizer(keras.optimizers.SGD(schedule))._learning_rate is schedule
    function = hvd.DistributedOptimizer(keras.optimizers.SGD(_half))
    assert float(function.learning_rate) == 0.5


def test_name_and_settings_are_kept():
    sgd = keras.optimizers.SGD(0.25, momentum=0.5, clipnorm=2.0, name="mine")
    config = sgd.get_config()
    distributed = hvd.DistributedOptimizer(sgd, OneBit())
    assert distributed is sgd
    assert distributed.get_config() == config
    assert hvd.DistributedOptimizer(keras.optimizers.SGD(), name="other").name == "other"


class Bounded(keras.optimizers.SGD):
    """An optimizer with a required argument, and an attribute that is in no configuration."""

    def __init__(self, learning_rate, bound, **arguments):
        super().__init__(learning_rate, **arguments)
        self.bound = bound


class Warming(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without `get_config`."""

    def __call__(self, step):
        return 0.5


@pytest.mark.parametrize("wrap", [lambda o: o, keras.optimizers.LossScaleOptimizer])
def test_an_optimizer_stays_what_the_user_made(wrap):
    inner = Bounded(Warming(), 5.0)
    inner.iterations.assign(1000)
    distributed = hvd.DistributedOptimizer(wrap(inner), OneBit())
    inner = getattr(distributed, "inner_optimizer", distributed)
    assert isinstance(inner, Bounded) and inner.bound == 5.0
    assert float(inner.learning_rate) == 0.5
    assert inner.iterations.numpy() == 1000


def test_a_name_of_an_optimizer_is_answered_by_what_to_write():
    with pytest.raises(ValueError, match=r"'adam' .* Pass for example keras.optimizers.Adam\(\)"):
        hvd.DistributedOptimizer("adam")


@pytest.mark.parametrize("gradients, variables", [(1, 2), (2, 1)])
def test_every_variable_needs_one_gradient(gradients, variables):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    pairs = [tf.ones(3)] * gradients, [keras.Variable(np.ones(3)) for _ in range(variables)]
    told = f"Received: {gradients} gradients for {variables} variables"
    with pytest.raises(ValueError, match=told):
        optimizer.apply(*pairs)


def test_an_asynchronous_optimizer_is_the_one_that_was_given():
    sgd = keras.optimizers.SGD(0.25)
    sgd.build([keras.Variable(np.ones(3, np.float32))])
    sgd.iterations.assign(1000)
    hvd.init()
    assert hvd.AsynchronousOptimizer(sgd) is sgd
    assert sgd.iterations.numpy() == 1000
    built = keras.optimizers.SGD(0.25)
    built.build([keras.Variable(np.ones(3, np.float16), dtype="float16")])
    with pytest.raises(ValueError, match="needs float32 variables"):
        hvd.AsynchronousOptimizer(built)
