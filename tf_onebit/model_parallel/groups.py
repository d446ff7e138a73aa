"""Groups of processes that hold one model together."""

from typing import Literal

import tensorflow as tf

from tf_onebit._framework_internals.tf_variables import plain_variables
from tf_onebit._shares import Group
from tf_onebit._validation import is_whole
from tf_onebit.collectives.requests import AllGather, Broadcast, one_request
from tf_onebit.model_parallel.meeting import together


class Groups(Group):
    """Division of the processes of a Horovod job into groups, each of which holds one model.

    The members of a group hold parts of the same weights, and train on the same data. Processes
    at the same place in their groups hold the same parts, and are *peers*. Peers exchange
    gradients with each other, each with the data of its group. `DistributedOptimizer` sees to it.

    With 4 processes and `Groups(2)`, ranks 0 and 1 form group 0, and ranks 2 and 3 form group 1.
    Ranks 0 and 2 are peers, and so are 1 and 3.

    All processes create the object. Several groups need `hvd.init(process_sets="dynamic")`.

    Args:
        members: number of consecutive ranks in a group; or "node": the processes of a node form a
            group.

    Attributes:
        members: number of members of a group.
        count: number of groups.
        number: number of the group of this process, from 0.
        member: number of this process within its group, from 0.

    Raises:
        ValueError: if `members` is neither, or does not divide the number of processes. If nodes
            have different numbers of processes, or Horovod has no dynamic process sets.

    Example:
        >>> import tf_onebit.horovod as hvd
        >>> hvd.init()
        >>> groups = Groups(1)
        >>> groups.number, groups.count, groups.member, groups.members
        (0, 1, 0, 1)
    """

    def __init__(self, members: int | Literal["node"]) -> None:
        if members != "node" and not is_whole(members, 1):
            raise ValueError(
                'members must be "node" or a positive whole number of processes. Received: '
                f"members={members!r}. Use 2 for pairs."
            )
        # Groups of devices need no Horovod.
        from tf_onebit.collectives.horovod import HorovodEngine

        self.job = HorovodEngine()
        self.within, self.between = self.job.divided(None if members == "node" else members)
        self.members = self.processes = self.within.world_size
        self.member = self.within.ranks[0]
        self.count = self.between.world_size
        self.number = self.between.ranks[0]

    def __repr__(self) -> str:
        return (
            f"<Groups: {self.count} of {self.members} members; this process is member "
            f"{self.member} of group {self.number}>"
        )

    def place_of_parts(self):
        return plain_variables()

    def parts_of(self, whole, axis):
        return [tf.split(whole, self.members, axis)[self.member]]

    def whole_of(self, variable, axis):
        part = tf.convert_to_tensor(variable)
        request = AllGather(part[tf.newaxis], f"tf_onebit/model_parallel/{self.number}/joined")
        (parts,) = self.within.run([one_request(request)])
        return tf.concat(tf.unstack(parts), axis)

    def share_values(self, weights, others):
        _broadcast(weights, self.job)
        _broadcast(others, self.within)

    def together(self, call, tells_failure=False):
        return together(self, call, tells_failure)


def _broadcast(variables, engine):
    """Assigns the values of variables on the first worker to those of all."""
    for variable in variables:  # one by one, because only one copy then needs memory
        request = _one_broadcast(variable)
        (value,) = engine.run([request])
        variable.assign(value)


def _one_broadcast(variable):
    (value,) = yield Broadcast([variable.value], 0, "tf_onebit/model_parallel/initial")
    return value
