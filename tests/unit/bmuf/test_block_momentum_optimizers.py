"""BlockMomentum for a model with several optimizers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.bits import assert_same_bits
from tests.support.nightly import nightly
from tests.support.two_optimizers import Gan, TwoOptimizers
from tf_onebit import Local, OneBit, optimizers
from tf_onebit._bmuf.equations import BlockFilter
from tf_onebit._bmuf.synchronization import BlockSynchronization
from tf_onebit._bmuf.variables import block_variables
from tf_onebit.callbacks import BackupAndRestore, BlockMomentum
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.exchanges import FullPrecision

SAMPLES = np.random.default_rng(0).standard_normal([28, 4]).astype(np.float32)
BATCH_SIZE = 4  # seven batches


@pytest.fixture(autouse=True, scope="module")
def one_worker():
    hvd.init()


def local(optimizer):
    return hvd.DistributedOptimizer(optimizer, exchange=Local())


def make_gan(*made, wrap=local, model_class=Gan, slow=False, critic_steps=1, **arguments):
    """Returns a GAN without built optimizers, by default Adam and SGD."""
    keras.utils.set_random_seed(0)
    made = made or (optimizers.Adam(0.01), keras.optimizers.SGD(0.1, momentum=0.5))
    model = model_class(slow=slow, critic_steps=critic_steps)
    model.compile(*map(wrap, made), **arguments)
    return model


def fit(model, *callbacks, **arguments):
    data = tf.data.Dataset.from_tensor_slices(SAMPLES).batch(BATCH_SIZE)
    return model.fit(data, verbose=0, callbacks=list(callbacks), **arguments).history


def state(model):
    held = (model.d_optimizer, model.g_optimizer)
    return [np.array(v) for v in (*model.variables, *(v for o in held for v in o.variables))]


# Workers in one process.

WORKERS = 3
# Train steps of each worker, in each of three blocks.
STEPS = [(3, 3, 3), (1, 2, 3), (2, 0, 1)]
HALVES = {
    "adam": lambda: optimizers.Adam(0.01, beta_1=0.5),
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
}


class Blocks:
    """Workers that train layers in blocks, each layer by an optimizer of its own.

    Args:
        layers: by layer, a name of `HALVES` and the number of the optimizer's steps in a step.
        template: `tf_onebit.Exchange`.
    """

    def __init__(self, layers, template=None):
        self.steps = [steps for _, steps in layers]
        self.models, self.optimizers = [], []
        for _ in range(WORKERS):
            model = keras.Sequential([keras.Input([4])])
            model.parts = [keras.layers.Dense(2, kernel_initializer="ones") for _ in layers]
            model.held = [HALVES[name]() for name, _ in layers]
            for part, optimizer in zip(model.parts, model.held, strict=True):
                part.build([None, 4])
                optimizer.build(part.trainable_variables)
            self.models.append(model)
        self.blocks = BlockSynchronization(
            LockstepEngine(["CPU:0"] * WORKERS),
            BlockFilter(0.75, 0.9),
            template or FullPrecision(),
            [
                block_variables(model, "bmuf_adam", True, template is not None, model.held)
                for model in self.models
            ],
        )

    def train(self):
        for block, counts in enumerate(STEPS):
            self.blocks.train()
            for worker, count in enumerate(counts):
                for step in range(count):
                    self._step(self.models[worker], [block, worker, step])
            self.blocks.synchronize()

    def _step(self, model, seed):
        x = np.random.default_rng(seed).standard_normal([8, 4]).astype(np.float32)
        for part, optimizer, steps in zip(model.parts, model.held, self.steps, strict=True):
            for _ in range(steps):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((part(x) - np.sin(x[:, :2])) ** 2)
                variables = part.trainable_variables
                gradients = tape.gradient(loss, [v.value for v in variables])
                optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def state(self, part):
        """Returns a layer and its optimizer, on all workers after blocks, and the global ones."""
        arrays = []
        for model in self.models:
            variables = (*model.parts[part].variables, *model.held[part].variables)
            arrays += [np.array(v) for v in variables]
        with self.blocks.view():
            return arrays + [np.array(v) for v in self.models[0].parts[part].variables]


@pytest.mark.parametrize("template", [OneBit(min_size=1), *nightly(None)], ids=["one_bit", "full"])
@pytest.mark.parametrize("names", [("adam", "sgd"), *nightly(("adagrad", "adam"))])
def test_two_halves_train_as_two_models_with_an_optimizer_each(names, template, eagerly):
    halves = [(names[0], 2), (names[1], 1)]
    both = Blocks(halves, template)
    both.train()
    for part, half in enumerate(halves):
        alone = Blocks([half], template)
        alone.train()
        assert_same_bits(both.state(part), alone.state(0))


def test_an_optimizer_without_a_step_in_a_block_keeps_its_moments(eagerly):
    both = Blocks([("adam", 1), ("adam", 1)])
    both.train()
    held = [model.held[1] for model in both.models]
    before = [[np.array(v) for v in (*o.variables, o.moment_steps)] for o in held]
    both.steps = [1, 0]
    iterations = [int(model.held[0].iterations) for model in both.models]
    both.train()
    assert min(int(m.held[0].iterations) for m in both.models) > max(iterations)
    after = [[np.array(v) for v in (*o.variables, o.moment_steps)] for o in held]
    for arrays, others in zip(after, before, strict=True):
        for array, other in zip(arrays, others, strict=True):
            np.testing.assert_allclose(array, other, rtol=1e-6)


# Models in `fit`, with one worker.


class Overlapping(Gan):
    """A GAN whose second optimizer trains all weights."""

    def _apply(self, optimizer, tape, loss, part):
        super()._apply(optimizer, tape, loss, self if part is self.generator else part)


@pytest.mark.parametrize(
    "arguments",
    [
        {"model_class": Overlapping, "slow": True, "critic_steps": 2},
        {"jit_compile": True},
        *nightly({"steps_per_execution": 3}),
    ],
    ids=str,
)
def test_a_gan_trains_as_ever_without_momentum(arguments):
    plain, model = make_gan(wrap=lambda o: o, **arguments), make_gan(**arguments)
    assert fit(model, BlockMomentum(3), epochs=2) == fit(plain, epochs=2)
    assert_same_bits(state(model), state(plain))
    counts = [int(o.iterations) for o in (model.optimizer, model.d_optimizer, model.g_optimizer)]
    assert counts == [0, 14 * model.critic_steps, 14]


def test_the_step_is_traced_once(monkeypatch):
    traces, train_step = [], Gan.train_step

    def counting(model, data):
        traces.append(data)
        return train_step(model, data)

    monkeypatch.setattr(Gan, "train_step", counting)
    model = make_gan()
    for _ in range(2):
        fit(model, BlockMomentum(3, 0.5))
    assert len(traces) == 1


def test_a_step_may_depend_on_what_callbacks_set_when_training_begins():
    model = make_gan()
    setting = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: setattr(model, "critic_steps", 3)
    )
    fit(model, BlockMomentum(3, 0.5), setting)
    assert [int(o.iterations) for o in (model.d_optimizer, model.g_optimizer)] == [21, 7]


def test_all_optimizers_of_a_model_look_ahead():
    model = make_gan(optimizers.Adam(0.01), optimizers.Adam(0.01), critic_steps=2)
    fit(model, BlockMomentum(3, 0.5))
    for optimizer, steps in ((model.d_optimizer, 2), (model.g_optimizer, 1)):
        rho = ahead = 0.0
        for block in (3, 3, 1):
            rho = 0.5 * rho + steps * block
            ahead += 0.5 * rho
        assert optimizer.moment_steps == pytest.approx(7 * steps + ahead)


@pytest.mark.nightly
@pytest.mark.parametrize("options", [{}, {"fragments": 2, "overlap": 3}], ids=str)
def test_a_backup_in_a_block_is_resumed_to_the_same_bits(options, tmp_path):
    def interrupt(batch, logs):
        if batch == 4:
            raise KeyboardInterrupt

    def trained(*callbacks):
        model = make_gan(critic_steps=2, slow=True)
        fit(model, BlockMomentum(3, 0.5, **options), *callbacks, epochs=2)
        return state(model)

    backups = BackupAndRestore(tmp_path / "backups", save_freq=4)
    with pytest.raises(KeyboardInterrupt):
        trained(backups, keras.callbacks.LambdaCallback(on_train_batch_end=interrupt))
    assert_same_bits(trained(backups), trained())


def test_an_optimizer_that_one_loss_scale_wraps_counts_once():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    model = make_gan(scaled, optimizers.Adam(0.01))
    model.also = model.d_optimizer.inner_optimizer
    callback = BlockMomentum(3, 0.5)
    fit(model, callback)
    assert len(callback._optimizers) == 2


class Undecided(TwoOptimizers):
    """A model that uses its second optimizer from the third step on, and runs eagerly."""

    calls = 0

    def train_step(self, data):
        self.calls += 1
        if self.calls > 2:
            return super().train_step(data)
        return {"loss": 0.0}


def exchanging(optimizer):
    return hvd.DistributedOptimizer(optimizer, exchange=OneBit())


@pytest.mark.parametrize(
    "wrap, fault",
    [
        (lambda optimizer: optimizer, "which connects none"),
        (exchanging, "with the exchange OneBit"),
    ],
    ids=["not distributed", "exchanging"],
)
def test_one_of_several_optimizers_that_does_not_train_apart_is_named(wrap, fault):
    model = make_gan()
    model.g_optimizer = wrap(keras.optimizers.Adam(name="mine"))
    with pytest.raises(ValueError, match=f"Received: the Adam 'mine',? {fault}"):
        fit(model, BlockMomentum())


def two_optimizers(model_class=TwoOptimizers):
    model = model_class([keras.Input([4]), keras.layers.Dense(2)])
    model.compile(*(local(keras.optimizers.SGD(0.1, name=name)) for name in ("first", "second")))
    return model


def fit_pairs(model):
    x, y = SAMPLES, SAMPLES[:, :2]
    model.fit(x, y, batch_size=BATCH_SIZE, callbacks=[BlockMomentum(2, 0.5)], verbose=0)


def test_a_model_that_uses_none_of_its_optimizers_is_refused():
    model = two_optimizers()
    model.train_step = lambda data: {"loss": tf.reduce_sum(data[0])}
    with pytest.raises(ValueError, match="the SGD 'second' that uses none of them.*hold those"):
        fit_pairs(model)


def test_optimizers_of_a_model_that_runs_eagerly_must_be_built():
    model = two_optimizers()
    model.run_eagerly = True
    with pytest.raises(ValueError, match=r"the SGD 'second' that has built none.*optimizer.build"):
        fit_pairs(model)
    for optimizer, variable in zip(model.optimizers, model.trainable_variables, strict=True):
        optimizer.build([variable])
    fit_pairs(model)
    assert [int(o.iterations) for o in model.optimizers] == [7, 7]


def test_an_optimizer_that_begins_to_train_later_is_refused():
    model = two_optimizers(Undecided)
    model.run_eagerly = True
    kernel, _ = model.trainable_variables
    model.optimizers[0].build([kernel])
    with pytest.raises(ValueError, match="the SGD 'second', which has begun to train since"):
        fit_pairs(model)
