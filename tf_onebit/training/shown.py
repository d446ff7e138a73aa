"""A model as others see it, while it is trained."""

import functools

# What shows a model, or what it has learned, to the user. Whoever assigns weights means those that
# are shown.
SHOWING = (
    *("evaluate", "export", "get_weights", "predict", "save", "save_weights"),
    *("predict_on_batch", "test_on_batch", "load_weights", "set_weights"),
    *("get_state_tree", "set_state_tree"),
)


def show_in(model, context, names=SHOWING):
    """Has methods of a model run in a context, until `show_as_is`.

    Args:
        model: Keras model.
        context: function that makes a context manager.
        names: of the methods.
    """
    for name in names:
        method = getattr(type(model), name).__get__(model)
        setattr(model, name, _in_context(method, context))


def show_as_is(model, names=SHOWING):
    """Ends what `show_in` began."""
    for name in names:
        vars(model).pop(name, None)


def _in_context(method, context):
    @functools.wraps(method)
    def showing(*args, **kwargs):
        with context():
            return method(*args, **kwargs)

    return showing
