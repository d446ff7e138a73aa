"""Transforms of gradients: of their sum on the owner of a shard, or of each worker's own."""

from tf_onebit.transforms.adagrad import NormalizedAdaGrad
from tf_onebit.transforms.base import Transform
from tf_onebit.transforms.momentum import Momentum

__all__ = ["Momentum", "NormalizedAdaGrad", "Transform"]
