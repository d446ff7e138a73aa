"""Models that the tests of `tf-onebit plan` name as module:function."""

import json
import os

import keras

import tf_onebit


def make_model():
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(40)]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    return model


def make_large_model():
    """Its first two layers can be split, and the last is too small."""
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(4096, activation="relu"),
            keras.layers.Dense(64, activation="softmax"),
            keras.layers.Dense(40),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    return model


def make_large_model_with_lamb():
    model = make_large_model()
    model.compile(keras.optimizers.Lamb(), loss="mse")
    return model


def make_large_model_of_fixed_batches():
    model = keras.Sequential([keras.Input(batch_shape=(6, 256)), keras.layers.Dense(512)])
    model.compile("sgd", loss="mse")
    return model


def make_text_model():
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    embedded = keras.layers.Embedding(50, 8)(tokens)
    outputs = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(embedded))
    model = keras.Model({"tokens": tokens}, {"classes": outputs})
    model.compile(tf_onebit.optimizers.Adam(0.01), loss="mse")
    return model


def make_image_model():
    images = keras.Input((None, None, 3))
    outputs = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3)(images))
    model = keras.Model(images, outputs)
    model.compile("sgd", loss="mse")
    return model


def make_model_with_keras_adam():
    model = make_model()
    model.compile(keras.optimizers.Adam(), loss="mse")
    return model


def make_model_of_narrow_weights():
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(8, use_bias=False, dtype="bfloat16")]
    )
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    return model


def make_model_that_gathers_gradients():
    model = make_model()
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=8), loss="mse")
    return model


def end():
    raise SystemExit(3)


def make_uncompiled_model():
    return keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])


def make_unbuilt_model():
    model = keras.Sequential([keras.layers.Dense(4)])
    model.compile("sgd", loss="mse")
    return model


def make_frozen_model():
    model = make_model()
    model.trainable = False
    return model


def make_list():
    return [1, 2]


def fail():
    raise RuntimeError("no such corpus")


def fail_on_the_second_worker():
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    if os.environ.get("HOROVOD_RANK", task.get("index")) in ("1", 1):
        fail()
    return make_model()


def make_model_of_fixed_batches():
    inputs = keras.Input(batch_shape=(6, 16), dtype="float16")
    model = keras.Model(inputs, [keras.layers.Dense(8)(inputs), keras.layers.Dense(2)(inputs)])
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(schedule))
    model.compile(optimizer, loss="mse")
    return model


class OwnOptimizer(keras.optimizers.SGD):
    pass


class OptimizerWithoutConfig(keras.optimizers.SGD):
    def __init__(self, what_get_config_does_not_know, learning_rate=0.1, **arguments):
        super().__init__(learning_rate, **arguments)


def make_model_with_an_optimizer_without_config():
    model = make_model()
    model.compile(OptimizerWithoutConfig(1), loss="mse")
    return model
