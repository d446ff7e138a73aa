"""Arguments and models that BlockMomentum refuses, before `model.fit` and in it."""

import math
import re

import keras
import numpy as np
import pytest

import tf_onebit.horovod as hvd
from tests.support.nightly import nightly
from tests.unit.bmuf.test_block_momentum_callback import OUTPUTS, fit, make_model, sgd, state
from tf_onebit import Delayed, Local, OneBit
from tf_onebit.callbacks import BlockMomentum
from tf_onebit.collectives.lockstep import LockstepEngine


@pytest.fixture(autouse=True, scope="module")
def one_worker():
    hvd.init()


NUMBERS = "must be a whole number of steps, at least"
ARGUMENTS = [
    *(({"sync_period": p}, f"sync_period {NUMBERS} 1. .*: sync_period={p!r}. Use sync_period=1")
      for p in (0, -1, 1.5, True, "16", None)),
    *(({"warmup_steps": s}, f"warmup_steps {NUMBERS} 0. .*: warmup_steps={s!r}. Use warmup_steps=0")
      for s in (-1, 0.5, False)),
    *(({"block_momentum": eta}, f'block_momentum must be "auto" or .*: block_momentum={eta!r}')
      for eta in (-0.1, 1, 1.5, "x", math.nan, None, True)),
    *(({"block_learning_rate": z}, f"positive number. Received: block_learning_rate={z!r}")
      for z in (0, -1, math.inf, math.nan, "x")),
    *(({"nesterov": n}, f"nesterov must be True or False. Received: nesterov={n!r}")
      for n in ("yes", None, 1)),
    ({"moment_correction": "adam"}, "'bmuf_adam', 'local', 'average', 'reset'.*='adam'"),
    *(({"fragments": n}, f"at least 1 and at most sync_period.*fragments={n!r} with sync_period=16")
      for n in (0, 17, 1.5, "two")),
    *(({"overlap": n}, f"overlap must be a whole number of steps.*overlap={n!r}")
      for n in (-1, 1.5, "all")),
    ({"outer_optimizer": "sgdd"}, "sgdd"),
    (
        {"outer_optimizer": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())},
        "outer_optimizer of type LossScaleOptimizer, which does. Make it without a wrapper",
    ),
    ({"outer_optimizer": keras.optimizers.SGD(use_ema=True)}, "use_ema=True. Set use_ema in the"),
    (
        {"outer_optimizer": keras.optimizers.SGD(gradient_accumulation_steps=2)},
        "gradient_accumulation_steps=2. Use a longer sync_period",
    ),
    ({"outer_optimizer": "sgd", "block_momentum": 0.5}, "block_momentum=0.5, .*Leave them out"),
    ({"outer_optimizer": "sgd", "block_learning_rate": 2}, "block_learning_rate=2, .*Leave them"),
    ({"outer_optimizer": "sgd", "nesterov": False}, "nesterov=False. Leave them out"),
    (
        {"outer_optimizer": "sgd", "moment_correction": "bmuf_adam"},
        'moment_correction="bmuf_adam" with an outer_optimizer. Use "local"',
    ),
    ({"overlap": 17, "fragments": 4}, r"overlap=17 .*=16.*at most 16 steps"),
    ({"overlap": 4, "moment_correction": "average"}, "weights alone.*='average'.*overlap=4"),
    ({"fragments": 2, "moment_correction": "reset"}, "weights alone.*='reset'.*fragments=2"),
    ({"groups": "rack"}, "groups must be None or \"node\". Received: groups='rack'"),
    ({"exchange": "one_bit"}, "exchange must be a tf_onebit.Exchange.*'one_bit' of type str"),
    ({"exchange": Delayed(OneBit())}, "cannot be delayed. Received: exchange=Delayed"),
    ({"exchange": OneBit(moments="local")}, "no updates of one step. Received: moments='local'"),
]  # fmt: skip


@pytest.mark.parametrize("arguments, message", ARGUMENTS)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        BlockMomentum(**arguments)


def test_numbers_of_numpy_are_numbers():
    callback = BlockMomentum(np.int64(8), np.float32(0.5), np.float64(1), warmup_steps=np.int32(3))
    expected = BlockMomentum(8, 0.5, 1.0, warmup_steps=3)
    for name in ("sync_period", "block_momentum", "block_learning_rate", "warmup_steps"):
        assert repr(getattr(callback, name)) == repr(getattr(expected, name))


@pytest.mark.parametrize("time_constant", [0, -1, math.nan, math.inf, 1e20, "x", True])
def test_time_constant_must_be_positive(time_constant):
    with pytest.raises(ValueError, match=re.escape(f"Received: time_constant={time_constant!r}")):
        BlockMomentum.from_time_constant(time_constant)


def test_time_constant_is_that_of_a_blocks_update():
    callback = BlockMomentum.from_time_constant(80, sync_period=8, nesterov=False)
    assert callback.block_momentum == pytest.approx(math.exp(-0.1))
    assert (callback.sync_period, callback.nesterov) == (8, False)
    with pytest.raises(ValueError, match="sync_period=0"):
        BlockMomentum.from_time_constant(80, sync_period=0)
    with pytest.raises(ValueError, match="block_learning_rate=0"):
        BlockMomentum.from_time_constant(80, block_learning_rate=0)


