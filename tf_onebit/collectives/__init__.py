"""Collectives between workers: requests, and the engines that answer them."""

from tf_onebit.collectives.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Cond,
    Exchanging,
)

__all__ = ["AllGather", "AllReduce", "AllToAll", "Broadcast", "Cond", "Exchanging"]
