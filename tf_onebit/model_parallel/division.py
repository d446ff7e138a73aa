"""Division: the state of a split model."""

import contextlib
import math

from tf_onebit._framework_internals.class_changes import become, overlay
from tf_onebit._framework_internals.keras_models import own_variables_of
from tf_onebit._framework_internals.keras_optimizers import (
    keys_of,
    replace_keys,
    trained_variables_of,
)
from tf_onebit._framework_internals.keras_variables import replace_value
from tf_onebit._framework_internals.tf_variables import copies_of
from tf_onebit._shares import Share, is_part, set_share, share_of
from tf_onebit._training.group_optimizer import follow_group, mark_slots
from tf_onebit._training.model_optimizers import inner_optimizer, optimizers_of
from tf_onebit._training.optimizer import Distributed
from tf_onebit.model_parallel.activations import add_up

_SCOPE = "tf_onebit/model_parallel"


class _AddedUp:
    """Regularizer of a part, which computes the penalty of the whole weight.

    Args:
        plain: `keras.regularizers.Regularizer` whose penalty is a sum over all values.
        group: `Group`.
        scope: prefix of the names of its collectives.
    """

    def __init__(self, plain, group, scope):
        self._plain = plain
        self._group = group
        self._scope = scope

    def __call__(self, part):
        return add_up(self._plain(part), self._group, self._scope)


class Division:
    """Division of a model among the members of its group, and the way back.

    Layers and variables stay the same objects. A divided variable has the values of its part, and a
    divided layer has another class.

    Args:
        model: Keras model.
        groups: `Groups`.
        plans: what `plans_of` returned.

    Attributes:
        groups, plans: see above.
    """

    def __init__(self, model, groups, plans):
        self.groups = groups
        self.plans = plans
        self._model = model
        self._classes = []  # triples (object, plain class, class while it is split)
        self._weights = []  # the divided weights of the model
        self._regularizers = []  # triples (weight, plain regularizer, that of its part)

    def begin(self):
        """Divides the variables of the model and its optimizers, and changes the layers."""
        for variable in self._model.variables:
            set_share(variable, Share(self.groups, None))
        for index, (layer, plan) in enumerate(self.plans):
            if isinstance(plan, str):
                continue
            scope = f"{_SCOPE}/{self.groups.number}/{index}"
            attributes = {"group": self.groups, "scope": scope, **plan.attributes}
            self._change_class(layer, plan.mixin, attributes)
            for i, (variable, axis) in enumerate(plan.weights):
                set_share(variable, Share(self.groups, axis))
                self._weights.append(variable)
                if plain := variable.regularizer:
                    variable.regularizer = _AddedUp(plain, self.groups, f"{scope}/{i}")
                    self._regularizers.append((variable, plain, variable.regularizer))
        for optimizer in map(inner_optimizer, optimizers_of(self._model)):
            if optimizer.built:
                mark_slots(optimizer)
                if isinstance(optimizer, Distributed):
                    variables = trained_variables_of(optimizer)
                    follow_group(optimizer.gradient_exchange, variables, optimizer)
        self._replace_values(self._own_parts)
        self._forget_functions()

    def mix_in(self, mixin):
        """Puts a mixin in front of the class of the model."""
        self._change_class(self._model, mixin, {"division": self})

    def end(self):
        """Joins all parts. The model is a plain Keras model afterwards."""
        self._be_plain()
        self._replace_values(lambda variable: [self._joined(variable)])
        for variable in (*self._model.variables, *self._slots()):
            set_share(variable, None)
        self._forget_functions()

    @contextlib.contextmanager
    def joined(self, assigns=False):
        """Returns a context in which the model is a plain one, and holds all weights.

        The members of a group enter it together.

        Args:
            assigns: whether weights may be assigned in the context, the same on all members.
        """
        divided, parts = self._divided(), []
        self._be_plain()
        try:
            for variable in divided:
                parts.append(replace_value(variable, self._joined(variable)))
            yield
            if assigns:
                for variable, part in zip(divided, parts, strict=True):
                    _assign(part, self._own_parts(variable))
        finally:
            for variable, part in zip(divided, parts, strict=False):
                replace_value(variable, part)
            self._be_split()

    def _replace_values(self, values_of):
        """Replaces the values of all divided variables for good.

        Args:
            values_of: function from a variable to a list of tensors: one for all copies of the
                variable in this process, or one for each.
        """
        optimizers = [o for o in map(inner_optimizer, optimizers_of(self._model)) if o.built]
        keys = list(map(keys_of, optimizers))
        for variable in self._divided():
            values = values_of(variable)
            replace_value(variable, values[0], self.groups.place_of_parts())
            if len(values) > 1:
                _assign(variable, values)
        for optimizer, before in zip(optimizers, keys, strict=True):
            replace_keys(optimizer, before)

    def lines(self):
        """Describes each layer with weights: list of strings."""
        lines = []
        for layer, plan in self.plans:
            if not own_variables_of(layer):
                continue
            held = total = 0
            for variable in own_variables_of(layer):
                size = math.prod(variable.shape)
                held += size
                total += size * (self.groups.members if is_part(variable) else 1)
            line = f"{layer.name}: {type(layer).__name__}, {total} weights"
            holder = "this process" if self.groups.strategy is None else "each device"
            line += f", of which {holder} holds {held}"
            lines.append(f"{line}: {plan}" if isinstance(plan, str) else line)
        return lines

    def _divided(self):
        """Returns the divided variables of the model and its optimizers: list."""
        return [*self._weights, *(slot for slot in self._slots() if is_part(slot))]

    def _slots(self):
        optimizers = map(inner_optimizer, optimizers_of(self._model))
        return [v for optimizer in optimizers for v in optimizer.variables if share_of(v)]

    def _own_parts(self, variable):
        return self.groups.parts_of(variable, share_of(variable).axis)

    def _joined(self, variable):
        return self.groups.whole_of(variable, share_of(variable).axis)

    def _change_class(self, thing, mixin, attributes):
        plain = type(thing)
        overlay(thing, mixin, plain_class=plain, **attributes)
        self._classes.append((thing, plain, type(thing)))

    def _be_plain(self):
        for thing, plain, _ in reversed(self._classes):  # some have changed twice
            become(thing, plain)
        for variable, plain, _ in self._regularizers:
            variable.regularizer = plain

    def _be_split(self):
        for thing, _, split_class in self._classes:
            become(thing, split_class)
        for variable, _, regularizer in self._regularizers:
            variable.regularizer = regularizer

    def _forget_functions(self):
        """Makes Keras trace its functions again."""
        model = self._model
        model.train_function = model.test_function = model.predict_function = None


def _assign(variable, values):
    """Assigns a tensor to each copy of a variable in this process."""
    for copy, value in zip(copies_of(variable), values, strict=True):
        copy.assign(value)
