"""Trains models that the devices of a process hold together, and prints what came of it as JSON.

python -m tests.parallel.train_in_device_groups [more | resume directory | cluster directory]
"""

import collections
import functools
import hashlib
import json
import pathlib
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

import tf_onebit
from tests.support.blocks import Lockstep
from tests.support.model_parallel import (
    BATCH_SIZE,
    MODELS,
    cnn,
    compiled,
    data_of,
    difference,
    fit,
    mlp,
    plain_model,
)
from tf_onebit import model_parallel
from tf_onebit._framework_internals.tf_variables import copies_of
from tf_onebit._shares import is_part
from tf_onebit.callbacks import BackupAndRestore, BlockMomentum
from tf_onebit.distribute import MirroredStrategy, MultiWorkerMirroredStrategy


def mirrored(exchange=None, devices=2, members=2):
    names = [f"CPU:{index}" for index in range(devices)]
    return MirroredStrategy(exchange, names, model_parallel=members)


def one_bit():
    return tf_onebit.OneBit(min_size=0)


def momentum():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def clipped_adam():
    return keras.optimizers.Adam(0.01, global_clipnorm=0.5, weight_decay=0.01)


def bmuf_adam():
    # A larger epsilon amplifies no rounding.
    return tf_onebit.optimizers.Adam(0.01, beta_1=0.5, epsilon=1e-3)


def accumulating():
    return keras.optimizers.SGD(0.05, clipnorm=0.1, gradient_accumulation_steps=2, use_ema=True)


def split(strategy, name="mlp", optimizer=momentum, **settings):
    with strategy.scope():
        of_all_groups = functools.partial(keras.layers.BatchNormalization, synchronized=True)
        model = cnn(of_all_groups) if name == "cnn" else MODELS[name]()
        model = model_parallel.split(model, strategy.model_groups, min_size=0)
        return compiled(model, optimizer(), **settings)


def trained(strategy, *arguments, epochs=1, callbacks=(), **settings):
    model = split(strategy, *arguments, **settings)
    fit(model, (*arguments, "mlp")[0], epochs=epochs, callbacks=list(callbacks))
    return model


def distance(strategy, name="mlp", optimizer=momentum, epochs=1, **settings):
    """Returns how far the weights of a split model are from those of an unsplit one."""
    model = trained(strategy, name, optimizer, epochs=epochs, **settings)
    plain = plain_model(name, optimizer, epochs=epochs)
    return float(difference(model.get_weights(), plain.get_weights()))


def digests(model):
    """Returns digests of the parts and of the copies on each device: pairs."""

    def digest(variables, device):
        arrays = [copies_of(variable)[device].numpy() for variable in variables]
        return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()

    parts = list(filter(is_part, model.trainable_weights))
    copies = [v for v in model.trainable_weights if not is_part(v)]
    assert parts and copies
    return [[digest(parts, i), digest(copies, i)] for i in range(len(copies_of(parts[0])))]


def filed(strategy):
    """Compares a split model with what plain Keras reads from its file."""
    model = trained(strategy, "mlp", clipped_adam)
    x, y, size = data_of("mlp")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.keras"
        model.save(path)
        plain = keras.models.load_model(path)
        outputs = [one.predict(x, size, verbose=0) for one in (model, plain)]
        losses = [one.evaluate(x, y, size, verbose=0) for one in (model, plain)]
        fit(plain, "mlp", epochs=1)
        fit(model, "mlp", epochs=1)
        later = difference(model.get_weights(), plain.get_weights())
        model.load_weights(path)
        again = model.predict(x, size, verbose=0)
    whole = model.get_weights()
    merged = model_parallel.merge(model)
    return {
        "classes": [type(layer) is keras.layers.Dense for layer in plain.layers],
        "outputs": float(difference(outputs[:1], outputs[1:])),
        "losses": losses,
        "later": float(later),
        "again": float(difference(outputs[:1], [again])),
        "merged": float(difference(whole, [v.numpy() for v in merged.weights])),
        "is_merged": type(merged.layers[0]) is keras.layers.Dense,
    }


def places(strategy, model):
    """Returns the devices of parts, slots, residuals and products of matrices."""
    kernel, slot = model.layers[0].kernel, model.optimizer.variables[2]
    residuals = [
        exchange.buckets[0].exchange.worker_residual
        for exchange in model.optimizer.gradient_exchange.exchanges[0].exchanges
    ]
    x, y, _ = data_of("mlp")

    @tf.function
    def step():
        return strategy.run(model.train_step, args=((x[:16], y[:16]),))

    operations = step.get_concrete_function().graph.get_operations()
    products = [tf.DeviceSpec.from_string(o.device) for o in operations if o.type == "MatMul"]
    return {
        "shapes": [list(kernel.shape), list(slot.shape)],
        "kernel": [copy.device for copy in copies_of(kernel)],
        "slot": [copy.device for copy in copies_of(slot)],
        "residuals": [residual.device for residual in residuals],
        "products": dict(collections.Counter(str(spec.device_index) for spec in products)),
        "described": model_parallel.describe(model).splitlines()[0].partition(": ")[2],
    }


def interrupted(folder, strategy, optimizer=clipped_adam, callbacks=()):
    """Returns a model whose second epoch goes on from a backup of the first."""
    for epochs in (1, 2):
        backup = BackupAndRestore(folder, delete_checkpoint=False)
        both = [*callbacks, backup]
        model = trained(strategy, "mlp", optimizer, epochs=epochs, callbacks=both)
    return model


