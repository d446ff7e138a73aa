"""Keras callbacks."""

from tf_onebit.callbacks.backup import BackupAndRestore
from tf_onebit.callbacks.block_momentum import BlockMomentum
from tf_onebit.callbacks.monitor import Monitor

__all__ = ["BackupAndRestore", "BlockMomentum", "Monitor"]
