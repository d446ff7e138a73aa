"""Findings in programs that use no package for several workers, or another one."""

import pytest

from tests.unit.check.programs import HOROVOD, LOOP, STRATEGY, changed, found_in, line_of

PLAIN = """\
from tensorflow import keras as k
import tensorflow as tf

k.utils.set_random_seed(1)
x, y = load()
net = k.Sequential([k.layers.Dense(2)])
adam = k.optimizers.Adam(0.1)
net.compile(optimizer=adam, loss="mse")
net.fit(x, y)
"""


def items(source, to=None):
    return [(finding.line, finding.item) for finding in found_in(source, to)]


def written(source, to=None):
    return [line for finding in found_in(source, to) for line in finding.write]


def test_a_plain_program_goes_to_a_strategy():
    assert items(PLAIN) == items(PLAIN, "strategy") == [(2, "strategy 1, 6"), (6, "strategy 3")]


def test_lines_to_write_have_the_names_of_the_program():
    assert written(PLAIN)[-4:] == [
        "with strategy.scope():",
        "    net = k.Sequential([k.layers.Dense(2)])",
        "    adam = k.optimizers.Adam(0.1)",
        '    net.compile(optimizer=adam, loss="mse")',
    ]
    by_name = changed(PLAIN, ("optimizer=adam", "optimizer='adam'"))
    text = '    optimizer=hvd.DistributedOptimizer(k.optimizers.Adam(), exchange), loss="mse")'
    assert f"net.compile({text.strip()}" in written(by_name, "horovod")
    assert "adam = hvd.DistributedOptimizer(k.optimizers.Adam(0.1), exchange)" in written(
        PLAIN, "horovod"
    )


def test_a_plain_program_goes_to_horovod():
    expected = [(2, "Horovod 1"), (7, "Horovod 4"), (9, "Horovod 5, 6"), (9, "Horovod 7")]
    assert items(PLAIN, "horovod") == expected


def test_a_plain_program_goes_to_blocks_over_horovod():
    expected = [(2, "Horovod 1"), (7, "blocks 2, 3"), (9, "Horovod 5, 6"), (9, "blocks 4")]
    assert items(PLAIN, "blocks") == expected
    lines = written(PLAIN, "blocks")
    adam = "tf_onebit.optimizers.Adam(0.1, beta_1=0.5)"
    assert f"adam = hvd.DistributedOptimizer({adam}, tf_onebit.Local())" in lines


def test_a_function_that_makes_a_model_is_called_in_the_scope():
    source = """\
import keras

keras.utils.set_random_seed(1)


def build():
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


model = build()
model.fit(x, y)
"""
    finding = found_in(source)[-1]
    assert finding.line == line_of(source, "model = build()")
    assert finding.write == ["with strategy.scope():", "    model = build()"]
    inside = changed(source, ("model = build()", "with strategy.scope():\n    model = build()"))
    assert [f.item for f in found_in(inside)] == []


def test_methods_of_other_packages_are_not_those_of_a_model():
    others = "re.compile('a')\nscaler.fit(x)\nimport numpy as np"
    source = changed(PLAIN, ("x, y = load()", f"import re\n{others}\nx, y = load()"))
    assert len(found_in(source)) == len(found_in(PLAIN))


def test_each_model_begins_alike():
    second = "other.compile('sgd', 'mse')\nother.fit(x, y)"
    found = found_in(f"{PLAIN}{second}\n", "horovod")
    assert [f.line for f in found if f.item == "Horovod 7"] == [9, 11]


def test_a_dataset_is_divided_before_it_is_shuffled():
    data = "data = tf.data.Dataset.from_tensor_slices(1)"
    source = changed(
        PLAIN,
        ("x, y = load()", f"{data}\nd = data.shuffle(9).batch(2)"),
        ("fit(x, y)", "fit(d)"),
    )
    part = "data.shard(hvd.size(), hvd.rank()).take(len(data) // hvd.size())"
    (finding,) = (f for f in found_in(source, "horovod") if f.item == "Horovod 5, 6")
    assert finding.line == line_of(source, "d = data")
    assert finding.write == [f"d = {part}.shuffle(9).batch(2)"]


def test_metrics_are_averaged_before_callbacks_that_decide():
    callbacks = "stop = [k.callbacks.EarlyStopping('loss')]\nnet.fit(x, y, callbacks=stop)"
    source = changed(PLAIN, ("net.fit(x, y)", callbacks))
    lines = [line for line in written(source, "horovod") if line.startswith("stop = ")]
    added = "hvd.BroadcastGlobalVariablesCallback(0), hvd.MetricAverageCallback()"
    assert lines == [f"stop = [{added}, k.callbacks.EarlyStopping('loss')]"] * 2


