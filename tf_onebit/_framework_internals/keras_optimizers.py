"""Private parts of Keras optimizers, and changes of an optimizer's class."""

import keras
from keras.src.backend.common import global_state

from tf_onebit._framework_internals.class_changes import become

# Attributes with the moments of optimizers, and whether they hold moments of squares. All of these
# moments mean the same for another model: keras/src/optimizers/sgd.py:93, lion.py:94,
# adagrad.py:74, adadelta.py:79, rmsprop.py:97.
MOMENTS = {
    keras.optimizers.SGD: {"momentums": False},
    keras.optimizers.Lion: {"_momentums": False},
    keras.optimizers.Adagrad: {"_accumulators": True},
    keras.optimizers.Adadelta: {"_accumulated_grads": True, "_accumulated_delta_vars": True},
    keras.optimizers.RMSprop: {
        "_velocities": True,
        "_average_gradients": False,
        "_momentums": False,
    },
}
# The same for Adam and AdamW with `amsgrad`: keras/src/optimizers/adam.py:98.
AMSGRAD_MOMENTS = {"_velocity_hats": True}


def batch_counter_of(optimizer):
    """Returns the variable that counts an optimizer's batches.

    Relies on `BaseOptimizer._iterations` (keras/src/optimizers/base_optimizer.py:166). With
    gradient accumulation the public `iterations` counts updates instead.
    """
    return optimizer._iterations


def trained_variables_of(optimizer):
    """Returns the variables for which an optimizer has been built: list.

    Relies on `BaseOptimizer._trainable_variables` (keras/src/optimizers/base_optimizer.py:227).
    """
    return optimizer._trainable_variables


def slots_of(optimizer):
    """Returns the variables that an optimizer keeps for each variable that it trains.

    These are moments, accumulated gradients and averages of weights. Keras' optimizers keep them
    in lists with one entry for each trained variable.

    Relies on `BaseOptimizer._trainable_variables` (keras/src/optimizers/base_optimizer.py:227).

    Returns:
        List of pairs (variable of the optimizer, trained variable), of equal shapes.
    """
    trained = optimizer._trainable_variables
    own = {id(variable) for variable in optimizer.variables}
    return [
        (slot, variable)
        for value in vars(optimizer).values()
        if isinstance(value, list) and len(value) == len(trained)
        for slot, variable in zip(value, trained, strict=True)
        if id(slot) in own and tuple(slot.shape) == tuple(variable.shape)
    ]


def keys_of(optimizer):
    """Returns the keys by which an optimizer knows its trained variables: list.

    Relies on `BaseOptimizer._var_key` (keras/src/optimizers/base_optimizer.py:229) and
    `_trainable_variables`.
    """
    return [optimizer._var_key(variable) for variable in optimizer._trainable_variables]


def replace_keys(optimizer, before):
    """Makes an optimizer know its trained variables after their values have been replaced.

    Relies on `BaseOptimizer._trainable_variables_indices`, and on
    `_exclude_from_weight_decay` and its cache (keras/src/optimizers/base_optimizer.py:222, 911).

    Args:
        optimizer: Keras optimizer.
        before: what `keys_of` returned before.
    """
    new = dict(zip(before, keys_of(optimizer), strict=True))
    optimizer._trainable_variables_indices = {key: i for i, key in enumerate(new.values())}
    if hasattr(optimizer, "_exclude_from_weight_decay"):
        excluded = optimizer._exclude_from_weight_decay
        optimizer._exclude_from_weight_decay = {new.get(key, key) for key in excluded}
    optimizer._exclude_from_weight_decay_cache = {}


def copy_for(optimizer, variables, originals):
    """Returns a copy of an optimizer, built for other variables, with no state yet.

    Relies on `BaseOptimizer._var_key`, `_use_weight_decay`, `_exclude_from_weight_decay` and
    `_learning_rate` (keras/src/optimizers/base_optimizer.py:906, 923), and on `Variable._path`, by
    which Muon excludes layers.

    Args:
        optimizer: Keras optimizer.
        variables: list of `keras.Variable`.
        originals: list of the variables in whose place they are, also for exclusions from decay.
    """
    config = optimizer.get_config()
    if callable(optimizer._learning_rate):  # a schedule, which may be of the user's own class
        config["learning_rate"] = optimizer._learning_rate
    copy = type(optimizer).from_config(config)
    copy._exclude_from_weight_decay = set()
    for variable, original in zip(variables, originals, strict=True):
        variable._path = original.path
        if not optimizer._use_weight_decay(original.value):
            copy._exclude_from_weight_decay.add(copy._var_key(variable))
    copy.build(variables)
    return copy


