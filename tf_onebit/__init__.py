"""Communication-efficient data-parallel training for Keras 3 and TensorFlow."""

from tf_onebit import callbacks
from tf_onebit._version import __version__
from tf_onebit.exchanges import Exchange, FullPrecision, Local, OneBit, WarmStart

__all__ = [
    "Exchange",
    "FullPrecision",
    "Local",
    "OneBit",
    "WarmStart",
    "__version__",
    "callbacks",
]
