"""Keras callbacks."""

from tf_onebit._bmuf.callback import BlockMomentum
from tf_onebit._monitor.callback import Monitor
from tf_onebit.callbacks.backup import BackupAndRestore
from tf_onebit.callbacks.learning_rate import AutoLearningRate
from tf_onebit.callbacks.minibatch_size import AutoMinibatchSize

__all__ = ["AutoLearningRate", "AutoMinibatchSize", "BackupAndRestore", "BlockMomentum", "Monitor"]
