"""Exchanges: what workers send. This package knows no Keras, no Horovod, no tf.distribute."""

from tf_onebit.exchanges.auto import Auto
from tf_onebit.exchanges.base import Exchange
from tf_onebit.exchanges.bucketed import Bucketed
from tf_onebit.exchanges.delayed import Delayed
from tf_onebit.exchanges.full_precision import FullPrecision
from tf_onebit.exchanges.gradients import GradientSpec
from tf_onebit.exchanges.local import Local
from tf_onebit.exchanges.one_bit import OneBit
from tf_onebit.exchanges.schedule import Recipe
from tf_onebit.exchanges.stages import run_stages
from tf_onebit.exchanges.threshold import Threshold
from tf_onebit.exchanges.warm_start import WarmStart

__all__ = [
    "Auto",
    "Bucketed",
    "Delayed",
    "Exchange",
    "FullPrecision",
    "GradientSpec",
    "Local",
    "OneBit",
    "Recipe",
    "Threshold",
    "WarmStart",
    "run_stages",
]