class Clocked(keras.optimizers.SGD):
    """An optimizer with state of unknown meaning."""

    def build(self, variables):
        super().build(variables)
        self.clock = self.add_variable((), name="clock")


def of_mirrored_strategy():
    """Returns a model like one with two devices, which must be made before TensorFlow is used."""
    model = make_model()
    model.optimizer.gradient_exchange.workers.engine = LockstepEngine(["CPU:0"] * 2)
    return model


def asynchronous_model():
    model = make_model(distribute=False)
    model.compile(hvd.AsynchronousOptimizer(sgd()), "mse")
    return model


OURS = "without changing learning rate schedules. Use tf_onebit.optimizers."
UNKNOWN = '"bmuf_adam" works with the optimizers.*'
REFUSED = {
    "adam": (lambda: make_model(keras.optimizers.Adam()), {}, f"{OURS}Adam,"),
    "adamw": (lambda: make_model(keras.optimizers.AdamW()), {}, f"{OURS}AdamW,"),
    "nadam": (lambda: make_model(keras.optimizers.Nadam()), {}, f"{OURS}Nadam,"),
    "loss_scaled": (
        lambda: make_model(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())),
        {},
        f"{OURS}Adam,",
    ),
    "adamax": (lambda: make_model(keras.optimizers.Adamax()), {}, f"{UNKNOWN}Received: Adamax"),
    "lamb": (lambda: make_model(keras.optimizers.Lamb()), {}, f"{UNKNOWN}Received: Lamb"),
    "unknown_state": (
        lambda: make_model(Clocked()),
        {"moment_correction": "average"},
        r"Received: the variable '.*clock' \(\) float32 of Clocked",
    ),
    "reset_of_rmsprop": (
        lambda: make_model(keras.optimizers.RMSprop(name="mine")),
        {"moment_correction": "reset"},
        "optimizer='mine' of type RMSprop. Use moment_correction=\"average\"",
    ),
    "not_distributed": (
        lambda: make_model(sgd(name="mine"), distribute=False),
        {},
        "the SGD 'mine', which connects none.*DistributedOptimizer.*MultiWorkerMirroredStrategy",
    ),
    "exchanging": (
        lambda: make_model(exchange=OneBit()),
        {},
        'the exchange OneBit. Use exchange=tf_onebit.Local.*groups="node"',
    ),
    "delayed": (
        lambda: make_model(exchange=Delayed(OneBit())),
        {"groups": "node"},
        "with the exchange Delayed. Leave Delayed out with BlockMomentum",
    ),
    "of_other_moments": (
        lambda: make_model(exchange=OneBit(moments="local")),
        {"groups": "node"},
        "the workers of a node for one, with the same moments. Received: moments='local'",
    ),
    "groups_that_do_not_exchange": (
        lambda: make_model(),
        {"groups": "node"},
        "the SGD .* with the exchange Local. Use for example exchange=tf_onebit.OneBit",
    ),
    "groups_of_asynchronous_workers": (
        lambda: asynchronous_model(),
        {"groups": "node"},
        "Received: .* an AsynchronousOptimizer. Use DistributedOptimizer",
    ),
    "mirrored_strategy": (of_mirrored_strategy, {}, "Received: several workers in one process"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_in_blocks_is_refused(case):
    make, arguments, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        fit(make(), [BlockMomentum(**arguments)])


def test_one_callback_synchronizes():
    with pytest.raises(ValueError, match="Received: several BlockMomentum callbacks"):
        fit(make_model(), [BlockMomentum(4), BlockMomentum(8)])


@pytest.mark.parametrize(
    "optimizer", ["Adam", "Lion", *nightly("AdamW", "Nadam", "Adamax", "Adagrad")]
)
def test_what_is_refused_or_known_is_averaged_on_request(optimizer):
    model = make_model(getattr(keras.optimizers, optimizer)(0.01))
    fit(model, [BlockMomentum(4, moment_correction="average")])
    assert np.isfinite(state(model)[0]).all()


class Eager(keras.Model):
    """A model that can only be built from data."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(OUTPUTS)

    def call(self, x):
        return self.layer(x.numpy())


class Scaling(keras.Model):
    """A model with a weight, and without layers."""

    def build(self, shape):
        self.factor = self.add_weight(shape=[OUTPUTS])

    def call(self, x):
        return self.factor * x[:, :OUTPUTS]


def test_a_model_without_layers_is_built_from_its_data():
    model = Scaling()
    model.compile(hvd.DistributedOptimizer(sgd(), exchange=Local()), "mse")
    fit(model, [BlockMomentum()])
    assert model.optimizer.iterations.numpy() > 0


def test_model_that_cannot_be_built_is_refused():
    model = Eager()
    model.compile(hvd.DistributedOptimizer(sgd(), exchange=Local()), "mse", run_eagerly=True)
    with pytest.raises(ValueError, match="in blocks must be built.*<Eager.*Build its layers"):
        fit(model, [BlockMomentum()])
