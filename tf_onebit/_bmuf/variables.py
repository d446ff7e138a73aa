"""Variables of a Keras model and its optimizers, by their roles in block momentum."""

import dataclasses

import keras

from tf_onebit import optimizers
from tf_onebit._bmuf.optimizer_state import BlockOptimizer
from tf_onebit._framework_internals.keras_models import statistics_of
from tf_onebit._framework_internals.keras_optimizers import (
    AMSGRAD_MOMENTS,
    MOMENTS,
    accumulated_gradients_of,
    batch_counter_of,
    learning_rate_setting_of,
    trained_variables_of,
)
from tf_onebit._framework_internals.tf_variables import SomeCopies, copies_of
from tf_onebit._training.model_optimizers import inner_optimizer, optimizers_of
from tf_onebit._training.optimizer import settings
from tf_onebit.exchanges.handshake import enumerated

CORRECTIONS = ("bmuf_adam", "local", "average", "reset")

# State of optimizers that stays valid when the model moves. By attribute: whether it is of squares.
_SLOTS = {
    **MOMENTS,
    optimizers.NormalizedAdaGrad: {"_averages": True, "_velocities": False},
}


@dataclasses.dataclass
class BlockVariables:
    """One worker's variables that a block changes.

    Attributes:
        weights: list of variables that are trained.
        statistics: list of variables of the model that are averaged, such as BatchNormalization's.
        own: list of variables that are equal at first, and that workers do not average.
        optimizers: list of `BlockOptimizer`.
    """

    weights: list
    statistics: list
    own: list
    optimizers: list

    def of_members(self, members):
        """Returns the variables of each member of a group of devices: list of `BlockVariables`.

        Args:
            members: number of members that this process has.
        """
        if members == 1:
            return [self]
        return [self._with(slice(member, None, members)) for member in range(members)]

    def _with(self, places):
        """Returns the variables with some of the devices' copies."""

        def some(variables):
            return [SomeCopies(variable, copies_of(variable)[places]) for variable in variables]

        optimizers = [optimizer.with_variables(some) for optimizer in self.optimizers]
        return BlockVariables(some(self.weights), some(self.statistics), some(self.own), optimizers)

    @property
    def trained_by(self):
        """List of the Keras optimizers."""
        return [optimizer.optimizer for optimizer in self.optimizers]

    @property
    def moments(self):
        """List of `tf_onebit.optimizers.Moment`, of all optimizers."""
        return [moment for optimizer in self.optimizers for moment in optimizer.moments]

    @property
    def averaged(self):
        """List of variables that are averaged as they are."""
        return [*self.statistics, *(v for o in self.optimizers for v in o.averaged)]

    @property
    def trained(self):
        """List of the weights and the optimizers' moments."""
        moments = [variable for moment in self.moments for variable in moment.variables]
        return [*self.weights, *moments]

    @property
    def changed(self):
        """List of all variables that a block changes."""
        return [*self.trained, *self.averaged]

    @property
    def kept(self):
        """List of variables that workers do not average."""
        return [*self.own, *(v for o in self.optimizers for v in o.own)]

    @property
    def batches_per_step(self):
        return max(optimizer.batches_per_step for optimizer in self.optimizers)

    def description(self):
        """Returns what workers must agree on: list of (what, value) pairs of strings."""
        return [
            *enumerated(
                "number of trained weights",
                "weight {}",
                [f"{tuple(v.shape)} {v.dtype}" for v in self.weights],
            ),
            ("number of optimizers", str(len(self.optimizers))),
            *(pair for part in self.optimizers for pair in settings(part.optimizer)),
            *enumerated(
                "number of the optimizers' moments",
                "moment {}",
                [f"of {len(m.variables)} weights, decay {m.decay}" for m in self.moments],
            ),
            *enumerated(
                "number of averaged variables",
                "averaged variable {}",
                [f"{tuple(v.shape)} {v.dtype}" for v in self.averaged],
            ),
        ]