def accumulated_gradients_of(optimizer):
    """Returns the variables in which an optimizer accumulates gradients for an update: list.

    Relies on `BaseOptimizer._accumulated_gradients`, which optimizers without gradient
    accumulation do not have (keras/src/optimizers/base_optimizer.py:217).
    """
    return list(getattr(optimizer, "_accumulated_gradients", []))


def learning_rate_setting_of(optimizer):
    """Returns the source of an optimizer's learning rate: a variable, schedule or function.

    Relies on `BaseOptimizer._learning_rate` (keras/src/optimizers/base_optimizer.py:172). With a
    schedule the public `learning_rate` is the schedule's value.
    """
    return getattr(optimizer, "_learning_rate", None)


def velocities_of(optimizer):
    """Returns the velocities to which an optimizer applies its `momentum`: list of variables.

    Relies on `momentums` or `_momentums` of optimizers with a momentum
    (keras/src/optimizers/sgd.py:93, rmsprop.py:101).
    """
    if not getattr(optimizer, "momentum", 0.0):
        return []
    return getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", [])


def velocity_for(optimizer, variable):
    """Returns an optimizer's velocity for a trained variable, or None if it has no momentum.

    Relies on `BaseOptimizer._get_variable_index` (keras/src/optimizers/base_optimizer.py:238).
    """
    velocities = velocities_of(optimizer)
    return velocities[optimizer._get_variable_index(variable)] if velocities else None


def moments_for(optimizer, variable):
    """Returns Adam's averages for a trained variable: of gradients, and of their squares.

    Relies on `Adam._momentums` and `Adam._velocities` (keras/src/optimizers/adam.py:94).
    """
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index], optimizer._velocities[index]


def update_rule_of(optimizer):
    """Returns the function that computes an optimizer's updates, as its class had it at first.

    It is that of the first class with an `update_step`. Classes with `passes_update_step_on` do not
    count: their `update_step` only calls the next one.
    """
    return next(
        vars(cls)["update_step"]
        for cls in original_class(optimizer).__mro__
        if "update_step" in vars(cls) and "passes_update_step_on" not in vars(cls)
    )


def plain_update_step(optimizer, gradients, variables, learning_rate):
    """Calls `_distributed_tf_update_step` of an optimizer, and nothing that it does before.

    Relies on `TFOptimizer._backend_update_step` (keras/src/backend/tensorflow/optimizer.py:113).
    Subclasses change other variables in theirs, such as Nadam (keras/src/optimizers/nadam.py:95).
    """
    keras.optimizers.Optimizer._backend_update_step(optimizer, gradients, variables, learning_rate)


def calling_optimizer():
    """Returns the Keras optimizer whose method is running, or None.

    Relies on the `caller` of the name scopes that Keras opens
    (keras/src/backend/common/name_scope.py:28, 40).
    """
    scopes = global_state.get_global_attribute("name_scope_stack")
    caller = scopes[-1].caller if scopes else None
    return caller if isinstance(caller, keras.optimizers.Optimizer) else None


def mix_in(optimizer, mixin):
    """Puts a mixin in front of the class of an optimizer, which stays the same object.

    So it keeps all attributes and settings, even those missing in its `get_config`.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        mixin: class.
    """
    become(optimizer, optimizer_subclass(type(optimizer), mixin))


def optimizer_subclass(optimizer_class, mixin):
    """Returns a subclass with the name of its class, by which Keras saves an optimizer.

    Relies on Keras writing and reading `__module__`, `__name__` and the registered name of a class
    (keras/src/saving/serialization_lib.py:328, object_registration.py:165).
    """
    namespace = {
        "__module__": optimizer_class.__module__,
        "_original_class": _original(optimizer_class),
    }
    made = type(optimizer_class.__name__, (mixin, optimizer_class), namespace)
    registered = keras.saving.get_registered_name(optimizer_class)
    package, separator, name = registered.rpartition(">")
    if separator:
        # A class of a program: its registered name must keep standing for the original.
        for cls in (made, keras.saving.get_registered_object(registered)):
            keras.saving.register_keras_serializable(package, name)(cls)
    return made


def with_same_state(optimizer):
    """Returns another optimizer of the same class, with the same variables and settings.

    Relies on Keras optimizers to keep all of these in the attributes of the instance. A copy by
    Python's `copy` would have variables of its own (keras/src/saving/keras_saveable.py:31).
    """
    other = object.__new__(type(optimizer))
    vars(other).update(vars(optimizer))
    return other


def original_class(optimizer):
    """Returns the class that an optimizer had before any `mix_in`."""
    return _original(type(optimizer))


def _original(optimizer_class):
    return getattr(optimizer_class, "_original_class", optimizer_class)
