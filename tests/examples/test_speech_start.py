"""The start of training in the speech example: weights of low rank, and pre-training."""

import batches
import keras
import model as networks
import numpy as np
import options
import pytest
import start

import tf_onebit.horovod as hvd
from tests.examples.speech import learnable_split


def small_network(depth, activation="sigmoid", seed=1):
    keras.utils.set_random_seed(seed)
    return networks.acoustic_model((11, 2), 30, depth, 12, activation)


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_initial_weights_follow_from_the_seed_and_differ_from_layer_to_layer(activation):
    def kernels(seed):
        layers = networks.hidden_layers(small_network(3, activation, seed))
        return [layer.get_weights()[0] for layer in layers]

    first = kernels(1)
    for one, again, other in zip(first, kernels(1), kernels(2), strict=True):
        np.testing.assert_array_equal(one, again)
        assert not np.any(one == other)
    assert not np.any(first[1] == first[2])


class TestLowRank:
    INPUTS = np.random.default_rng(1).standard_normal((5, 11, 2)).astype(np.float32)

    def test_matrices_of_that_rank_stay_what_they_are(self):
        model = small_network(3)
        for layer in networks.hidden_layers(model)[1:]:
            kernel, bias = layer.get_weights()
            kernel[4:] = np.tile(kernel[:4], (2, 1))
            layer.set_weights([kernel, bias + 1])
        expected = model(self.INPUTS)
        low = networks.low_rank_model(model, 4)
        np.testing.assert_allclose(low(self.INPUTS), expected, rtol=1e-3, atol=1e-4)

    def test_others_become_the_closest_of_that_rank(self):
        model = small_network(2)
        kernel, bias = networks.hidden_layers(model)[1].get_weights()
        _, first, bottleneck, expanding, logits = networks.low_rank_model(model, 5).layers
        (left,), (right, new_bias) = bottleneck.get_weights(), expanding.get_weights()
        assert left.shape == (12, 5) and right.shape == (5, 12)
        singular_values = np.linalg.svd(kernel, compute_uv=False)
        distance = np.linalg.norm(kernel - left @ right)
        assert distance == pytest.approx(np.linalg.norm(singular_values[5:]), rel=1e-4)
        np.testing.assert_array_equal(new_bias, bias)
        assert (first, logits) == (model.layers[1], model.layers[-1])

    def test_what_comes_between_has_no_biases_and_no_activation(self):
        low = networks.low_rank_model(small_network(3, "relu"), 5)
        bottlenecks, expanding = low.layers[2:-1:2], low.layers[3:-1:2]
        assert not any(layer.use_bias for layer in bottlenecks)
        assert {layer.activation for layer in bottlenecks} == {keras.activations.linear}
        assert {layer.activation for layer in expanding} == {keras.activations.relu}


class TestStart:
    def arguments(self, *more):
        return options.parse_arguments(
            ["--depth", "3", "--width", "16", "--batch-size", "20", "--activation", "sigmoid"]
            + ["--learning-rate", "1", *more]
        )

    def test_pretraining_moves_hidden_layers_but_the_last_and_no_outputs(self):
        hvd.init()
        split = learnable_split()
        models = []
        for more in ((), ("--pretrain", "0.5")):
            keras.utils.set_random_seed(1)
            models.append(start.initial_model(self.arguments(*more), split, 4, 0, 1))
        same = [
            np.array_equal(before.get_weights()[0], after.get_weights()[0])
            for before, after in zip(*(model.layers[1:] for model in models), strict=True)
        ]
        assert same == [False, False, True, True]

    def test_every_stage_trains_all_of_its_hidden_layers(self):
        hvd.init()
        split, model = learnable_split(), small_network(3)
        first = networks.hidden_layers(model)[0]
        kernels = []

        def minibatches(depth):
            kernels.append(first.get_weights()[0] if depth > 1 else None)
            return batches.FrameBatches(split, 20, 0, 1, 4, 1, first_block=depth - 1)

        start.pretrain(model, minibatches, learning_rate=1.0, momentum=0.0)
        assert len(kernels) == 2
        assert not np.array_equal(kernels[1], first.get_weights()[0])

    def test_pretraining_learns(self):
        hvd.init()
        split = learnable_split()
        entropies = start.pretrain(
            small_network(2),
            lambda depth: batches.FrameBatches(split, 20, 0, 1, 1, 1),
            learning_rate=1.0,
            momentum=0.0,
        )
        assert entropies[0] < 0.9 * np.log(30)

    def test_weights_of_low_rank_are_saved_and_loaded(self, tmp_path):
        hvd.init()
        split, path = learnable_split(), tmp_path / "model.weights.h5"
        saved = start.initial_model(self.arguments("--svd-rank", "3"), split, 4, 0, 1)
        saved.set_weights([w + 1 for w in saved.get_weights()])
        saved.save_weights(path)
        flags = ("--svd-rank", "3", "--load-weights", str(path))
        loaded = start.initial_model(self.arguments(*flags), split, 4, 0, 1)
        for expected, actual in zip(saved.get_weights(), loaded.get_weights(), strict=True):
            np.testing.assert_array_equal(actual, expected)
