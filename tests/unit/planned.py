"""Models that the tests of `tf-onebit plan` name as module:function."""

import keras

import tf_onebit


def make_model():
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(40)]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    return model


def make_text_model():
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    embedded = keras.layers.Embedding(50, 8)(tokens)
    outputs = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(embedded))
    model = keras.Model({"tokens": tokens}, {"classes": outputs})
    model.compile(tf_onebit.optimizers.Adam(0.01), loss="mse")
    return model


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
