"""Keras optimizers made again, of classes that exchange gradients."""

import keras

from tf_onebit.training.optimizer import subclass


def require_not_distributed(optimizer):
    """Raises ValueError if an optimizer exchanges gradients already."""
    if hasattr(getattr(optimizer, "inner_optimizer", optimizer), "gradient_exchange"):
        raise ValueError(
            f"The optimizer {optimizer.name!r} is distributed already. Wrap it only once."
        )


# What `exclude_from_weight_decay` sets.
_NOT_IN_CONFIG = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")


def remake(optimizer, mixin, name):
    """A copy of the optimizer, of a subclass with `mixin`."""
    config = optimizer.get_config()
    if name is not None:
        config["name"] = name
    if not isinstance(optimizer._learning_rate, keras.Variable):
        # A schedule or function as it is: Keras can make its own kinds only from their config.
        config["learning_rate"] = optimizer._learning_rate
    cls = subclass(type(optimizer), mixin)
    if "inner_optimizer" in config:
        # As it is, too: a class of the user's own Keras may not find.
        remade = cls(**config | {"inner_optimizer": optimizer.inner_optimizer})
    else:
        remade = cls.from_config(config)
    for setting in _NOT_IN_CONFIG:
        if hasattr(optimizer, setting):
            setattr(remade, setting, getattr(optimizer, setting))
    return remade


def take_over(remade, optimizer):
    """Gives a remade optimizer the variables of the first, if it has any yet."""
    if optimizer.built:
        remade.build(optimizer._trainable_variables)
        for mine, theirs in zip(remade.variables, optimizer.variables, strict=True):
            mine.assign(theirs)
