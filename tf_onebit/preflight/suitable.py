"""Which methods a plan may recommend with an optimizer."""

import keras

from tf_onebit.callbacks.block_variables import corrects_moments_of


def suitable(methods, optimizer):
    """Those of some methods that go with a model's optimizer: list.

    Threshold-sparse updates are for SGD without momentum: what has been held back for long, and
    then comes at once, is more than an optimizer's averages are made for.

    Args:
        methods: list of `planner.Method`.
        optimizer: Keras optimizer.
    """
    plain = _is_plain_sgd(_inner(optimizer))
    return [method for method in methods if plain or not method.name.startswith("threshold")]


def notes_on(method, optimizer):
    """What has to be done for a method with this optimizer: list of sentences.

    Args:
        method: name of it.
        optimizer: Keras optimizer.
    """
    name = type(_inner(optimizer)).__name__
    if not method.startswith("blocks") or corrects_moments_of(_inner(optimizer)):
        return []
    return [
        f"BlockMomentum does not correct the moments of {name}: compile the model with an "
        "optimizer of tf_onebit.optimizers, which take the same arguments, or use "
        'moment_correction="average".'
    ]


def _inner(optimizer):
    return getattr(optimizer, "inner_optimizer", optimizer)


def _is_plain_sgd(optimizer):
    return isinstance(optimizer, keras.optimizers.SGD) and not optimizer.momentum
