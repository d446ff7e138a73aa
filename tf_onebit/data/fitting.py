"""Adapter of `ResizableBatches` for Keras' `fit`."""

import tensorflow as tf

from tf_onebit._framework_internals.class_changes import become
from tf_onebit._framework_internals.keras_calls import data_request
from tf_onebit._framework_internals.keras_data import TFEpochIterator
from tf_onebit.data.partition import partition_in_fit


class InFit(tf.distribute.DistributedDataset):
    """Stand-in that `fit` takes for distributed data, so that it neither batches nor shards them.

    Args:
        element_spec: structure of `tf.TensorSpec` of a batch.
    """

    def __init__(self, element_spec):
        self._element_spec = element_spec

    @property
    def element_spec(self):
        return self._element_spec

    def __iter__(self):
        raise TypeError("Only model.fit can iterate over ResizableBatches.")


def join_fit(rank, world_size):
    """Makes the epoch iterator of the calling `fit` ask its data for steps.

    Args:
        rank, world_size: as given by the user, or None.

    Returns:
        `Partition`, and the `Engine` that connects the processes, or None.

    Raises:
        ValueError: if another method than `fit` calls, or if `fit` has arguments for the size, the
            order or the contents of minibatches.
    """
    request = data_request()
    if request.model is None:
        raise ValueError(
            "ResizableBatches are for training: model.fit(batches). Received: a call from "
            f"{request.caller}. Give it arrays, a tf.data.Dataset or a PyDataset instead."
        )
    _require_nothing_else(request.arguments)
    become(request.epoch_iterator, _EpochIterator)
    steps = request.arguments["steps_per_execution"]
    return partition_in_fit(request.model, request.strategy, steps, rank, world_size)


def _require_nothing_else(arguments):
    instead = {
        "y": "Give data=(x, y)",
        "sample_weight": "Give data=(x, y, sample_weight)",
        "class_weight": "Give data=(x, y, sample_weight) with a weight for every sample",
        "batch_size": "Give global_batch_size, or call resize",
        "steps_per_epoch": "An epoch is one pass through the data",
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
    """Epoch iterator that asks its data before each step for a minibatch, if there is one."""

    _is_training = False

    def reset(self):
        super().reset()
        # Before this call, Keras asks only for the shapes of a batch.
        self._is_training = True
        self.data_adapter.begin_fit()

    def _enumerate_iterator(self):
        if not self._is_training:
            yield 0, 0, iter([self.data_adapter.example()])
            return
        for number, iterator in enumerate(self.data_adapter.steps()):
            begin = number * self.steps_per_execution
            yield begin, begin + self.steps_per_execution - 1, iterator
