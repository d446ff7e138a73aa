"""Convolutions, whose kernels are divided by their filters."""

from keras import ops

from tf_onebit.model_parallel.split_layer import LayerPlan, SplitLayer


def plan(layer, members):
    """Returns the `LayerPlan` of a `Conv1D`, `Conv2D` or `Conv3D`, or why it has none: string."""
    if layer.groups > 1:
        return f"it convolves {layer.groups} groups of channels separately"
    if layer.filters % members:
        return f"{members} members do not divide its {layer.filters} filters"
    weights = [(layer.kernel, layer.rank + 1)]
    if layer.bias is not None:
        weights.append((layer.bias, 0))
    return LayerPlan(SplitConvolution, weights)


class SplitConvolution(SplitLayer):
    """Mixin for convolutions: each member computes some of the filters."""

    @property
    def kernel(self):
        return self.whole_if_read(super().kernel, self.rank + 1)

    def call(self, inputs):
        channels = 1 if self.data_format == "channels_first" else self.rank + 1
        padding = self.padding
        if padding == "causal":  # in one dimension
            inputs = self._padded(inputs, channels)
            padding = "valid"
        part = ops.conv(
            inputs,
            super().kernel,
            strides=list(self.strides),
            padding=padding,
            dilation_rate=self.dilation_rate,
            data_format=self.data_format,
        )
        if self.bias is not None:
            shape = [1] * (self.rank + 2)
            shape[channels] = -1
            part = ops.add(part, ops.reshape(self.bias, shape))
        return self.activated(part, channels, self.activation)

    def _padded(self, inputs, channels):
        widths = [[0, 0], [0, 0], [0, 0]]
        widths[3 - channels][0] = self.dilation_rate[0] * (self.kernel_size[0] - 1)
        return ops.pad(inputs, widths)
