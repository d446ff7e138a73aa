"""The papers' acoustic model: a deep neural network that classifies frames in context."""

import keras

# Glorot and Bengio (2010): a logistic unit's slope is 1/4 at 0, so weights are 4 times as large.
_INITIALIZERS = {
    "relu": "he_uniform",
    "sigmoid": keras.initializers.VarianceScaling(16.0, mode="fan_avg", distribution="uniform"),
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
                keras.layers.Dense(width, activation, kernel_initializer=_INITIALIZERS[activation])
                for _ in range(depth)
            ),
            keras.layers.Dense(target_count, name="logits"),
        ],
        name="acoustic_model",
    )