def resumed(folder, strategy):
    """Compares a run with one that goes on from a backup, and counts its steps.

    Returns:
        The comparison, and the model.
    """
    whole, model = trained(strategy, "mlp", clipped_adam, epochs=2), interrupted(folder, strategy)
    return [digests(whole) == digests(model), int(model.optimizer.iterations.numpy())], model


def resumed_with_one_group(folder):
    """Returns how far a run that goes on with another number of groups is from an unsplit one."""
    exchange = tf_onebit.FullPrecision()
    exchange.moments = "local"
    for devices, epochs in ((4, 1), (2, 2)):
        backup = BackupAndRestore(folder, delete_checkpoint=False)
        strategy = mirrored(exchange, devices)
        model = trained(strategy, "mlp", momentum, epochs=epochs, callbacks=[backup])
    plain = plain_model("mlp", momentum, epochs=2)
    return float(difference(model.get_weights(), plain.get_weights()))


def error_of(function, *arguments, **settings):
    try:
        function(*arguments, **settings)
    except ValueError as error:
        return str(error)
    return "no error"


def distance_with_delay():
    """Returns how far a split model is from an unsplit one, both with delayed gradients."""
    exchange = tf_onebit.Delayed(tf_onebit.FullPrecision())
    strategy = MirroredStrategy(exchange, ["CPU:0", "CPU:1"])
    with strategy.scope():
        plain = compiled(mlp(), momentum())
    fit(plain, "mlp", epochs=1)
    split_model = trained(mirrored(exchange, 4))
    return float(difference(split_model.get_weights(), plain.get_weights()))


def distance_in_blocks(folder):
    """Returns how far a split model is from unsplit ones, all trained in blocks.

    The run of the split model is interrupted.
    """
    strategy = MultiWorkerMirroredStrategy(tf_onebit.Local(), model_parallel=2)
    model = interrupted(folder, strategy, bmuf_adam, [BlockMomentum(8, 0.5)])
    reference = Lockstep(mlp, bmuf_adam)
    batches = []
    for worker in range(2):
        x, y, size = data_of("mlp", worker, 2)
        batches.append([(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)])
    expected = [reference.epoch(batches, 8) for _ in range(2)][-1]
    return float(difference(model.get_weights(), expected))


def unsplit(strategy):
    with strategy.scope():
        fit(compiled(mlp(), momentum()), "mlp", epochs=1)


def in_other_scope(strategy):
    with strategy.scope():
        model_parallel.split(mlp(), mirrored().model_groups)


def alone(_):
    """Returns the results of one process."""
    strategy = mirrored()
    x, _, _ = data_of("mlp")
    of_pairs = mirrored(one_bit(), 4)
    in_pairs = trained(of_pairs, "mlp", clipped_adam)
    return {
        "global_clipnorm": distance(mirrored(devices=4), "mlp", clipped_adam),
        "digests": digests(in_pairs),
        "places": places(of_pairs, in_pairs),
        "file": filed(strategy),
        "errors": {
            "outside": error_of(split(strategy), x[:4]),
            "unsplit": error_of(unsplit, mirrored()),
            "other scope": error_of(in_other_scope, strategy),
            "not divided": error_of(mirrored, devices=3),
            "no number": error_of(MirroredStrategy, None, ["CPU:0"], model_parallel=0),
        },
    }


def more(folder):
    """Returns the results of more cases."""
    strategy = mirrored()
    return {
        "transformer": distance(strategy, "transformer", epochs=5),
        "mlp": distance(strategy, epochs=5),
        "mlp, two groups": distance(mirrored(devices=4), epochs=5),
        "cnn": distance(strategy, "cnn", epochs=5),
        **{
            f"{name}, two groups": distance(mirrored(devices=4), name, epochs=5)
            for name in ("cnn", "transformer")
        },
        **{
            f"{name}, four members": distance(mirrored(devices=4, members=4), name, epochs=5)
            for name in MODELS
        },
        "accumulation": distance(mirrored(devices=4), "mlp", accumulating, run_eagerly=True),
        "delay": distance_with_delay(),
        "one member": distance(MirroredStrategy(devices=["CPU:0"])),
        "steps_per_execution": distance(strategy, steps_per_execution=4),
        "resumed with one group": resumed_with_one_group(folder),
    }


def resume(folder):
    """Compares a delayed run of one process with one that goes on from a backup."""
    return resumed(folder, mirrored(tf_onebit.Delayed(one_bit()), 4))[0]


def cluster(folder):
    """Returns the results of one process of several."""
    exchange = tf_onebit.WarmStart(one_bit(), steps=2)
    strategy = MultiWorkerMirroredStrategy(model_parallel=2)
    compressed = MultiWorkerMirroredStrategy(exchange, model_parallel=2)
    goes_on, model = resumed(f"{folder}/steps", compressed)
    x, _, _ = data_of("mlp")
    predictions = model.predict(x[:BATCH_SIZE], BATCH_SIZE, verbose=0)
    with tempfile.TemporaryDirectory() as own:
        path = str(pathlib.Path(own) / "model.keras")
        model.save(path)
        plain = keras.models.load_model(path)
    return {
        "mlp": distance(strategy, epochs=5),
        "digests": digests(model),
        "resumed": goes_on,
        "blocks": distance_in_blocks(f"{folder}/blocks"),
        "outputs": float(np.abs(predictions - plain.predict(x[:BATCH_SIZE], verbose=0)).max()),
    }


def main(action="alone", folder=None):
    cpu = tf.config.list_physical_devices("CPU")[0]
    count = 2 if action == "cluster" else 4
    parts = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(cpu, parts)
    with tempfile.TemporaryDirectory() as own:
        actions = {"alone": alone, "more": more, "resume": resume, "cluster": cluster}
        results = actions[action](folder or own)
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
