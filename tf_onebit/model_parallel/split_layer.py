"""SplitLayer: a Keras layer whose weights its group holds in parts."""

from typing import NamedTuple

import keras
from keras import ops

from tf_onebit._framework_internals.keras_variables import is_in_call
from tf_onebit.model_parallel.activations import gather

# Activations of each value alone, which divide over the members. All others follow the gather.
_OF_EACH_VALUE = frozenset(
    getattr(keras.activations, name)
    for name in (
        *("celu", "elu", "exponential", "gelu", "hard_sigmoid", "hard_silu", "leaky_relu"),
        *("linear", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softplus", "softsign"),
        "tanh",
    )
)


def is_of_each_value(activation):
    """Tells whether an activation function is known to treat each value alone."""
    return activation in _OF_EACH_VALUE


class LayerPlan(NamedTuple):
    """Plan for a layer that is to be split.

    Attributes:
        mixin: subclass of `SplitLayer` for the layer.
        weights: list of pairs (variable, axis along which it is divided).
        attributes: dictionary of attributes of the layer's new class.
    """

    mixin: type
    weights: list
    attributes: dict = {}


class Split:
    """Mixin for Keras models and layers that are split.

    Attributes:
        plain_class: class without this mixin.
    """

    plain_class: type

    @classmethod
    def from_config(cls, *args, **kwargs):
        # A clone has weights of its own, which are whole.
        return cls.plain_class.from_config(*args, **kwargs)


class SplitLayer(Split):
    """Mixin for Keras layers whose weights are parts.

    Inputs and outputs are whole, and the same on all members, unless a mixin says otherwise.

    Attributes:
        group: `Group`.
        scope: prefix of the names of the layer's collectives.
    """

    def save_own_variables(self, store):
        # The split model joins the parts before it saves them, and this mixin is gone then.
        raise ValueError(
            "A layer of a split model is saved by that model. Received: another model that "
            f"contains the layer {self.name!r}, in parts. Split the outer model, or call "
            "tf_onebit.model_parallel.merge before you save it."
        )

    def whole_if_read(self, part, axis):
        """Returns the part of a weight, or the whole weight for the layers that read it.

        A layer that uses a weight of another one, such as tied embeddings, needs all of it.
        """
        if not is_in_call():
            return part
        return gather(ops.convert_to_tensor(part), axis, self.group, f"{self.scope}/weight")

    def activated(self, part, axis, activation):
        """Joins the parts of an output, and applies an activation before or after that."""
        before = is_of_each_value(activation)
        if before:
            part = activation(part)
        whole = gather(part, axis, self.group, self.scope)
        return whole if before or activation is None else activation(whole)
