"""Model parallelism: layers that members split, and layers that each member holds whole."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.groups import fit_group, groups_of, momentum, split
from tests.support.model_parallel import CLASSES, MODELS, compiled, data_of, difference, fit
from tests.support.ranks import rank
from tf_onebit import model_parallel
from tf_onebit.collectives.requests import tap_requests


class Doubled(keras.layers.Dense):
    """A class that no plan knows."""


def various():
    layers = keras.layers
    inputs = keras.Input((6, 8))
    layer = layers.Dense(8, name="twice")
    x = layer(layer(inputs))
    x = layers.Dense(7, name="odd")(x)
    x = Doubled(8, name="unknown")(x)
    x = layers.TimeDistributed(layers.Dense(8, name="inner"))(x)
    x = layers.Dense(8, name="unit_norm", kernel_constraint="unit_norm")(x)
    x = layers.Dense(8, name="rows", kernel_constraint=keras.constraints.MaxNorm(1, axis=1))(x)
    x = layers.Dense(8, name="orthogonal", kernel_regularizer="orthogonal_regularizer")(x)
    x = layers.Conv1D(8, 3, padding="causal", name="causal")(x)
    x = layers.Conv1D(8, 3, groups=2, name="grouped")(x)
    x = layers.Dense(8, name="lora", lora_rank=1)(x)
    x = layers.EinsumDense("abc,cd->abd", (None, 8), bias_axes="d", name="einsum")(x)
    attention = layers.MultiHeadAttention(2, 4, use_gate=True)
    return keras.Model(inputs, attention(x, x, return_attention_scores=True))


@pytest.mark.workers(2)
def test_layers_that_cannot_be_split_are_left_whole_for_a_reason(world_size):
    keras.utils.set_random_seed(0)
    plain, model = various(), various()
    model.set_weights(plain.get_weights())
    model_parallel.split(model, groups_of(2), min_size=0)
    lines = dict(line.split(": ", 1) for line in model_parallel.describe(model).splitlines())
    for name, reason in {
        "odd": "2 members do not divide its 7 units",
        "unknown": "Doubled is not among the classes",
        "inner": "it belongs to a TimeDistributed",
        "rows": "its MaxNorm concerns several parts",
        "orthogonal": "its OrthogonalRegularizer may be no sum over weights",
        "grouped": "it convolves 2 groups of channels separately",
        "lora": "it has LoRA weights",
    }.items():
        assert reason in lines.pop(name)
    of_attention = {"query", "key", "value", "gate", "attention_output"}
    assert set(lines) == {"twice", "unit_norm", "causal", "einsum", *of_attention}
    assert not any(":" in line for line in lines.values())  # no reason
    x = np.random.default_rng(0).normal(size=(4, 6, 8)).astype("float32")
    assert difference(model(x), plain(x)) < 1e-6


@pytest.mark.workers(2)
def test_members_add_up_the_second_of_two_layers_if_they_send_less(world_size):
    """Only while their model is called, each member has its part of the values in between."""

    def model():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((32,))
        hidden = keras.layers.Dense(64, name="hidden")(inputs)
        x = keras.layers.Dense(8, activation="tanh", name="second")(keras.layers.ReLU()(hidden))
        wide = keras.layers.Dense(64)(x)
        dropped = keras.layers.Dropout(0.0)(wide)
        return keras.Model(inputs, keras.layers.Dense(CLASSES)(dropped))

    whole, pair = model(), model()
    groups = model_parallel.Groups(2)
    names, run = [], groups.within.run

    def recording(generators):
        return run([tap_requests(one, lambda r: names.append(r.name)) for one in generators])

    model_parallel.split(pair, groups, min_size=0)
    groups.within.run = recording
    x, y, size = data_of("mlp")
    np.testing.assert_allclose(pair(x), whole(x), atol=1e-6)
    assert [name.rpartition("/")[2] for name in names] == ["sum", "gather", "gather"]
    compiled(pair, hvd.DistributedOptimizer(momentum()))
    compiled(whole, momentum())
    for one in (pair, whole):
        fit(one, "mlp", epochs=1)
    assert difference(pair.get_weights(), whole.get_weights()) < 1e-6
    # Other models get whole outputs of the first, and give whole inputs to the second.
    for part in (lambda m: m.get_layer("hidden").output, lambda m: m.get_layer("second").output):
        ends = [keras.Model(one.inputs, part(one))(x) for one in (pair, whole)]
        np.testing.assert_allclose(*ends, atol=1e-6)
    inputs, values = keras.Input((64,)), np.repeat(x[:, :1], 64, axis=1)
    starts = [keras.Model(inputs, m.get_layer("second")(inputs)) for m in (pair, whole)]
    np.testing.assert_allclose(*(start(values) for start in starts), atol=1e-6)


class Tied(keras.Model):
    """A model that reads the weights of an embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(12, 8)

    def call(self, tokens):
        x = self.embedding(tokens)
        return keras.ops.matmul(x, keras.ops.transpose(self.embedding.embeddings))


@pytest.mark.workers(2)
def test_code_that_reads_a_weight_in_a_call_gets_all_of_it(world_size):
    def model():
        keras.utils.set_random_seed(0)
        model = Tied()
        model(tf.zeros([1, 6], tf.int32))
        return model

    tied, whole = model(), compiled(model(), momentum())
    model_parallel.split(tied, groups_of(2), min_size=0)
    assert tied.embedding.embeddings.shape == (12, 4)
    fit_group(compiled(tied, hvd.DistributedOptimizer(momentum())), "transformer", epochs=1)
    fit(whole, "transformer", epochs=1)
    assert difference(tied.get_weights(), whole.get_weights()) < 1e-6


@pytest.mark.workers(2)
def test_members_drop_the_same_units(world_size):
    def model():
        layers = [keras.Input((32,)), keras.layers.Dropout(0.5), keras.layers.Dense(CLASSES)]
        return keras.Sequential(layers)

    keras.utils.set_random_seed(rank())
    drops = model_parallel.split(model(), groups_of(2), min_size=0)
    compiled(drops, hvd.DistributedOptimizer(momentum()))
    fit_group(drops, "mlp", epochs=1)
    keras.utils.set_random_seed(0)
    expected = compiled(model(), momentum())
    fit(expected, "mlp", epochs=1)
    assert difference(drops.get_weights(), expected.get_weights()) < 1e-6


@pytest.mark.nightly
@pytest.mark.workers(4)
def test_a_split_model_trains_within_another(world_size, tmp_path):
    def model_around(inner, optimizer):
        keras.utils.set_random_seed(1)
        layers = [keras.Input((32,)), inner, keras.layers.Dense(CLASSES)]
        return compiled(keras.Sequential(layers), optimizer)

    inner = split("mlp")
    groups = inner.division.groups
    outer = model_around(inner, hvd.DistributedOptimizer(momentum()))
    fit(outer, "mlp", groups.number, groups.count, epochs=1)
    expected = model_around(MODELS["mlp"](), momentum())
    fit(expected, "mlp", epochs=1)
    assert difference(inner.get_weights(), expected.layers[0].get_weights()) < 1e-6
    assert difference(outer.layers[1].get_weights(), expected.layers[1].get_weights()) < 1e-6
    with pytest.raises(ValueError, match="is saved by that model"):
        outer.save_weights(tmp_path / "outer.weights.h5")
    clone = keras.models.clone_model(inner)
    assert [w.shape for w in clone.weights] == [w.shape for w in MODELS["mlp"]().weights]
