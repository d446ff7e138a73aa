"""Keras callbacks."""

from tf_onebit.callbacks.monitor import Monitor

__all__ = ["Monitor"]
