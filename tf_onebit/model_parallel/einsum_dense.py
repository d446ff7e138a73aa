"""EinsumDense layers, divided along an axis of their output."""

import re

from keras import ops

from tf_onebit.model_parallel.split_layer import LayerPlan, SplitLayer


def plan(layer, members):
    """Returns the `LayerPlan` of an `EinsumDense`, or why it cannot be divided: string.

    The axis is the first one of the output that only the kernel has, and that the members divide.
    """
    inputs, kernel, output = parts_of(layer.equation)
    after = output.rpartition("...")[2]  # axes before it are counted from the left
    candidates = [label for label in after if label in kernel and label not in inputs]
    for label in candidates:
        axis = kernel.index(label)
        if layer.kernel.shape[axis] % members:
            continue
        weights = [(layer.kernel, axis)]
        if layer.bias is not None:
            if label not in layer.bias_axes:
                continue
            # The bias has the last axes of the output.
            weights.append((layer.bias, len(layer.bias.shape) + output.index(label) - len(output)))
        attributes = {"kernel_axis": axis, "output_axis": output.index(label) - len(output)}
        return LayerPlan(SplitEinsumDense, weights, attributes)
    return (
        f"{members} members divide no axis of its output that only the kernel has. Its equation "
        f"is {layer.equation!r}, and its kernel has the shape {tuple(layer.kernel.shape)}"
    )


def parts_of(equation):
    """Returns the axes of inputs, kernel and output in the equation of an `EinsumDense`."""
    return re.split(",|->", equation.replace(" ", ""))


class SplitEinsumDense(SplitLayer):
    """Mixin for `keras.layers.EinsumDense`: each member computes a part along one axis.

    Attributes:
        kernel_axis: axis along which the kernel is divided.
        output_axis: axis along which the output is divided, counted from the last.
    """

    @property
    def kernel(self):
        return self.whole_if_read(super().kernel, self.kernel_axis)

    def call(self, inputs, training=None):
        part = ops.einsum(self.equation, inputs, super().kernel)
        if self.bias is not None:
            part = ops.add(part, self.bias)
        return self.activated(part, len(part.shape) + self.output_axis, self.activation)
