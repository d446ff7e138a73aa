"""Keras optimizers for block momentum and for normalized AdaGrad."""

from tf_onebit.optimizers.adagrad import NormalizedAdaGrad
from tf_onebit.optimizers.moments import Adam, AdamW, Moment, Nadam, RectifiedAdam

__all__ = ["Adam", "AdamW", "Moment", "Nadam", "NormalizedAdaGrad", "RectifiedAdam"]
