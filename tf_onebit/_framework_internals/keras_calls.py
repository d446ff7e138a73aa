"""Calls of Keras in progress, found among the frames of the stack.

Keras does not pass the model in training, or its data, to strategies, optimizers and data adapters.
So these functions read arguments and local variables of Keras' methods, by their names.
"""

import dataclasses
import inspect

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer
from keras.src.trainers.epoch_iterator import EpochIterator

from tf_onebit._framework_internals.keras_data import distributed_data_of


def _frames():
    """Yields the calling frames, innermost first."""
    frame = inspect.currentframe().f_back
    while frame is not None:
        yield frame
        frame = frame.f_back


def _find_method(name, is_owner):
    """Finds the innermost calling frame of a method, or None.

    Args:
        name: name of the method.
        is_owner: predicate of an object: whether it may be the method's `self`.
    """
    for frame in _frames():
        # Compares names first: reading `f_locals` copies the locals, and keeps them alive.
        if frame.f_code.co_name == name and is_owner(frame.f_locals.get("self")):
            return frame
    return None


def _caller_of_package():
    """Finds the innermost calling frame outside of this package."""
    package = __name__.partition(".")[0]
    return next(f for f in _frames() if f.f_globals["__name__"].partition(".")[0] != package)


class FitCall:
    """Call of `model.fit`, which may have returned since.

    Relies on the names of arguments and local variables in `TensorFlowTrainer.fit`
    (keras/src/backend/tensorflow/trainer.py:315).

    Args:
        frame: frame of the call.
    """

    def __init__(self, frame):
        self._frame = frame

    def is_running(self):
        """Tells whether the call is on the stack, and so has not returned yet.

        Compares frames only. Reading locals would keep the data's iterator alive, and data end only
        when the iterator is freed.
        """
        return any(frame is self._frame for frame in _frames())

    @property
    def model(self):
        """The Keras model in training."""
        return self._frame.f_locals["self"]

    @property
    def data(self):
        """The argument `x` of `fit`, or None."""
        return self._frame.f_locals.get("x")

    @property
    def callbacks(self):
        """List of callbacks. Once training begins, it includes the ones that Keras adds."""
        callbacks = self._frame.f_locals["callbacks"]
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks.callbacks
        return [callback for callback in keras.tree.flatten(callbacks) if callback is not None]

    @property
    def epoch_iterator(self):
        """Keras' iterator over an epoch's batches (trainer.py:360), or None before it is made."""
        return self._frame.f_locals.get("epoch_iterator")

    @property
    def number_of_batches(self):
        """The number of batches in an epoch, or None where Keras does not know it."""
        return self.epoch_iterator.num_batches

    @property
    def batch_spec(self):
        """Structure of the `tf.TensorSpec` of a batch."""
        return distributed_data_of(self.epoch_iterator).element_spec

    @property
    def batch_size(self):
        """The number of samples in a batch, or None where Keras does not know it."""
        if self.epoch_iterator is None:
            return None  # the model has a loop of its own
        if isinstance(self.data, tf.distribute.DistributedDataset):
            return None  # its batches may be for one replica, or for several
        return self.epoch_iterator.data_adapter.batch_size

    @property
    def first_epoch(self):
        """The number of the first epoch, counted from 0."""
        return self._frame.f_locals["initial_epoch"]

    @property
    def last_epoch(self):
        """The argument `epochs`: the total number of epochs after which training ends."""
        return self._frame.f_locals["epochs"]

    def set_logs(self, logs):
        """Sets the logs that Keras uses for an epoch without steps.

        Keras takes them for the logs of the epoch's last step (trainer.py:391, 405).
        """
        self._frame.f_locals["logs"].update(logs)


def find_fit(model):
    """Finds the `FitCall` of a model that is on the stack, or None.

    A `fit` that the model's own class defines does not count.
    """
    frame = _find_method("fit", lambda owner: owner is model)
    return FitCall(frame) if frame is not None and "epoch_iterator" in frame.f_locals else None


