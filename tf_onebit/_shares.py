"""Share: what a member of a model-parallel group holds of a variable."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Group(Protocol):
    """Members that train one model together.

    Attributes:
        members: number of members.
        member: number of this member within its group, from 0.
        number: number of this group within the job, from 0.
        job: `Engine` of all workers of the job.
        within: `Engine` of the members of this group.
        between: `Engine` of the workers with the same share as this one, one of each group.
    """

    members: int
    member: int
    number: int
    job: Any
    within: Any
    between: Any


class Share(NamedTuple):
    """What a member holds of a variable.

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
