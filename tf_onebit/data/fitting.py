"""How `ResizableBatches` come into Keras' `fit`."""

import inspect

import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from tf_onebit.data.partition import partition_in_fit


class InFit(tf.distribute.DistributedDataset):
    """What `fit` takes for data that are distributed already, and does not batch or shard again.

    Args:
        element_spec: structure of `tf.TensorSpec` of a batch.
    """

    def __init__(self, element_spec):
        self._element_spec = element_spec

    @property
    def element_spec(self):
        return self._element_spec

    def __iter__(self):
        raise TypeError("ResizableBatches are iterated over by model.fit only.")


def join_fit(rank, world_size):
    """Makes the epoch iterator of the `fit` that calls ask its data for steps.

    Keras hands its data to nobody, and nobody to its data: the caller is found among the frames.

    Args:
        rank, world_size: what the user says of the processes, or None.

    Returns:
        `Partition`, and the `Engine` that connects the processes, or None.

    Raises:
        ValueError: if another method than `fit` calls, or with arguments that say the size of
            minibatches, their order or what is in them.
    """
    frame = inspect.currentframe().f_back.f_back  # who asks for the data
    epoch_iterator = frame.f_locals.get("self")
    if not isinstance(epoch_iterator, TFEpochIterator):
        raise _not_in_fit(frame.f_code.co_name)
    arguments = frame.f_locals["kwargs"]
    strategy = frame.f_locals["distribute_strategy"]
    caller = frame.f_back
    if caller.f_code.co_name != "fit":
        raise _not_in_fit(f"model.{caller.f_code.co_name}")
    if caller.f_locals.get("epoch_iterator") is not None:
        raise _not_in_fit("model.fit as validation_data")
    _require_nothing_else(arguments)
    epoch_iterator.__class__ = _EpochIterator
    return partition_in_fit(
        caller.f_locals["self"], strategy, arguments["steps_per_execution"], rank, world_size
    )


def _not_in_fit(caller):
    return ValueError(
        "ResizableBatches are for training: model.fit(batches). Received: a call from "
        f"{caller}. Give it arrays, a tf.data.Dataset or a PyDataset instead."
    )


def _require_nothing_else(arguments):
    instead = {
        "y": "Give data=(x, y)",
        "sample_weight": "Give data=(x, y, sample_weight)",
        "class_weight": "Give data=(x, y, sample_weight) with a weight for every sample",
        "batch_size": "Give global_batch_size, or call resize",
        "steps_per_epoch": "An epoch is once through the data",
    }
    for name, hint in instead.items():
        if arguments.get(name) is not None:
            raise ValueError(
                f"With ResizableBatches, model.fit takes no {name}. Received: {name}="
                f"{_short(arguments[name])}. {hint}."
            )
    if not arguments["shuffle"]:
        raise ValueError(
            "With ResizableBatches, model.fit takes no shuffle. Received: shuffle=False. Give "
            "ResizableBatches(..., shuffle=False)."
        )


def _short(value):
    return f"{type(value).__name__}" if hasattr(value, "shape") else repr(value)


class _EpochIterator(TFEpochIterator):
    """Asks its data before each step whether there is one, and for a minibatch for it."""

    _is_training = False

    def reset(self):
        super().reset()
        # Before, Keras asks for the shapes of a batch only.
        self._is_training = True
        self.data_adapter.begin_fit()

    def _enumerate_iterator(self):
        if not self._is_training:
            yield 0, 0, iter([self.data_adapter.example()])
            return
        for number, iterator in enumerate(self.data_adapter.steps()):
            begin = number * self.steps_per_execution
            yield begin, begin + self.steps_per_execution - 1, iterator
