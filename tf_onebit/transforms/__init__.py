"""What is done to gradients beside their exchange: to their sum on its owner, or to each's own."""

from tf_onebit.transforms.adagrad import NormalizedAdaGrad
from tf_onebit.transforms.base import Transform
from tf_onebit.transforms.momentum import Momentum

__all__ = ["Momentum", "NormalizedAdaGrad", "Transform"]