def model_in_train_step(is_owner):
    """Returns the object whose `train_step` is on the stack, or None.

    Relies on the name of `TensorFlowTrainer.train_step`, which is public
    (keras/src/backend/tensorflow/trainer.py:53).

    Args:
        is_owner: predicate of an object: whether it may be the result.
    """
    frame = _find_method("train_step", is_owner)
    return None if frame is None else frame.f_locals["self"]


def model_being_built():
    """Finds the model that Keras builds in the scope of a strategy, before its first step.

    Relies on `TensorFlowTrainer._maybe_symbolic_build` and its callers `fit`, `evaluate`,
    `train_on_batch` and the like (keras/src/backend/tensorflow/trainer.py:713, 372).

    Returns:
        The model, or None; and the `FitCall`, or None if the caller is not `fit`.
    """
    frame = _find_method("_maybe_symbolic_build", lambda owner: isinstance(owner, keras.Model))
    if frame is None:
        return None, None
    caller = frame.f_back
    return frame.f_locals["self"], FitCall(caller) if caller.f_code.co_name == "fit" else None


def epoch_iterator_being_made():
    """Returns Keras' epoch iterator whose `__init__` is on the stack, or None.

    Relies on `TFEpochIterator.__init__`, which calls a strategy to distribute its dataset
    (keras/src/backend/tensorflow/trainer.py:753).
    """
    frame = _find_method("__init__", lambda owner: isinstance(owner, EpochIterator))
    return None if frame is None else frame.f_locals["self"]


@dataclasses.dataclass
class DataRequest:
    """Request of Keras for the data of a data adapter.

    Only requests for training data have the attributes after `caller`.

    Attributes:
        caller: name of the caller for messages: "model.fit" for training data.
        model: Keras model.
        epoch_iterator: Keras' epoch iterator, which is being made.
        strategy: `tf.distribute.Strategy` under which the model trains.
        arguments: dictionary of the arguments of `fit` that concern the data.
    """

    caller: str
    model: object = None
    epoch_iterator: object = None
    strategy: object = None
    arguments: dict | None = None


def data_request():
    """Returns the `DataRequest` that is on the stack.

    Relies on `TFEpochIterator.__init__(distribute_strategy, **kwargs)`, which calls
    `get_tf_dataset`, and on its callers (keras/src/backend/tensorflow/trainer.py:748, 360).
    """
    frame = _caller_of_package()
    epoch_iterator = frame.f_locals.get("self")
    if not isinstance(epoch_iterator, trainer.TFEpochIterator):
        return DataRequest(frame.f_code.co_name)
    caller = frame.f_back
    if caller.f_code.co_name != "fit":
        return DataRequest(f"model.{caller.f_code.co_name}")
    if caller.f_locals.get("epoch_iterator") is not None:
        return DataRequest("model.fit as validation_data")
    return DataRequest(
        "model.fit",
        caller.f_locals["self"],
        epoch_iterator,
        frame.f_locals["distribute_strategy"],
        frame.f_locals["kwargs"],
    )


def is_asked_for_shapes():
    """Tells whether Keras reduces a batch over replicas only for its shapes and types.

    Relies on `TensorFlowTrainer._maybe_symbolic_build`
    (keras/src/backend/tensorflow/trainer.py:732).
    """
    return _is_called_by_trainer("_maybe_symbolic_build")


def is_asked_for_metrics():
    """Tells whether Keras reduces the results of a step over replicas: metrics.

    Relies on `reduce_per_replica` and its `_reduce` (keras/src/backend/tensorflow/trainer.py:833).
    """
    return _is_called_by_trainer("_reduce")


def _is_called_by_trainer(function):
    caller = _caller_of_package()
    return caller.f_code.co_name == function and caller.f_globals is vars(trainer)
