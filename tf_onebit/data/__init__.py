"""Data whose minibatch size may change in the middle of an epoch."""

from tf_onebit.data.resizable import ResizableBatches

__all__ = ["ResizableBatches"]