def block_variables(
    model,
    moment_correction,
    looks_ahead=True,
    compresses=False,
    optimizers=None,
    weights_alone=False,
):
    """Sorts the variables of a model and its optimizers by their roles.

    Builds the optimizers that are not built.

    Args:
        model: Keras model, compiled and built.
        moment_correction: one of `CORRECTIONS`.
        looks_ahead: whether there may be a block momentum.
        compresses: whether the changes of a block are exchanged in less than full precision. Then
            moments that would have to be corrected stay with their workers.
        optimizers: list of the optimizers that train the model. Default: all that it has.
        weights_alone: whether all state of optimizers stays with its worker.

    Returns:
        `BlockVariables`.

    Raises:
        ValueError: if weights have several types, or if an optimizer has state of unknown meaning.
    """
    outer = optimizers or optimizers_of(model)
    for optimizer in outer:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
    inner = list(map(inner_optimizer, outer))
    # Weights without an optimizer may change, too: for example a slowly following copy.
    weights = [v for optimizer in inner for v in trained_variables_of(optimizer)]
    weights = _unique([*weights, *model.trainable_variables])
    dtypes = sorted({weight.dtype for weight in weights})
    if len(dtypes) > 1:
        raise ValueError(
            "All trained weights must have the same type with BlockMomentum. Received: a model "
            f"with {dtypes}."
        )
    statistics = _statistics(model)
    sorted_by_optimizer = [
        _sorted(optimizer, weights, moment_correction, looks_ahead, compresses, weights_alone)
        for optimizer in inner
    ]
    # The rest are variables of layers that are not trained, and loss scales.
    rest = [v for v in model.variables if _is_float(v)] + [v for o in outer for v in o.variables]
    of_optimizers = [v for optimizer in inner for v in optimizer.variables]
    rest = _without(rest, [*weights, *statistics, *of_optimizers])
    return BlockVariables(weights, statistics, rest, sorted_by_optimizer)


def _sorted(optimizer, weights, moment_correction, looks_ahead, compresses, weights_alone):
    """Returns the `BlockOptimizer` of an optimizer that is built.

    Args:
        weights: list of all weights that a block changes.
    """
    moments, reset, keeps_moments = [], None, False
    kept = _counters(optimizer)
    resets, corrects = moment_correction == "reset", moment_correction == "bmuf_adam"
    if resets or (corrects and looks_ahead and isinstance(optimizer, keras.optimizers.SGD)):
        zeroed, begin_anew = _reset_of(optimizer, weights)
        kept += zeroed

        def reset(places, block_momentum):
            # SGD's own momentum would repeat what block momentum does.
            if resets or block_momentum:
                begin_anew(places)

    elif (
        weights_alone
        or moment_correction == "local"
        or (corrects and compresses and hasattr(optimizer, "moments"))
    ):
        keeps_moments = True
        kept = _without(optimizer.variables, _accumulators(optimizer))
    elif hasattr(optimizer, "moments"):
        moments = _own_moments(optimizer)
    else:
        slots = _slots_of(optimizer)
        if slots is None and corrects:
            raise ValueError(_unknown(optimizer))
        moments = _slots(optimizer, slots or {})
    known = [*_variables_of(moments), *kept, *_accumulators(optimizer)]
    averaged = _without(optimizer.variables, known)
    _require_known(optimizer, averaged)
    return BlockOptimizer(optimizer, moments, averaged, kept, keeps_moments, reset)


def corrects_moments_of(optimizer):
    """Tells whether an optimizer's moments can follow a model that block momentum has moved."""
    return hasattr(type(optimizer), "moments") or _slots_of(optimizer) is not None


def _slots_of(optimizer):
    return next((s for cls, s in _SLOTS.items() if isinstance(optimizer, cls)), None)


def _slots(optimizer, attributes):
    moments = []
    for attribute, of_squares in attributes.items():
        variables = [v for v in getattr(optimizer, attribute, None) or [] if v is not None]
        if variables:
            moments.append(optimizers.Moment(variables, None, of_squares))
    return moments


