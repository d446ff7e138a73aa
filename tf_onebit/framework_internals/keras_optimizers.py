"""What Keras optimizers keep to themselves, and how one becomes another without being remade."""

import keras
from keras.src.backend.common import global_state

from tf_onebit.framework_internals.class_changes import become

# Attributes with the moments of optimizers whose moments mean the same at another model, and
# whether they are of squares: keras/src/optimizers/sgd.py:93, lion.py:94, adagrad.py:74,
# adadelta.py:79, rmsprop.py:97.
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
# Of Adam and AdamW with `amsgrad`: keras/src/optimizers/adam.py:98.
AMSGRAD_MOMENTS = {"_velocity_hats": True}


def batch_counter_of(optimizer):
    """Returns the variable that counts the batches that an optimizer has been given.

    Relies on `BaseOptimizer._iterations` (keras/src/optimizers/base_optimizer.py:166); with
    gradient accumulation the public `iterations` counts updates.
    """
    return optimizer._iterations


def trained_variables_of(optimizer):
    """Returns the variables that an optimizer has been built for: list.

    Relies on `BaseOptimizer._trainable_variables` (keras/src/optimizers/base_optimizer.py:227).
    """
    return optimizer._trainable_variables


def accumulated_gradients_of(optimizer):
    """Returns the variables of gradients that an optimizer gathers for its next update: list.

    Relies on `BaseOptimizer._accumulated_gradients`, which optimizers without gradient
    accumulation do not have (keras/src/optimizers/base_optimizer.py:217).
    """
    return list(getattr(optimizer, "_accumulated_gradients", []))


def learning_rate_setting_of(optimizer):
    """Returns what an optimizer's learning rate comes from: a variable, schedule or function.

    Relies on `BaseOptimizer._learning_rate` (keras/src/optimizers/base_optimizer.py:172); the
    public `learning_rate` of a schedule is its value.
    """
    return getattr(optimizer, "_learning_rate", None)


def velocities_of(optimizer):
    """Returns the variables of an optimizer that its `momentum` applies to: list.

    Relies on `momentums` or `_momentums` of optimizers with a momentum
    (keras/src/optimizers/sgd.py:93, rmsprop.py:101).
    """
    if not getattr(optimizer, "momentum", 0.0):
        return []
    return getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", [])


def calling_optimizer():
    """Returns the Keras optimizer that is at work, or None.

    Relies on the name scopes that Keras opens, which tell who opened them
    (keras/src/backend/common/name_scope.py:28, 40).
    """
    scopes = global_state.get_global_attribute("name_scope_stack")
    caller = scopes[-1].caller if scopes else None
    return caller if isinstance(caller, keras.optimizers.Optimizer) else None


def mix_in(optimizer, mixin):
    """Puts a mixin in front of the class of an optimizer. It stays the object that it is.

    So all that a program has given it remains, also what its `get_config` does not know.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        mixin: class.
    """
    become(optimizer, optimizer_subclass(type(optimizer), mixin))


def optimizer_subclass(optimizer_class, mixin):
    """Returns a subclass that carries its class's name, as Keras saves an optimizer by that.

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
        # Not one of Keras' own. The name goes on standing for the original.
        for cls in (made, keras.saving.get_registered_object(registered)):
            keras.saving.register_keras_serializable(package, name)(cls)
    return made


def original_class(optimizer):
    """Returns the class that an optimizer had before any `mix_in`."""
    return _original(type(optimizer))


def _original(optimizer_class):
    return getattr(optimizer_class, "_original_class", optimizer_class)
