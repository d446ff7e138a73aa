"""Keras callbacks."""

from tf_onebit.bmuf.callback import BlockMomentum
from tf_onebit.callbacks.backup import BackupAndRestore
from tf_onebit.callbacks.learning_rate import AutoLearningRate
from tf_onebit.callbacks.minibatch_size import AutoMinibatchSize
from tf_onebit.monitor.callback import Monitor

__all__ = ["AutoLearningRate", "AutoMinibatchSize", "BackupAndRestore", "BlockMomentum", "Monitor"]