def _own_moments(optimizer):
    """Returns the moments of an optimizer of `tf_onebit.optimizers`, AMSGrad's included."""
    return [*optimizer.moments, *_slots(optimizer, AMSGRAD_MOMENTS)]


def _reset_of(optimizer, weights):
    """Finds the state that is reset at every block.

    Returns:
        The list of variables, and a function that resets those of a slice of the weights.

    Raises:
        ValueError: if the optimizer's state cannot be reset.
    """
    if hasattr(optimizer, "moments"):
        return _variables_of(_own_moments(optimizer)), lambda places: optimizer.reset_moments()
    if not isinstance(optimizer, keras.optimizers.SGD):
        raise ValueError(
            'moment_correction="reset" works with keras.optimizers.SGD and the Adams of '
            f"tf_onebit.optimizers. Received: optimizer={optimizer.name!r} of type "
            f'{type(optimizer).__name__}. Use moment_correction="average".'
        )
    variables = _variables_of(_slots(optimizer, _SLOTS[keras.optimizers.SGD]))
    pairs = zip(trained_variables_of(optimizer), variables, strict=False)  # none without momentum
    momentum_of = {id(weight): momentum for weight, momentum in pairs}
    momenta = [momentum_of.get(id(weight)) for weight in weights]

    def reset(places):
        for momentum in momenta[places]:
            if momentum is not None:
                momentum.assign(keras.ops.zeros_like(momentum))

    return variables, reset


def _variables_of(moments):
    return [variable for moment in moments for variable in moment.variables]


def _statistics(model):
    return _unique(v for v in statistics_of(model) if _is_float(v))


def _is_float(variable):
    return "float" in variable.dtype


def _counters(optimizer):
    """Returns the variables that depend on the number of a worker's steps."""
    names = ("_moment_steps_ahead", "_samples", "_samples_per_step")
    values = [batch_counter_of(optimizer), learning_rate_setting_of(optimizer)]
    values += [getattr(optimizer, name, None) for name in names]
    return [value for value in values if isinstance(value, keras.Variable)]  # no schedule


def _accumulators(optimizer):
    """Returns the variables of accumulated gradients."""
    return accumulated_gradients_of(optimizer)


def _unique(variables):
    return list({id(variable): variable for variable in variables}.values())


def _without(variables, excluded):
    excluded = set(map(id, excluded))
    return [variable for variable in variables if id(variable) not in excluded]


def _require_known(optimizer, variables):
    if hasattr(optimizer, "moments") or isinstance(optimizer, keras.optimizers.Nadam):
        return  # all of their state is known: Nadam's product goes with its moments
    shapes = {tuple(variable.shape) for variable in trained_variables_of(optimizer)}
    for variable in variables:
        if not _is_float(variable) or tuple(variable.shape) not in shapes:
            raise ValueError(
                "BlockMomentum averages the state of an optimizer, if it has the shapes of "
                f"weights. Received: the variable {variable.path!r} {tuple(variable.shape)} "
                f"{variable.dtype} of {type(optimizer).__name__}, whose mean over workers may be "
                "meaningless. Use another optimizer, for example of tf_onebit.optimizers."
            )


def _unknown(optimizer):
    name = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.Adam | keras.optimizers.Nadam):
        return (
            "BlockMomentum changes the number of steps in the bias correction of Adam's moments. "
            f"Keras' own {name} cannot change it without changing learning rate schedules. Use "
            f"tf_onebit.optimizers.{name}, with the same arguments, or "
            'moment_correction="average".'
        )
    return (
        'moment_correction="bmuf_adam" works with the optimizers of tf_onebit.optimizers, and '
        "with keras.optimizers."
        f"{', '.join(cls.__name__ for cls in _SLOTS if hasattr(keras.optimizers, cls.__name__))}. "
        f'Received: {name}. Use one of these, or moment_correction="average".'
    )
