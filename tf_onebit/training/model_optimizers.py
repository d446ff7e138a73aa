"""Former place of `tf_onebit.flush` and `tf_onebit.without_delay`. It goes in 0.3."""

import warnings

from tf_onebit._training.model_optimizers import flush, without_delay

__all__ = ["flush", "without_delay"]

warnings.warn(
    "tf_onebit.training.model_optimizers is now private: use tf_onebit.flush and "
    "tf_onebit.without_delay. The old names go in 0.3.",
    DeprecationWarning,
    stacklevel=2,
)
