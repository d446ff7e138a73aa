"""Embeddings, divided by columns; and reversible embeddings, divided by rows."""

from keras import ops

from tf_onebit.model_parallel.activations import add_up
from tf_onebit.model_parallel.split_layer import LayerPlan, SplitLayer


def plan(layer, members):
    """Returns the `LayerPlan` of an `Embedding`, or a string that says why it has none."""
    if layer.output_dim % members:
        return f"{members} members do not divide its {layer.output_dim} columns"
    return LayerPlan(SplitEmbedding, [(layer.embeddings, 1)])


def plan_reversible(layer, members):
    """Returns the `LayerPlan` of a `ReversibleEmbedding`, or why it has none: string."""
    if not layer.tie_weights:
        return "it has a second matrix for the reverse direction"
    if layer.mask_zero:
        return "it makes a mask"
    if layer.input_dim % members:
        return (
            f"{members} members do not divide its {layer.input_dim} rows. A vocabulary can be "
            "padded"
        )
    return LayerPlan(SplitReversibleEmbedding, [(layer.embeddings, 0)])


class SplitEmbedding(SplitLayer):
    """Mixin for `keras.layers.Embedding`: each member looks up some of the columns."""

    @property
    def embeddings(self):
        return self.whole_if_read(super().embeddings, 1)

    def call(self, inputs):
        part = ops.take(super().embeddings, _integers(inputs), axis=0)
        return self.activated(ops.cast(part, self.compute_dtype), -1, None)


class SplitReversibleEmbedding(SplitLayer):
    """Mixin for `keras.layers.ReversibleEmbedding`: each member has some rows of the vocabulary.

    The outputs of the reverse direction, one for each row, are by far the largest. So they are
    gathered once, as those of a `Dense`. Columns would have to be added up.
    """

    @property
    def embeddings(self):
        return self.whole_if_read(super().embeddings, 0)

    def call(self, inputs, reverse=False):
        return self._logits(inputs) if reverse else self._found(_integers(inputs))

    def _found(self, inputs):
        rows = self.input_dim // self.group.members
        places = inputs - self.group.member * rows
        is_mine = ops.logical_and(places >= 0, places < rows)
        found = ops.take(super().embeddings, ops.where(is_mine, places, 0), axis=0)
        # One member has found a row, and the others add zeros.
        found = ops.cast(found, self.compute_dtype)
        return add_up(
            found * ops.cast(is_mine, found.dtype)[..., None], self.group, f"{self.scope}/rows"
        )

    def _logits(self, inputs):
        kernel = ops.transpose(super().embeddings)
        if self.reverse_dtype is not None:
            inputs = ops.cast(inputs, self.reverse_dtype)
            kernel = ops.cast(kernel, self.reverse_dtype)
        part = ops.matmul(inputs, kernel)
        if self.logit_soft_cap is not None:
            part = ops.tanh(part / self.logit_soft_cap) * self.logit_soft_cap
        return self.activated(part, -1, None)


def _integers(inputs):
    return inputs if inputs.dtype in ("int32", "int64") else ops.cast(inputs, "int32")
