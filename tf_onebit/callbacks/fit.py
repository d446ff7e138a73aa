"""What callbacks do to the `model.fit` that calls them."""

import inspect


def frame_of_fit(model):
    """The frame of the `model.fit` that calls: Keras hands its data to no one else."""
    frame = _find_frame(model)
    if frame is None:
        raise RuntimeError("BackupAndRestore and BlockMomentum work in model.fit only.")
    return frame


def is_fitting(model):
    return _find_frame(model) is not None


def _find_frame(model):
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_locals.get("self") is model and frame.f_code.co_name == "fit":
            return frame
        frame = frame.f_back
    return None


def build_model(model, purpose):
    """Gives a model the variables that Keras gives it in the first step.

    Args:
        model: Keras model.
        purpose: what it is to have them for, as "is resumed".

    Raises:
        ValueError: if it cannot be built from the data.
    """
    layers = [layer for layer in model._flatten_layers() if layer is not model]
    if all(layer.built for layer in layers):
        return
    dataset = frame_of_fit(model).f_locals["epoch_iterator"]._distributed_dataset
    try:
        model._symbolic_build(data_batch=dataset.element_spec)
    except Exception as error:
        raise ValueError(
            f"A model that {purpose} must have its variables. Received: {model!r}, which cannot "
            "be built from its data. Build its layers before fit."
        ) from error


def begin_replay(model, draw):
    """Has `draw` called in the place of steps, until `end_replay`."""
    draw.stands_in_for = model.train_function
    model.train_function = draw


def end_replay(model):
    function = model.train_function
    model.train_function = getattr(function, "stands_in_for", function)


def is_replaying(model):
    """Whether batches are drawn without being trained on."""
    return hasattr(model.train_function, "stands_in_for")
