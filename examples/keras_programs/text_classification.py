"""Trains a Transformer to classify reviews, in which a "not" inverts the next word."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(1)
vocabulary, length = 100, 12  # words, and words of a review
NOT, GOOD, BAD, NEUTRAL = 1, 2, 12, 22  # where these words begin


def make_reviews(count, rng):
    """Returns reviews with three opinions each. Every fifth opinion is a "not" and its opposite."""
    labels = rng.integers(0, 2, count)
    words = rng.integers(NEUTRAL, vocabulary, [count, length])
    for place in (rng.permuted(np.arange(0, length, 2) + np.zeros([count, 1], int), axis=1)).T[:3]:
        negated = rng.random(count) < 0.2
        opinions = np.where(labels ^ negated, GOOD, BAD) + rng.integers(0, 10, count)
        rows = np.arange(count)
        words[rows, place] = np.where(negated, NOT, words[rows, place])
        words[rows, place + 1] = opinions
    return words, labels


x_train, y_train = make_reviews(2048, np.random.default_rng(1))
x_val, y_val = make_reviews(512, np.random.default_rng(2))


class TransformerBlock(layers.Layer):
    def __init__(self, width, heads, rate=0.1):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.dense = keras.Sequential([layers.Dense(64, activation="relu"), layers.Dense(width)])
        self.norm_1, self.norm_2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.dropout = layers.Dropout(rate)

    def call(self, x):
        x = self.norm_1(x + self.dropout(self.attention(x, x)))
        return self.norm_2(x + self.dropout(self.dense(x)))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, length, vocabulary, width):
        super().__init__()
        self.tokens = layers.Embedding(vocabulary, width)
        self.positions = layers.Embedding(length, width)

    def call(self, x):
        return self.tokens(x) + self.positions(ops.arange(ops.shape(x)[-1]))


def make_model(width=32, heads=2):
    inputs = keras.Input([length])
    x = TokenAndPositionEmbedding(length, vocabulary, width)(inputs)
    x = TransformerBlock(width, heads)(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dropout(0.1)(x)
    return keras.Model(inputs, layers.Dense(2, activation="softmax")(x))


loss = "sparse_categorical_crossentropy"
model = make_model()
model.compile("adam", loss, metrics=["accuracy"])
model.fit(
    x_train,
    y_train,
    batch_size=32,
    epochs=2,
    validation_data=(x_val, y_val),
    verbose=2,
)
print(f"held-out accuracy: {model.evaluate(x_val, y_val, verbose=0)[1]:.4f}")
