"""The objects that examples of README and docs take for granted: models, data, and a cluster."""

import keras
import numpy as np
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support.two_optimizers import Gan

CLASSES, FEATURES = 4, 16
# Searches of minibatch sizes need trials of 2 % of the samples between two of them.
SAMPLES = {"docs/callbacks.md": 20_000, "docs/large_minibatches.md": 172_800}
_MOST_EPOCHS = 3


class Model(keras.Sequential):
    """A model that trains for a few epochs, even if it is told to train for more."""

    def fit(self, *arguments, epochs=1, **options):
        return super().fit(*arguments, epochs=min(epochs, _MOST_EPOCHS), verbose=0, **options)


def make_model():
    hidden = keras.layers.Dense(64, "relu")  # as many weights as 1-bit exchanges compress
    output = keras.layers.Dense(CLASSES, "softmax")
    return Model([keras.Input([FEATURES]), hidden, output])


def names(document):
    """Returns the names that a document's first block may use: dictionary."""
    random = np.random.default_rng(1)
    samples = SAMPLES.get(document, 512)
    x = random.standard_normal([samples, FEATURES], np.float32)
    y = random.integers(0, CLASSES, samples).astype(np.int32)

    hvd.init()
    model = make_model()
    model.compile("sgd", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return {
        "keras": keras,
        "tf": tf,
        "tf_onebit": tf_onebit,
        "hvd": hvd,
        "make_model": make_model,
        "make_gan": lambda: Gan(width=FEATURES),
        "loss_function": keras.losses.SparseCategoricalCrossentropy(),
        "model": model,
        "optimizer": keras.optimizers.SGD(0.1),
        "adam": tf_onebit.optimizers.Adam(0.001, beta_1=0.5),
        "exchange": tf_onebit.OneBit(),
        **{"x": x, "y": y, "labels": y, "images": x},
        **{"x_held_out": x[:64], "y_held_out": y[:64], "labels_held_out": y[:64]},
    }


def hold_models_on_one_device(monkeypatch):
    """Makes strategies with groups of one device, where a program asks for more."""
    strategy = tf_onebit.distribute.MultiWorkerMirroredStrategy
    monkeypatch.setattr(
        tf_onebit.distribute,
        "MultiWorkerMirroredStrategy",
        lambda exchange, model_parallel: strategy(exchange),
    )


def stand_in_for_a_cluster(monkeypatch):
    """Sets up a step of Slurm's with one task, and a pretended GPU."""
    step = {"PROCID": 0, "STEP_NUM_TASKS": 1, "STEP_TASKS_PER_NODE": 1, "STEP_NODELIST": "node"}
    for name, value in step.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    resolvers = tf.distribute.cluster_resolver

    def one_worker(cluster, task_type, task_id):
        assert cluster.as_dict() == {"worker": ["node:8888"]}
        assert (task_type, task_id) == ("worker", 0)
        return resolvers.TFConfigClusterResolver()  # a server can only be started at first

    monkeypatch.setattr(resolvers, "SimpleClusterResolver", one_worker)
    devices_of = tf.config.list_physical_devices

    def list_physical_devices(kind=None):
        return ["GPU:0"] if kind == "GPU" else devices_of(kind)

    monkeypatch.setattr(tf.config, "list_physical_devices", list_physical_devices)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda devices, kind: None)
