"""Share: what a member of a model-parallel group holds of a variable."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple


class Group:
    """Members that train one model together: processes, or devices of one process.

    Attributes:
        members: number of members.
        member: number of this member within its group, from 0.
        number: number of this group within the job, from 0.
        processes: number of processes of a group.
        strategy: `tf.distribute.Strategy` in whose scope the model is made, or None.
        job: `Engine` of all workers of the job.
        within: `Engine` of the members of this group.
        between: `Engine` of the workers with the same share as this one, one of each group.
    """

    members: int
    member: int
    number: int
    processes: int
    strategy: Any = None
    job: Any
    within: Any
    between: Any

    @property
    def members_here(self) -> int:
        """Number of members of a group in this process."""
        return self.members // self.processes

    def place_of_parts(self) -> AbstractContextManager[Any]:
        """Returns a context in which to make a variable for the members of this process."""
        raise NotImplementedError(f"{type(self).__name__} must define place_of_parts.")

    def parts_of(self, whole: Any, axis: int) -> list[Any]:
        """Returns the parts of a tensor that the members of this process hold.

        Args:
            whole: tensor.
            axis: axis along which the members divide it.

        Returns:
            List of tensors, one for each copy of a variable in this process.
        """
        raise NotImplementedError(f"{type(self).__name__} must define parts_of.")

    def whole_of(self, variable: Any, axis: int) -> Any:
        """Joins the parts of a variable to a tensor."""
        raise NotImplementedError(f"{type(self).__name__} must define whole_of.")

    def share_values(self, weights: Sequence[Any], others: Sequence[Any]) -> None:
        """Gives all members the same values before a model is split.

        Args:
            weights: list of variables whose values must be the same in the whole job.
            others: list of variables whose values must be the same in a group.
        """
        raise NotImplementedError(f"{type(self).__name__} must define share_values.")

    def together(self, call: str, tells_failure: bool = False) -> AbstractContextManager[Any]:
        """Returns a context for a call that all processes of a group make together."""
        raise NotImplementedError(f"{type(self).__name__} must define together.")


class Share(NamedTuple):
    """Part or copy of a variable, which a member of a group holds.

    Attributes:
        group: `Group`.
        axis: axis along which the members divide the variable, or None if each holds all of it.
    """

    group: Group
    axis: int | None

    @property
    def is_part(self) -> bool:
        return self.axis is not None


def share_of(variable: Any) -> Share | None:
    """Returns the `Share` of a variable, or None if it belongs to no group."""
    return getattr(variable, "model_parallel_share", None)


def set_share(variable: Any, share: Share | None) -> None:
    """Sets the `Share` of a Keras variable. None removes it."""
    variable.model_parallel_share = share


def members_here(variable: Any) -> int:
    """Returns how many members of a variable's group this process has: 1 without a group.

    Consecutive copies of the variable belong to them.
    """
    share = share_of(variable)
    return 1 if share is None else share.group.members_here


def is_part(variable: Any) -> bool:
    """Tells whether a variable is a part of a larger one."""
    share = share_of(variable)
    return share is not None and share.is_part


def group_of(variables: Sequence[Any]) -> Group | None:
    """Returns the group that holds some of the variables, or None.

    Raises:
        ValueError: if they belong to several groups.
    """
    groups = {id(share.group): share.group for share in map(share_of, variables) if share}
    if len(groups) > 1:
        raise ValueError(
            "An optimizer can train the weights of one division of workers into groups. Received: "
            f"variables of {len(groups)} of them. Pass the same Groups to each call of split."
        )
    return next(iter(groups.values()), None)
