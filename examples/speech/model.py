"""The papers' acoustic model: a deep neural network that classifies frames in context."""

import functools

import keras
import numpy as np

# Keras draws the seed of an initializer when the initializer is made. So each layer makes its own,
# after the program has set its seed.
_INITIALIZERS = {
    "relu": keras.initializers.HeUniform,
    # Glorot and Bengio (2010). A logistic unit has slope 1/4 at 0, so weights are 4 times larger.
    "sigmoid": functools.partial(
        keras.initializers.VarianceScaling, 16.0, mode="fan_avg", distribution="uniform"
    ),
}


def acoustic_model(input_shape, target_count, depth, width, activation):
    """Builds the network.

    Args:
        input_shape: pair of int: frames in the context window, features per frame.
        target_count: int. Outputs, as logits: the loss applies the softmax.
        depth: int. Hidden layers.
        width: int. Units in each.
        activation: str, `"relu"` or `"sigmoid"`.

    Returns:
        `keras.Model`.
    """
    return keras.Sequential(
        [
            keras.Input(input_shape),
            keras.layers.Flatten(),
            *(
                keras.layers.Dense(
                    width, activation, kernel_initializer=_INITIALIZERS[activation]()
                )
                for _ in range(depth)
            ),
            keras.layers.Dense(target_count, name="logits"),
        ],
        name="acoustic_model",
    )


def hidden_layers(model):
    """Returns the hidden layers of a model from `acoustic_model`, as a list."""
    _, *hidden, _ = model.layers
    return hidden


def low_rank_model(model, rank):
    """Replaces the matrices between hidden layers by products of two low-rank matrices.

    The method is from Xue, Li and Gong (2013). The singular value decomposition `W = U S V` is cut
    off after the largest `rank` singular values. The network then has `U sqrt(S)`, a linear layer
    without biases, and `sqrt(S) V`. No matrix of this rank is closer to W. The matrices of the
    first hidden layer and of the outputs stay.

    Args:
        model: what `acoustic_model` returned. Its other layers become part of the new model.
        rank: int, less than the units of a hidden layer.

    Returns:
        `keras.Model`.
    """
    flatten, first, *hidden, logits = model.layers
    layers = [flatten, first]
    for number, layer in enumerate(hidden, start=1):
        kernel, bias = layer.get_weights()
        left, singular_values, right = np.linalg.svd(kernel, full_matrices=False)
        roots = np.sqrt(singular_values[:rank])
        bottleneck = keras.layers.Dense(rank, use_bias=False, name=f"bottleneck_{number}")
        expanding = keras.layers.Dense(layer.units, layer.activation, name=f"expanding_{number}")
        for new, inputs, weights in (
            (bottleneck, len(kernel), [left[:, :rank] * roots]),
            (expanding, rank, [roots[:, None] * right[:rank], bias]),
        ):
            new.build((None, inputs))
            new.set_weights(weights)
        layers += [bottleneck, expanding]
    return keras.Sequential(
        [keras.Input(model.input_shape[1:]), *layers, logits], name="low_rank_acoustic_model"
    )
