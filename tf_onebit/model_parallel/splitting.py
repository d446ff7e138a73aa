"""Functions that split a Keras model among the members of a group, and join it again."""

import warnings

import keras

from tf_onebit._framework_internals.keras_models import layers_of, strategy_of
from tf_onebit._shares import Group
from tf_onebit._training.model_optimizers import inner_optimizer, is_built, optimizers_of
from tf_onebit._validation import is_whole
from tf_onebit.exchanges.handshake import enumerated, handshake
from tf_onebit.model_parallel.division import Division
from tf_onebit.model_parallel.plans import plans_of
from tf_onebit.model_parallel.split_model import SplitModel, SplitModelOfProcesses

_REASONS_SHOWN = 3


def split(model: keras.Model, groups: Group, min_size: int = 2**16) -> keras.Model:
    """Splits the weights of a Keras model among the members of a group.

    Each member holds an equal part of the weights of each large layer, their gradients, and the
    optimizer's state for them. It computes its part of the layer's output. The members then gather
    the whole output (Seide et al. 2014b, section 3.1)::

        y = [f(x W_1 + b_1), f(x W_2 + b_2), ...]        W = [W_1, W_2, ...]

    The model itself is changed, and stays the same object. `fit`, `evaluate`, `predict`, `save`
    and `load_weights` work as before. Files hold whole weights.

    If processes are the members, all processes of the job call these methods together, the members
    of a group with the same data. The first process writes files. If devices are the members, the
    model is made in the scope of their strategy, which passes each batch to all members of a group.

    Weights, and the state of an optimizer that is built, are those of rank 0. Random generators of
    layers, as in Dropout, are those of the first member of each group.

    Layers of these classes are split, at any depth: `Dense`, `EinsumDense`, `MultiHeadAttention`,
    `Embedding`, `Conv1D`, `Conv2D` and `Conv3D`; and `ReversibleEmbedding` with tied weights.
    Where members send less, they add up the outputs of the second of two layers, and gather none
    (Shoeybi et al. 2019). Layers of other classes are left whole, each member with a copy. So are
    layers that cannot be divided evenly. `describe` says why. If no layer can be split, worker 0
    warns.

    Args:
        model: Keras model that is built, the same on all processes. Models of which it is a part
            may be trained, too.
        groups: `Groups`, or the `model_groups` of a strategy that was made with `model_parallel`.
        min_size: number of weights from which on a layer is split. The activations of smaller ones
            would cost more than their weights.

    Returns:
        `model`.

    Raises:
        ValueError: for a model that is not built, is split already, or was made in the scope of
            another strategy than that of `groups`. For other arguments. On all processes, if their
            models or arguments differ.

    Example:
        >>> import tf_onebit.horovod as hvd
        >>> from tf_onebit.model_parallel import Groups
        >>> hvd.init()
        >>> layer = keras.layers.Dense(256, name="hidden")
        >>> model = split(keras.Sequential([keras.Input((256,)), layer]), Groups(1))
        >>> print(describe(model))
        hidden: Dense, 65792 weights, of which this process holds 65792: a group has one member
    """
    _check(model, groups, min_size)
    plans = plans_of(layers_of(model), groups.members, min_size)
    if groups.members == 1:
        plans = [(layer, "a group has one member") for layer, _ in plans]
    optimizers = [o for o in map(inner_optimizer, optimizers_of(model)) if o.built]
    weights = [*model.weights, *(v for optimizer in optimizers for v in optimizer.variables)]
    description = _description(groups, min_size, plans, weights)
    groups.job.run([handshake("model_parallel.split", description) for _ in groups.job.ranks])
    reasons = [f"{layer.name}: {plan}" for layer, plan in plans if isinstance(plan, str)]
    if groups.members > 1 and len(reasons) == len(plans) and 0 in groups.job.ranks:
        warnings.warn(_nothing_split(model, groups.members, reasons), stacklevel=2)
    known = set(map(id, weights))
    groups.share_values(weights, [v for v in model.variables if id(v) not in known])
    division = Division(model, groups, plans)
    division.begin()
    division.mix_in(SplitModelOfProcesses if groups.strategy is None else SplitModel)
    return model


