"""Pairs of Dense layers, of which the second takes the parts that the first makes (Megatron).

The first layer of a pair is divided by columns, and the second one by rows. The members add up the
outputs of the second, and do not gather those of the first:

    y = sum over members of f(x W_m + b_m) V_m + c        W = [W_1, W_2, ...], V = [V_1; V_2; ...]

Source: Shoeybi et al. 2019, Megatron-LM, section 3.
"""

import contextlib

import keras
from keras import ops

from tf_onebit._framework_internals.keras_models import users_of_outputs
from tf_onebit.model_parallel.activations import add_up
from tf_onebit.model_parallel.dense import SplitDense
from tf_onebit.model_parallel.split_layer import LayerPlan, Split, is_of_each_value

# Layers without weights that treat each value alone.
_OF_EACH_VALUE = (keras.layers.ReLU, keras.layers.LeakyReLU, keras.layers.ELU)

# Models that are being called, outermost first.
_being_called: list = []


def with_pairs(planned, layers):
    """Joins plans of two `Dense` layers to plans of a pair, where members then send less.

    Args:
        planned: what `plans_of` would return without pairs.
        layers: list of all layers of the model.
    """
    plans = {id(layer): plan for layer, plan in planned}
    owners = []
    for model in layers:
        users, found = users_of_outputs(model), []
        for first, plan in planned:
            second = _second_of(first, users) if _is_single(plans[id(first)]) else None
            # A sum of y values costs twice as much as a gather of y values.
            if _is_single(plans.get(id(second))) and second.units < first.units:
                plans[id(first)] = LayerPlan(FirstDense, plan.weights, {"owner": model})
                weights = [(second.kernel, 0)]
                plans[id(second)] = LayerPlan(SecondDense, weights, {"owner": model})
                found.append(first)
        if found:
            owners.append((model, LayerPlan(OwnerOfPairs, [])))
    return [*((layer, plans[id(layer)]) for layer, _ in planned), *owners]


def _is_single(plan):
    return isinstance(plan, LayerPlan) and plan.mixin is SplitDense


def _second_of(first, users):
    """Returns the only `Dense` that uses the output of another, value by value, or None."""
    if first.activity_regularizer is not None or not _divides(first):
        return None
    layer = first
    while True:
        using = users.get(id(layer), [])
        if len(using) != 1 or using[0] is None or id(using[0]) not in users:
            return None
        (layer,) = using
        if type(layer) is keras.layers.Dense:
            return layer if layer.kernel_constraint is None else None
        if (
            not (isinstance(layer, keras.layers.Activation) and _divides(layer))
            and type(layer) not in _OF_EACH_VALUE
        ):
            return None


def _divides(layer):
    return layer.activation is None or is_of_each_value(layer.activation)


class OwnerOfPairs(Split):
    """Mixin for models in whose graph there are pairs."""

    def call(self, *args, **kwargs):
        with _called(self):
            return super().call(*args, **kwargs)


@contextlib.contextmanager
def _called(model):
    _being_called.append(model)
    try:
        yield
    finally:
        _being_called.pop()


class _OfPair:
    """Mixin for a layer of a pair.

    Another model that has only one of both layers gets and gives whole tensors.

    Attributes:
        owner: model in whose graph the pair is.
    """

    @property
    def is_in_pair(self):
        return bool(_being_called) and _being_called[-1] is self.owner


class FirstDense(_OfPair, SplitDense):
    """Mixin for the first `Dense` of a pair."""

    def activated(self, part, axis, activation):
        if not self.is_in_pair:
            return super().activated(part, axis, activation)
        return part if activation is None else activation(part)


class SecondDense(_OfPair, SplitDense):
    """Mixin for the second `Dense` of a pair, which has rows of the kernel."""

    @property
    def input_spec(self):
        return None  # the last dimension is that of a part, or of the whole

    @property
    def kernel(self):
        return self.whole_if_read(super(SplitDense, self).kernel, 0)

    def call(self, inputs, training=None):
        if not self.is_in_pair:
            inputs = ops.split(inputs, self.group.members, axis=-1)[self.group.member]
        product = ops.matmul(inputs, super(SplitDense, self).kernel)
        output = add_up(product, self.group, self.scope)
        if self.bias is not None:
            output = ops.add(output, self.bias)
        return output if self.activation is None else self.activation(output)