def test_strategies_of_tensorflow_keep_their_arguments():
    ours = "tf_onebit.distribute.MultiWorkerMirroredStrategy(tf_onebit.OneBit())"
    stock = "tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=slurm)"
    source = changed(STRATEGY, (ours, stock), ("import tf_onebit\n", ""))
    assert items(source) == [(2, "strategy 1"), (4, "strategy 1, 6")]
    new = "tf_onebit.distribute.MultiWorkerMirroredStrategy(exchange, cluster_resolver=slurm)"
    assert written(source)[-1] == f"strategy = {new}"


def test_arguments_that_a_strategy_does_not_take_are_named():
    ours = "tf_onebit.distribute.MultiWorkerMirroredStrategy(tf_onebit.OneBit())"
    stock = "tf.distribute.MirroredStrategy(cross_device_ops=ops)"
    finding = found_in(changed(STRATEGY, (ours, stock)))[-1]
    assert "Leave out cross_device_ops" in finding.what
    assert finding.write[-1] == "strategy = tf_onebit.distribute.MirroredStrategy(exchange)"


@pytest.mark.parametrize("name", ["TPUStrategy", "experimental.ParameterServerStrategy"])
def test_other_strategies_are_not_supported(name):
    ours = "tf_onebit.distribute.MultiWorkerMirroredStrategy(tf_onebit.OneBit())"
    source = changed(STRATEGY, (ours, f"tf.distribute.{name}(cluster)"))
    (finding,) = found_in(source)
    kind = name.rpartition(".")[2]
    assert finding.what == f"Replace {kind} by a MultiWorkerMirroredStrategy."
    assert f"tf_onebit has no {kind}" in finding.why


def test_a_program_moves_from_horovod_to_a_strategy():
    found = found_in(HOROVOD, "strategy")
    assert found[0].what == "Remove Horovod from the program (lines 7, 8, 10, 12)."
    assert [f.item for f in found] == ["strategy 1", "strategy 1, 6", "strategy 2", "strategy 3"]


def test_a_program_moves_from_a_strategy_to_horovod():
    found = found_in(STRATEGY, "horovod")
    assert "Remove this strategy, and its scope." in [f.what for f in found]


def test_blocks_in_a_strategy():
    found = found_in(STRATEGY.replace('"adam"', "keras.optimizers.Adam()"), "blocks")
    assert [f.item for f in found] == ["blocks 2", "blocks 3", "blocks 4"]


