"""Attention, divided by heads: each member computes some of them, and the outputs are added up."""

import inspect

from keras import ops

from tf_onebit._framework_internals.keras_models import layers_of
from tf_onebit.model_parallel.activations import add_up, gather
from tf_onebit.model_parallel.einsum_dense import parts_of
from tf_onebit.model_parallel.split_layer import LayerPlan, SplitLayer


def plan(layer, members):
    """Returns the `LayerPlan` of a `MultiHeadAttention`, or None if heads cannot be divided.

    Then its inner layers can be split one by one, as other `EinsumDense` layers.
    """
    # Members would drop the same scores of different heads, and penalize parts.
    penalized = any(inner.activity_regularizer for inner in inner_layers(layer))
    if layer.num_heads % members or layer.dropout or penalized:
        return None
    return LayerPlan(SplitAttention, [])


def inner_plan(layer, members):
    """Returns the `LayerPlan` of an `EinsumDense` within a `MultiHeadAttention`.

    Those of queries, keys and values make heads. The one of the output takes them.
    """
    inputs, kernel, output = parts_of(layer.equation)
    made = [label for label in output if label in kernel and label not in inputs]
    if layer.name != "attention_output":
        heads = made[0]
        weights = [(layer.kernel, kernel.index(heads))]
        if layer.bias is not None:
            weights.append((layer.bias, 0))
        return LayerPlan(HeadsEinsumDense, weights, {"kernel_axis": kernel.index(heads)})
    heads = next(label for label in kernel if label not in made)
    axis = kernel.index(heads)
    return LayerPlan(SumEinsumDense, [(layer.kernel, axis)], {"kernel_axis": axis})


def inner_layers(layer):
    """Returns the layers with weights within a `MultiHeadAttention`: list."""
    return [inner for inner in layers_of(layer)[1:] if inner.weights]


class SplitAttention(SplitLayer):
    """Mixin for `keras.layers.MultiHeadAttention`: each member computes some of the heads."""

    def call(self, *args, **kwargs):
        result = super().call(*args, **kwargs)
        given = inspect.signature(super().call).bind(*args, **kwargs).arguments
        if not given.get("return_attention_scores"):
            return result
        output, scores = result
        heads = len(scores.shape) - 2 * len(self.attention_axes) - 1
        return output, gather(scores, heads, self.group, f"{self.scope}/scores")


class _InnerEinsumDense(SplitLayer):
    """Mixin for an `EinsumDense` whose output or input is a part.

    Attributes:
        kernel_axis: axis along which the kernel is divided.
    """

    @property
    def kernel(self):
        return self.whole_if_read(super().kernel, self.kernel_axis)

    def part(self, inputs):
        return ops.einsum(self.equation, inputs, super().kernel)


class HeadsEinsumDense(_InnerEinsumDense):
    """Mixin for an `EinsumDense` that makes heads: the output is a part."""

    def call(self, inputs, training=None):
        part = self.part(inputs)
        if self.bias is not None:
            part = ops.add(part, self.bias)
        return part if self.activation is None else self.activation(part)


class SumEinsumDense(_InnerEinsumDense):
    """Mixin for an `EinsumDense` that takes heads: the input is a part, the output a whole sum."""

    def call(self, inputs, training=None):
        output = add_up(self.part(inputs), self.group, self.scope)
        if self.bias is not None:
            output = ops.add(output, self.bias)
        return output if self.activation is None else self.activation(output)