def merge(model: keras.Model) -> keras.Model:
    """Makes a split model a plain Keras model again, which holds all weights.

    The model itself is changed, on all processes together. Compile it again before it is
    trained further: its optimizer would exchange with the peers only. A strategy with
    `model_parallel` trains no merged models.

    Args:
        model: what `split` returned.

    Returns:
        `model`.

    Raises:
        ValueError: for other models.

    Example:
        >>> import tf_onebit.horovod as hvd
        >>> from tf_onebit.model_parallel import Groups
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(256)])
        >>> model = merge(split(model, Groups(1)))
        >>> type(model).__mro__[1].__name__
        'Model'
    """
    division = _division_of(model)
    with division.groups.together("model_parallel.merge"):
        division.end()
    return model


def describe(model: keras.Model) -> str:
    """Describes how a model is split: one line for each layer with weights.

    Args:
        model: what `split` returned.

    Returns:
        Text with the layers' names and classes, their numbers of weights, and how many of them
        this process, or each device, holds. If it holds all of a layer, the text says why.

    Raises:
        ValueError: for other models.

    Example:
        >>> import tf_onebit.horovod as hvd
        >>> from tf_onebit.model_parallel import Groups
        >>> hvd.init()
        >>> layer = keras.layers.BatchNormalization(name="norm")
        >>> model = split(keras.Sequential([keras.Input((8,)), layer]), Groups(1))
        >>> print(describe(model))
        norm: BatchNormalization, 32 weights, of which this process holds 32: a group has one member
    """
    return "\n".join(_division_of(model).lines())


def _check(model, groups, min_size):
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"split takes a keras.Model. Received: model={model!r} of type {type(model).__name__}."
        )
    if not isinstance(groups, Group):
        raise ValueError(
            "groups must be a tf_onebit.model_parallel.Groups, or the model_groups of a strategy. "
            f"Received: groups={groups!r} of type {type(groups).__name__}. Pass for example "
            "Groups(2)."
        )
    if not is_whole(min_size, 0):
        raise ValueError(
            "min_size must be a whole number of weights, at least 0. Received: "
            f"min_size={min_size!r}. Use 0 to split every layer that can be split."
        )
    if isinstance(model, SplitModel):
        raise ValueError(f"The model {model.name!r} is split already. Call split once.")
    if strategy_of(model) is not groups.strategy:
        own = strategy_of(model)
        where = "without a strategy" if own is None else f"in the scope of a {type(own).__name__}"
        raise ValueError(
            "A strategy's model_groups split models that are made in its scope, and Groups of "
            f"processes split others. Received: the model {model.name!r}, made {where}, and "
            f"groups={groups!r}. Make the model elsewhere, or pass the model_groups of its "
            "strategy."
        )
    if not is_built(model):
        raise ValueError(
            f"split needs a model that has its weights. Received: {model.name!r}, which is not "
            "built. Call it on a batch first, or give it a keras.Input."
        )


def _nothing_split(model, members, reasons):
    """Returns a warning about a model of which every layer is left whole, for these reasons."""
    shown = "; ".join(reasons[:_REASONS_SHOWN])
    more = len(reasons) - _REASONS_SHOWN
    return (
        f"No layer of the model {model.name!r} is split. Each of the {members} members of a group "
        "holds all of it, and all do the same work. Received layers that are left whole: "
        f"{shown}{f'; and {more} more' if more > 0 else ''}. Choose numbers of units that the "
        "members divide, or a smaller min_size. Otherwise train without groups: then "
        f"{members} times as many workers share the data."
    )


def _division_of(model):
    if not isinstance(model, SplitModel):
        raise ValueError(
            "The model must be one that tf_onebit.model_parallel.split has returned. Received: "
            f"{model!r} of type {type(model).__name__}."
        )
    return model.division


def _description(groups, min_size, plans, weights):
    layers = [
        f"{type(layer).__name__}, {plan if isinstance(plan, str) else 'split'}"
        for layer, plan in plans
    ]
    shapes = [f"{tuple(v.shape)} {v.dtype}" for v in weights]
    return [
        ("members of a group", str(groups.members)),
        ("min_size", str(min_size)),
        *enumerated("number of layers", "layer {}", layers),
        *enumerated("number of variables", "variable {}", shapes),
    ]