STOCK = """\
import keras
import horovod.tensorflow.keras as hvd

hvd.init()
model = make()
opt = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), name="sgd")
model.compile(opt, "mse")
model.fit(load(hvd.rank()), callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""


def test_a_program_for_horovod_changes_its_import_and_gets_an_exchange():
    assert items(STOCK) == [
        (2, "Horovod 1"),
        (6, "Horovod 4"),
        (8, "docs/horovodrun.md"),
    ]
    sgd = "keras.optimizers.SGD(0.1)"
    assert f'opt = hvd.DistributedOptimizer({sgd}, exchange, name="sgd")' in written(STOCK)


@pytest.mark.parametrize("compression, found", [("none", True), ("fp16", False)])
def test_a_compression_of_horovod_may_stay(compression, found):
    source = changed(STOCK, ('name="sgd"', f"compression=hvd.Compression.{compression}"))
    assert ((6, "Horovod 4") in items(source)) == found


def test_a_program_may_stay_on_horovod_with_the_compression_of_this_package():
    source = changed(
        STOCK,
        ("as hvd\n", "as hvd\nfrom tf_onebit.horovod import Compression\n"),
        ('name="sgd"', "compression=Compression.onebit"),
    )
    assert "Horovod 1" not in [item for _, item in items(source)]


def test_names_that_horovod_has_and_this_package_lacks_are_those_of_the_table():
    from tf_onebit._check.stock_horovod import MISSING
    from tf_onebit.horovod.elsewhere import INSTEAD

    assert MISSING == set(INSTEAD)


def test_model_parallel_programs_save_on_all_members():
    save = "model.save('m.keras')"
    source = changed(STRATEGY, ("OneBit())", "OneBit(), model_parallel=2)"))
    assert found_in(f"{source}{save}\n") == []
    split = "tf_onebit.model_parallel.split(model)"
    checkpoint = "keras.callbacks.ModelCheckpoint('m.keras')"
    assert found_in(f"{HOROVOD}{split}\n{checkpoint}\n{save}\n") == []
    assert len(found_in(f"{STRATEGY}{save}\n")) == 1


def test_names_of_optimizers_are_those_of_keras():
    import keras

    from tf_onebit._check.training import OPTIMIZERS

    rest = {"MultiOptimizer", "Optimizer", "OptimizerMap"}
    names = {name for name in dir(keras.optimizers) if name[0].isupper()}
    assert set(OPTIMIZERS.values()) == names - rest


def test_an_optimizer_that_a_function_may_wrap_is_left_alone():
    wrapped = "optimizer = wrap(keras.optimizers.SGD(0.1))"
    by_hvd = "hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), tf_onebit.OneBit())"
    assert found_in(changed(HOROVOD, (f"optimizer = {by_hvd}", wrapped))) == []
    again = "optimizer = keras.optimizers.SGD(0.1)\noptimizer = wrap(optimizer)"
    assert found_in(changed(HOROVOD, (f"optimizer = {by_hvd}", again))) == []


@pytest.mark.parametrize("callbacks", ["callbacks=others.callbacks()", "**options"])
def test_callbacks_that_cannot_be_seen_may_broadcast(callbacks):
    given = "callbacks=[hvd.BroadcastGlobalVariablesCallback(0)]"
    source = changed(HOROVOD, (given, callbacks))
    assert found_in(f"import others\n{source}") == []


def test_the_only_process_of_a_strategy_needs_no_seed_and_writes_its_files():
    source = changed(
        STRATEGY,
        ("MultiWorkerMirroredStrategy", "MirroredStrategy"),
        ("keras.utils.set_random_seed(1)", ""),
    )
    assert found_in(f"{source}model.save('m.keras')\n") == []


def test_a_scope_may_be_entered_without_with():
    source = changed(
        STRATEGY, ("with strategy.scope():", "stack.enter_context(strategy.scope())\nif 1:")
    )
    assert found_in(source) == []


def test_a_program_may_give_up_compression_for_its_optimizer():
    source = changed(STRATEGY, ("OneBit", "FullPrecision"), ('"adam"', "keras.optimizers.Ftrl()"))
    assert found_in(source) == []


def test_blocks_in_a_strategy_take_no_optimizer_by_its_name():
    source = changed(
        STRATEGY,
        ("OneBit", "Local"),
        ("callbacks=[]", "callbacks=[tf_onebit.callbacks.BlockMomentum()]"),
    )
    (finding,) = found_in(source)
    assert finding.write == ["tf_onebit.optimizers.Adam(beta_1=0.5)"]


def test_a_module_imported_by_its_whole_name_is_known():
    source = STOCK.replace(
        "import horovod.tensorflow.keras as hvd", "import horovod.tensorflow.keras"
    )
    found = found_in(source.replace("hvd.", "horovod.tensorflow.keras."))
    assert found[0].write[-1] == "import tf_onebit.horovod as hvd"
    assert [finding.line for finding in found] == [2, 6, 8]


def test_a_stock_tape_is_asked_for_keras_variables():
    ours = "tape = hvd.DistributedGradientTape(tape, exchange=exchange)"
    source = changed(
        LOOP,
        ("import tf_onebit.horovod as hvd", "import horovod.tensorflow as hvd"),
        (ours, "tape = hvd.DistributedGradientTape(tape)"),
        ("exchange = tf_onebit.OneBit()", "values = [v.value for v in model.trainable_weights]"),
        ("tape.gradient(loss, model.trainable_weights)", "tape.gradient(loss, values)"),
    )
    assert [finding.line for finding in found_in(source)] == [4, 16, 17]
    assert "tape.gradient(loss, model.trainable_weights)" in found_in(source)[-1].write[0]


def test_a_loop_does_not_train_in_blocks():
    found = found_in(LOOP, "blocks")
    assert "Train with fit in place of this loop, or without blocks." in [f.what for f in found]


def test_a_program_that_compares_may_keep_what_it_compares_with():
    stock = "import horovod.tensorflow as stock\n"
    assert found_in(f"{stock}{HOROVOD}") == []
    assert found_in(f"{STRATEGY}other = tf.distribute.MirroredStrategy()\n") == []


def test_models_of_a_program_with_both_ways_are_left_alone():
    source = f"{STRATEGY}import tf_onebit.horovod as hvd\nother.compile('sgd', 'mse')\n"
    assert found_in(source) == found_in(source, "strategy") == []
    assert "Horovod 4" not in [item for _, item in items(source, "horovod")]


def test_a_model_made_in_a_constructor_is_put_into_the_scope_there():
    source = """\
import keras

keras.utils.set_random_seed(1)


class Run(Base):
    def __init__(self):
        super().__init__()
        self.model = keras.Sequential([keras.layers.Dense(2)])
        self.model.compile("sgd", "mse")
"""
    finding = found_in(source)[-1]
    assert finding.write == [
        "with strategy.scope():",
        "    self.model = keras.Sequential([keras.layers.Dense(2)])",
        '    self.model.compile("sgd", "mse")',
    ]
