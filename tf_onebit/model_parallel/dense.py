"""Dense layers, whose kernels are divided by their columns."""

from keras import ops

from tf_onebit.model_parallel.split_layer import LayerPlan, SplitLayer


def plan(layer, members):
    """Returns the `LayerPlan` of a `Dense`, or a string that says why it cannot be divided."""
    if layer.units % members:
        return f"{members} members do not divide its {layer.units} units"
    weights = [(layer.kernel, 1)]
    if layer.bias is not None:
        weights.append((layer.bias, 0))
    return LayerPlan(SplitDense, weights)


class SplitDense(SplitLayer):
    """Mixin for `keras.layers.Dense`: each member computes some of the units."""

    @property
    def kernel(self):
        return self.whole_if_read(super().kernel, 1)

    def call(self, inputs, training=None):
        part = ops.matmul(inputs, super().kernel)
        if self.bias is not None:
            part = ops.add(part, self.bias)
        return self.activated(part, -1, self.activation)
