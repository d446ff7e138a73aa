"""Who carries messages between workers: requests, and the drivers that answer them."""

from tf_onebit.collectives.requests import AllGather, AllReduce, AllToAll, Broadcast, Cond

__all__ = ["AllGather", "AllReduce", "AllToAll", "Broadcast", "Cond"]
