"""What callbacks do to the `model.fit` that calls them."""

import tensorflow as tf

from tf_onebit.training.frames import calling_frames, find_fit
from tf_onebit.training.model_optimizers import is_built


def frame_of_fit(model):
    """The frame of the `model.fit` that calls."""
    frame = find_fit(model)
    if frame is None:
        raise RuntimeError("Callbacks of tf_onebit work in model.fit only.")
    return frame


def data_of_fit(model):
    """The data that the calling `model.fit` was given as `x`."""
    return frame_of_fit(model).f_locals["x"]


def batch_size_of(frame):
    """Number of samples in a batch of the data of a `fit`, or None where Keras does not know it."""
    iterator = frame.f_locals.get("epoch_iterator")
    if iterator is None:
        return None  # of a loop of the model's own
    if isinstance(frame.f_locals["x"], tf.distribute.DistributedDataset):
        return None  # whose batches may be of one replica, or of several
    return iterator.data_adapter.batch_size


def is_running(frame):
    """Whether a frame that has called has not returned yet.

    Cheaper than to look for it again, and nothing that has become another value in it since is
    kept alive by a look at its locals: iterators of data end only when they are freed.
    """
    return any(frame is calling for calling in calling_frames())


def build_model(model, purpose):
    """Gives a model the variables that Keras gives it in the first step.

    Args:
        model: Keras model.
        purpose: what it is to have them for, as "is resumed".

    Raises:
        ValueError: if it cannot be built from the data.
    """
    if is_built(model):
        return
    dataset = frame_of_fit(model).f_locals["epoch_iterator"]._distributed_dataset
    try:
        model._symbolic_build(data_batch=dataset.element_spec)
    except Exception as error:
        raise ValueError(
            f"A model that {purpose} must have its variables. Received: {model!r}, which cannot "
            "be built from its data. Build its layers before fit."
        ) from error


def traced_step(model):
    """Traces the training step of the calling `fit`, which it then need not do again.

    Nothing is computed, and no data are drawn. What the step makes in its first trace, as the
    variables of optimizers, is there after it.

    Returns:
        A concrete function of a batch.
    """
    dataset = frame_of_fit(model).f_locals["epoch_iterator"]._distributed_dataset
    step = getattr(model.train_function, "stands_in_for", model.train_function)
    function = tf.function(lambda batch: step([batch]), autograph=False)
    return function.get_concrete_function(dataset.element_spec)


def trace_anew(model):
    """Has the training step traced again, as something in it has changed."""
    function = model.train_function
    if function is None:
        return
    model.make_train_function(force=True)
    if hasattr(function, "stands_in_for"):
        begin_replay(model, function)


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
