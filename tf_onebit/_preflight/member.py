"""Member of a model-parallel group, measured without the other members."""

import contextlib
import dataclasses
import math

import tensorflow as tf

from tf_onebit._framework_internals.tf_variables import plain_variables
from tf_onebit._preflight.block_ends import BlockEnd
from tf_onebit._preflight.command import announce
from tf_onebit._preflight.computation import ModelInStep, require_plannable
from tf_onebit._shares import Group, is_part
from tf_onebit._training.group_optimizer import mark_slots, require_updates_of_parts
from tf_onebit._training.model_optimizers import inner_optimizer
from tf_onebit.collectives import echo
from tf_onebit.collectives.engine import ProcessEngine
from tf_onebit.collectives.requests import sent_bytes, tensors_of
from tf_onebit.model_parallel import describe, split
from tf_onebit.planner import Activations, Collective, Computation, within_group


@dataclasses.dataclass(frozen=True)
class Member:
    """Measurements of a member of a group.

    Attributes:
        computation: `planner.Computation` of a step with the samples of a group, with nothing sent.
        scatter: spread of the times of a step, as a fraction of their median.
        activations: `planner.Activations`.
        held_bytes: bytes of the weights, gradients and state of the optimizer that a member holds.
        whole_bytes: the same for the whole model.
        specs: list of `GradientSpec` of a member's gradients.
        rows: number of rows of each sparse gradient, and 1 for others.
        ends: what `BlockEnd.by_compression` returned.
    """

    computation: Computation
    scatter: float
    activations: Activations
    held_bytes: int
    whole_bytes: int
    specs: list
    rows: list
    ends: dict


def measure_member(model, members, samples, workers, unknown_size, blocks):
    """Measures the step of a member. The model is split, and stays so.

    Args:
        model: Keras model, compiled.
        members: number of members of a group.
        samples: number of samples of a group in a step.
        workers: `Links` or `Alone`.
        unknown_size: see `ModelInStep`.
        blocks: `Blocks`.

    Returns:
        `Member`.

    Raises:
        ValueError: for a model that cannot be split or measured, and without enough memory.
    """
    require_plannable(model, unknown_size)
    group = _WithoutOthers(members)
    split(model, group)
    variables = model.trainable_variables
    if not any(map(is_part, variables)):
        raise ValueError(
            f"Each of {members} members would hold the whole model, because no layer can be split. "
            f"Received: --members {members}, and {model.name!r} with these layers:\n"
            f"{describe(model)}"
        )
    step = ModelInStep(model, unknown_size)
    sizes = step.fixed_batch_sizes
    if sizes:
        raise ValueError(
            f"A group takes the samples of its {members} members in one batch of {samples}. "
            f"Received: --members {members}, and {model.name!r}, whose inputs prescribe batches of "
            f"{max(sizes)}. Leave the size of batches open."
        )
    require_updates_of_parts(inner_optimizer(step.optimizer), variables)
    mark_slots(inner_optimizer(step.optimizer))
    announce(workers, f"a step of a member of {members} with {samples} samples")
    computation = step.measure(samples, workers)
    if computation is None:
        raise ValueError(
            f"A member of {members} has too little memory for a step. Received: {samples} samples "
            f"of a group. Give fewer with --per-replica-batch-size, or leave out --members "
            f"{members}."
        )
    held = [*model.variables, *variables, *step.optimizer.variables]
    return Member(
        computation,
        step.scatter[samples],
        _activations(step, samples, group),
        sum(map(_bytes, held)),
        sum(_bytes(v) * (members if is_part(v) else 1) for v in held),
        step.specs(),
        step.rows(samples),
        BlockEnd.by_compression(model, step.optimizer, blocks),
    )


def _activations(step, samples, group):
    """Returns the `Activations` of a step, which runs once in eager mode."""
    batch = step.batch(samples)
    with group.within.noting() as forward:
        step.loss(batch)
    with group.within.noting() as both:
        step.gradients(batch)
    return Activations(group.members, tuple(forward), tuple(both[len(forward) :]))


def _bytes(variable):
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size


class _WithoutOthers(Group):
    """Group of which only the first member is there. The others are taken to send the same."""

    number = member = 0

    def __init__(self, members):
        self.members = self.processes = members
        self.within = _Echo(members)
        self.job = self.between = _Echo(1)

    def __repr__(self):
        return f"<group of {self.members} members, of which one is measured>"

    def place_of_parts(self):
        return plain_variables()

    def parts_of(self, whole, axis):
        return tf.split(whole, self.members, axis)[:1]

    def share_values(self, weights, others):
        pass

    def together(self, call, tells_failure=False):
        return contextlib.nullcontext()


class _Echo(ProcessEngine):
    """Engine that answers each request as if all workers sent the same.

    Args:
        world_size: number of workers.
    """

    def __init__(self, world_size):
        self.world_size, self.ranks = world_size, [0]
        self._note = lambda request: None

    def run_one(self, generator):
        return echo.run(generator, self.world_size, self._note)

    @contextlib.contextmanager
    def noting(self):
        """Notes the requests of operations that run in eager mode: list of `Collective`."""
        noted = []
        before, self._note = self._note, lambda request: noted.append(self._collective(request))
        try:
            yield noted
        finally:
            self._note = before

    def _collective(self, request):
        size_bytes = sum(int(tf.size(t)) * t.dtype.size for t in tensors_of(request))
        kind, sent = sent_bytes(request, size_bytes, self.world_size)
        return Collective(0.0, within_group(kind), sent)
