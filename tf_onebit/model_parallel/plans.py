"""The classes of layers that can be split, and the reasons why a layer is left whole."""

import math

import keras

from tf_onebit._framework_internals.keras_models import layers_of, own_variables_of
from tf_onebit.model_parallel import attention, convolution, dense, einsum_dense, embedding
from tf_onebit.model_parallel.pairs import with_pairs

# Functions from a layer and the number of members to a `LayerPlan`, or to a reason against it.
_PLANS = {
    keras.layers.Dense: dense.plan,
    keras.layers.EinsumDense: einsum_dense.plan,
    keras.layers.Embedding: embedding.plan,
    keras.layers.ReversibleEmbedding: embedding.plan_reversible,
    keras.layers.Conv1D: convolution.plan,
    keras.layers.Conv2D: convolution.plan,
    keras.layers.Conv3D: convolution.plan,
}
# These call their inner layers in loops, or change the weights of inner layers.
_WRAPPERS = (keras.layers.Wrapper, keras.layers.RNN)
# Penalties that are sums over all weights.
_ADDITIVE = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
_OF_NORMS = (
    keras.constraints.MaxNorm,
    keras.constraints.MinMaxNorm,
    keras.constraints.UnitNorm,
)


def plans_of(layers, members, min_size):
    """Plans how to split the layers of a model.

    Args:
        layers: list of all layers of a model, outer ones and inner ones.
        members: number of members of a group.
        min_size: number of weights from which on a layer is split.

    Returns:
        List of pairs (layer, plan). A plan is a `LayerPlan`, or a string that says why the layer
        is left whole. Layers without weights are in it only if they contain others with plans.
    """
    in_wrappers = {
        id(inner): outer
        for outer in layers
        if isinstance(outer, _WRAPPERS)
        for inner in layers_of(outer)[1:]
    }
    owners = {}
    for layer in layers:
        for variable in own_variables_of(layer):
            owners.setdefault(id(variable), []).append(layer)
    planned = []
    for layer in layers:
        variables = own_variables_of(layer)
        if not variables:
            continue
        shared = next((owners[id(v)] for v in variables if len(owners[id(v)]) > 1), None)
        if id(layer) in in_wrappers:
            plan = f"it belongs to a {type(in_wrappers[id(layer)]).__name__}"
        elif shared is not None:
            plan = (
                f"it shares a weight with {' and '.join(x.name for x in shared if x is not layer)}"
            )
        else:
            plan = _plan(layer, variables, members, min_size)
        planned.append((layer, plan))
    return with_pairs(_with_attention(planned, layers, members, min_size), layers)


def _with_attention(planned, layers, members, min_size):
    """Plans to divide attention by heads, where all of its layers can be split."""
    plans = {id(layer): plan for layer, plan in planned}
    outer = []
    for layer in layers:
        if type(layer) is not keras.layers.MultiHeadAttention:
            continue
        plan, inner = attention.plan(layer, members), attention.inner_layers(layer)
        if plan is None or any(isinstance(plans[id(one)], str) for one in inner):
            continue
        of_heads = {
            id(one): _plan(one, own_variables_of(one), members, min_size, attention.inner_plan)
            for one in inner
        }
        if not any(isinstance(one, str) for one in of_heads.values()):
            plans |= of_heads
            outer.append((layer, plan))
    return [*((layer, plans[id(layer)]) for layer, _ in planned), *outer]


def _plan(layer, variables, members, min_size, make=None):
    make = make or _PLANS.get(type(layer))
    size = sum(math.prod(variable.shape) for variable in variables)
    if make is None:
        return f"{type(layer).__name__} is not among the classes that can be split"
    if layer.quantization_mode is not None:
        return "it is quantized"
    if layer.lora_enabled:
        return "it has LoRA weights"
    if size < min_size:
        return f"it has {size} weights, fewer than min_size={min_size}"
    plan = make(layer, members)
    if isinstance(plan, str):
        return plan
    for variable, axis in plan.weights:
        if variable.regularizer is not None and type(variable.regularizer) not in _ADDITIVE:
            return f"its {type(variable.regularizer).__name__} may be no sum over weights"
        if variable.constraint is not None and not _divides(variable, axis):
            return f"its {type(variable.constraint).__name__} concerns several parts"
    return plan


def _divides(variable, axis):
    """Tells whether a constraint of a variable can be met by each part along an axis."""
    constraint = variable.constraint
    if type(constraint) is keras.constraints.NonNeg:
        return True
    if type(constraint) not in _OF_NORMS:
        return False
    axes = constraint.axis if isinstance(constraint.axis, (list, tuple)) else [constraint.axis]
    return axis not in [a % len(variable.shape) for a in axes]
