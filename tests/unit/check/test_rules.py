"""Each rule finds what it is about, on its line, and nothing in a program beside it."""

from typing import NamedTuple

import pytest

from tests.unit.check.programs import BLOCKS, HOROVOD, LOOP, STRATEGY, changed, found_in, line_of

FIT = "model.fit(x, y, callbacks=[])"
OVER_HOROVOD = "model.fit(x, y, callbacks=[hvd.BroadcastGlobalVariablesCallback(0)])"
BROADCAST = "[hvd.BroadcastGlobalVariablesCallback(0)]"
SGD = "keras.optimizers.SGD(0.1)"


class Case(NamedTuple):
    """A change after which a rule finds something, and one after which it does not.

    Attributes:
        program: text that needs no change.
        wrong: pairs of old and new text.
        right: pairs of old and new text.
        at: text of the line of the finding.
        says: part of its text.
    """

    program: str
    wrong: list
    right: list
    at: str
    says: str


OWN_STEP = """\
class Net(keras.Model):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self(data)
        gradients = tape.gradient(loss, self.weights)
        for weight, gradient in zip(self.weights, gradients):
            weight.assign_sub(gradient)


x, y ="""
OWN_LOOP = """\
def step(x):
    with tf.GradientTape() as tape:
        loss = model(x)
    model.optimizer.apply(tape.gradient(loss, model.weights), model.weights)


"""
CASES = {
    # unsupported
    "tf_keras": Case(
        STRATEGY,
        [("import keras\n", "import keras\nimport tf_keras\n")],
        [("import keras\n", "import keras\nimport tf_keras_vis\n")],
        "import tf_keras",
        "Import keras in place of tf_keras",
    ),
    "estimator": Case(
        STRATEGY,
        [(FIT, f"{FIT}\ntf.estimator.train(model)")],
        [(FIT, f"{FIT}\nestimator(model)")],
        "tf.estimator",
        "in place of an estimator",
    ),
    "legacy optimizer": Case(
        STRATEGY,
        [('"adam"', "tf.keras.optimizers.legacy.Adam()")],
        [('"adam"', "tf.keras.optimizers.Adam()")],
        "legacy",
        "Keras 3 has no legacy optimizers",
    ),
    "session": Case(
        STRATEGY,
        [(FIT, f"{FIT}\ntf.compat.v1.disable_eager_execution()")],
        [(FIT, f"{FIT}\ntf.compat.v1.logging.set_verbosity('ERROR')")],
        "disable_eager",
        "Write this for TensorFlow 2",
    ),
    "backend": Case(
        STRATEGY,
        [("import keras\n", 'import os\nos.environ["KERAS_BACKEND"] = "jax"\nimport keras\n')],
        [
            (
                "import keras\n",
                'import os\nos.environ["KERAS_BACKEND"] = "tensorflow"\nimport keras\n',
            )
        ],
        "KERAS_BACKEND",
        "Do not set KERAS_BACKEND to 'jax'",
    ),
    "legacy Keras": Case(
        STRATEGY,
        [("import keras\n", 'import os\nos.environ["TF_USE_LEGACY_KERAS"] = "1"\nimport keras\n')],
        [("import keras\n", 'import os\nos.environ["TF_USE_LEGACY_KERAS"] = "0"\nimport keras\n')],
        "TF_USE_LEGACY_KERAS",
        "Do not set TF_USE_LEGACY_KERAS",
    ),
    "other Horovod": Case(
        HOROVOD,
        [("import keras\n", "import keras\nimport horovod.torch as other\n")],
        [("import keras\n", "import keras\nimport torch as other\n")],
        "horovod.torch as other",
        "tf_onebit does not serve horovod.torch",
    ),
    "XLA": Case(
        STRATEGY,
        [('"mse"', '"mse", jit_compile=True')],
        [('"mse"', '"mse", jit_compile=False')],
        "jit_compile",
        "XLA cannot compile an exchange",
    ),
    "fit_generator": Case(
        HOROVOD,
        [(OVER_HOROVOD, f"{OVER_HOROVOD}\nmodel.fit_generator(x)")],
        [(OVER_HOROVOD, f"{OVER_HOROVOD}\nmodel.predict(x)")],
        "fit_generator",
        "Call fit in place of fit_generator",
    ),
    "removed argument": Case(
        HOROVOD,
        [('"mse"', '"mse", experimental_run_tf_function=False')],
        [('"mse"', '"mse", run_eagerly=False')],
        "experimental_run",
        "Leave out experimental_run_tf_function",
    ),
    "optimizer that exchanges gradients": Case(
        STRATEGY,
        [('"adam"', "keras.optimizers.Ftrl()")],
        [('"adam"', "keras.optimizers.Lion()")],
        "Ftrl",
        "Take another optimizer than Ftrl",
    ),
    # to a strategy
    "late strategy": Case(
        STRATEGY,
        [("strategy = tf_onebit", "zero = tf.zeros([])\nstrategy = tf_onebit")],
        [("strategy = tf_onebit", "def zero():\n    return tf.zeros([])\nstrategy = tf_onebit")],
        "strategy = tf_onebit",
        "Make the strategy before line 5",
    ),
    "seed of a strategy": Case(
        STRATEGY,
        [("keras.utils.set_random_seed(1)", "import numpy as np\nnp.random.seed(1)")],
        [("keras.utils.set_random_seed(1)", "tf.random.set_seed(1)")],
        "import tf_onebit",
        "Set the same seed on all workers",
    ),
    "scope": Case(
        STRATEGY,
        [
            ("    model = ", "model = "),
            ("with strategy.scope():\n", ""),
            ("    model.compile", "model.compile"),
        ],
        [
            ("    model = ", "    model = make()\n    other = "),
            ("with strategy.scope():", "with job.scope():"),
        ],
        "model = keras",
        "Put lines 8 and 9 into the scope of the strategy",
    ),
    "optimizer outside of the scope": Case(
        STRATEGY,
        [("x, y =", "adam = keras.optimizers.Adam()\nx, y ="), ('"adam"', "adam")],
        [
            ("    model.compile", "    adam = keras.optimizers.Adam()\n    model.compile"),
            ('"adam"', "adam"),
        ],
        "adam = ",
        "Put this line into the scope of the strategy",
    ),
    "file in a strategy": Case(
        STRATEGY,
        [(FIT, f"{FIT}\nmodel.save('m.keras')")],
        [(FIT, f"{FIT}\nif not strategy.cluster_resolver.task_id:\n    model.save('m.keras')")],
        "model.save",
        "Write this file on one worker",
    ),
    "opened file": Case(
        STRATEGY,
        [(FIT, f"{FIT}\nopen('log', 'w').write('end')")],
        [(FIT, f"{FIT}\nopen('log').read()")],
        "open(",
        "Write this file on one worker",
    ),
    "train_step without optimizer": Case(
        STRATEGY,
        [("x, y =", OWN_STEP)],
        [("x, y =", OWN_STEP.replace("tape.gradient(", "self.optimizer.apply(tape.gradient)("))],
        "def train_step",
        "Let an optimizer apply the gradients of this train_step",
    ),
    "Keras' backup": Case(
        STRATEGY,
        [("callbacks=[]", "callbacks=[keras.callbacks.BackupAndRestore('b')]")],
        [("callbacks=[]", "callbacks=[tf_onebit.callbacks.BackupAndRestore('b')]")],
        "BackupAndRestore",
        "Back up with the callback of tf_onebit",
    ),
    "own loop in a strategy": Case(
        STRATEGY,
        [(FIT, f"{FIT}\n{OWN_LOOP}step(x)")],
        [(FIT, f"{FIT}\n{OWN_LOOP}strategy.run(step, [x])")],
        "tape.gradient",
        "Run this step by strategy.run",
    ),
    # to Horovod
    "no init": Case(
        HOROVOD,
        [("hvd.init()\n", "")],
        [("hvd.init()\n", "if True:\n    hvd.init()\n")],
        "import tf_onebit.horovod",
        "Call hvd.init() before all other calls",
    ),
    "GPUs": Case(
        HOROVOD,
        [
            ("x, y =", "tf.config.experimental.set_memory_growth(gpu, True)\nx, y ="),
            ('"mse"', '"mse", jit_compile=False'),
        ],
        [
            (
                "x, y =",
                'tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")\nx, y =',
            ),
            ('"mse"', '"mse", jit_compile=False'),
        ],
        "set_memory_growth",
        "Pin a GPU to each process",
    ),
    "XLA on GPUs": Case(
        HOROVOD,
        [("x, y =", 'tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")\nx, y =')],
        [("x, y =", 'tf.config.list_physical_devices("GPU")\nx, y =')],
        "model.compile",
        "Pass jit_compile=False",
    ),
    "seed for batches": Case(
        HOROVOD,
        [
            ("load(hvd.rank())", "load()"),
            ("model = ", "data = keras.utils.timeseries_dataset_from_array(x, y, 2)\nmodel = "),
            ("fit(x, y", "fit(data.shard(hvd.size(), hvd.rank())"),
        ],
        [
            ("load(hvd.rank())", "load()"),
            ("model = ", "data = keras.utils.timeseries_dataset_from_array(x, y, 2)\nmodel = "),
            ("fit(x, y", "fit(data.shard(hvd.size(), hvd.rank())"),
            ("hvd.init()", "hvd.init()\nkeras.utils.set_random_seed(1)"),
        ],
        "import tf_onebit.horovod",
        "Set the same seed on all workers",
    ),
    "bare optimizer": Case(
        HOROVOD,
        [("compile(optimizer", "compile(keras.optimizers.SGD(0.2)")],
        [("compile(optimizer", "compile(my_optimizer(optimizer)")],
        "compile(",
        "Wrap the optimizer",
    ),
    "optimizer by its name": Case(
        HOROVOD,
        [("compile(optimizer", "compile('adam'")],
        [("compile(optimizer,", "compile(optimizer=optimizer, loss=")],
        "compile(",
        "Wrap the optimizer",
    ),
    "no optimizer": Case(
        HOROVOD,
        [("compile(optimizer, ", "compile(loss=")],
        [("compile(optimizer, ", "compile(**options, loss=")],
        "compile(",
        "Pass a wrapped optimizer",
    ),
    "undivided data": Case(
        HOROVOD,
        [("load(hvd.rank())", "np.ones([9, 2]), np.ones([9, 2])")],
        [("load(hvd.rank())", "np.ones([9, 2])[hvd.rank() :: hvd.size()], np.ones([2])")],
        "model.fit",
        "Give each worker an equal share of x and y",
    ),
    "no broadcast": Case(
        HOROVOD,
        [(f", callbacks={BROADCAST}", "")],
        [("model.fit", "hvd.broadcast_variables(model.weights, 0)\nmodel.fit")],
        "model.fit",
        "copies the initial weights of worker 0",
    ),
    "metrics of training": Case(
        HOROVOD,
        [(BROADCAST, f"{BROADCAST} + [keras.callbacks.EarlyStopping('loss')]")],
        [(BROADCAST, f"{BROADCAST} + [keras.callbacks.EarlyStopping('val_loss')]")],
        "model.fit",
        "Add MetricAverageCallback before EarlyStopping",
    ),
    "metrics with own statistics": Case(
        HOROVOD,
        [
            (BROADCAST, f"{BROADCAST} + [keras.callbacks.ReduceLROnPlateau()]"),
            ("keras.layers.Dense(2)", "keras.layers.BatchNormalization()"),
        ],
        [
            (BROADCAST, f"{BROADCAST} + [keras.callbacks.ReduceLROnPlateau()]"),
            ("keras.layers.Dense(2)", "keras.layers.BatchNormalization(synchronized=True)"),
        ],
        "model.fit",
        "Add MetricAverageCallback before ReduceLROnPlateau",
    ),
    "file of a callback": Case(
        HOROVOD,
        [("model.fit", "log = keras.callbacks.CSVLogger('log.csv')\nmodel.fit")],
        [
            (
                "model.fit",
                "log = keras.callbacks.CSVLogger('log.csv')\n"
                "logs = [log] if hvd.rank() == 0 else []\nmodel.fit",
            )
        ],
        "CSVLogger",
        "Give each worker a path of its own for CSVLogger",
    ),
    "file over Horovod": Case(
        HOROVOD,
        [(OVER_HOROVOD, f"{OVER_HOROVOD}\nnp.save('x.npy', x)")],
        [(OVER_HOROVOD, f"{OVER_HOROVOD}\nnp.save(f'x_{{hvd.rank()}}.npy', x)")],
        "np.save",
        "Write this file on one worker",
    ),
    "Keras' backup over Horovod": Case(
        HOROVOD,
        [(BROADCAST, f"{BROADCAST} + [keras.callbacks.BackupAndRestore('b')]")],
        [(BROADCAST, f"{BROADCAST} + [tf_onebit.callbacks.BackupAndRestore('b')]")],
        "BackupAndRestore",
        "Back up with the callback of tf_onebit",
    ),
    "progress bars": Case(
        HOROVOD,
        [("fit(x, y", "fit(x, y, verbose=1")],
        [("fit(x, y", "fit(x, y, verbose=1 if hvd.rank() == 0 else 0")],
        "model.fit",
        "Show the progress of one worker",
    ),
    "asynchronous Adam": Case(
        HOROVOD,
        [("DistributedOptimizer", "AsynchronousOptimizer"), (SGD, "keras.optimizers.Adam()")],
        [("DistributedOptimizer", "AsynchronousOptimizer"), ("OneBit", "Threshold")],
        "AsynchronousOptimizer",
        "without momentum, weight decay and clipping",
    ),
    "asynchronous momentum": Case(
        HOROVOD,
        [("DistributedOptimizer", "AsynchronousOptimizer"), ("SGD(0.1)", "SGD(0.1, momentum=0.9)")],
        [("DistributedOptimizer", "AsynchronousOptimizer"), ("SGD(0.1)", "SGD(0.1, name='s')")],
        "AsynchronousOptimizer",
        "without momentum, weight decay and clipping",
    ),
    "join": Case(
        HOROVOD,
        [(OVER_HOROVOD, f"{OVER_HOROVOD}\nhvd.join()")],
        [(OVER_HOROVOD, f"{OVER_HOROVOD}\n', '.join(names)")],
        "hvd.join",
        "in place of join",
    ),
    "elastic": Case(
        HOROVOD,
        [(OVER_HOROVOD, f"{OVER_HOROVOD}\nhvd.elastic.run(step)")],
        [(OVER_HOROVOD, f"{OVER_HOROVOD}\nelastic.run(step)")],
        "elastic",
        "Replace all of hvd.elastic",
    ),
    "missing name": Case(
        HOROVOD,
        [(OVER_HOROVOD, f"{OVER_HOROVOD}\nhvd.gpu_available()")],
        [(OVER_HOROVOD, f"{OVER_HOROVOD}\nhvd.nccl_built()")],
        "gpu_available",
        "Do without gpu_available",
    ),
    "bare tape": Case(
        LOOP,
        [("    tape = hvd.DistributedGradientTape(tape, exchange=exchange)\n", "")],
        [
            ("    tape = hvd.DistributedGradientTape(tape, exchange=exchange)\n", ""),
            (SGD, f"hvd.DistributedOptimizer({SGD}, tf_onebit.OneBit())"),
        ],
        "tape.gradient",
        "Wrap the tape",
    ),
    "exchange in the step": Case(
        LOOP,
        [("exchange=exchange", "exchange=tf_onebit.OneBit()")],
        [("exchange=exchange", "exchange=given")],
        "DistributedGradientTape",
        "Make the exchange once, outside of the step",
    ),
    "loop without broadcast": Case(
        LOOP,
        [("hvd.broadcast_variables(model.weights, root_rank=0)\n", "")],
        [("hvd.broadcast_variables(model.weights, root_rank=0)", "hvd.load_model('m.keras')")],
        "tape.gradient",
        "Copy the initial weights of worker 0",
    ),
    # to blocks
    "Adam of Keras in blocks": Case(
        BLOCKS,
        [("tf_onebit.optimizers.Adam", "keras.optimizers.Adam")],
        [("tf_onebit.optimizers.Adam(beta_1=0.5)", "keras.optimizers.SGD(0.1)")],
        "adam = ",
        "Take Adam from tf_onebit.optimizers",
    ),
    "exchange in blocks": Case(
        BLOCKS,
        [("tf_onebit.Local()", "tf_onebit.OneBit()")],
        [("tf_onebit.Local()", "exchange_of(options)")],
        "DistributedOptimizer",
        "Pass exchange=tf_onebit.Local() in place of another exchange",
    ),
    "no blocks": Case(
        BLOCKS,
        [("tf_onebit.callbacks.BlockMomentum(sync_period=16)", "")],
        [("callbacks=[tf_onebit", "callbacks=[log, tf_onebit")],
        "model.fit",
        "averages the models at the end of each block",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_rule_finds_its_fault_alone(case):
    wrong = changed(case.program, *case.wrong)
    (finding,) = found_in(wrong)
    assert finding.line == line_of(wrong, case.at)
    assert case.says in finding.text("train.py")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_program_beside_it_needs_no_change(case):
    assert found_in(changed(case.program, *case.right)) == []


@pytest.mark.parametrize("program", [STRATEGY, HOROVOD, BLOCKS, LOOP])
def test_these_programs_need_no_change(program):
    assert found_in(program) == []
