"""Keras callbacks."""

from tf_onebit.callbacks.backup import BackupAndRestore
from tf_onebit.callbacks.monitor import Monitor

__all__ = ["BackupAndRestore", "Monitor"]
