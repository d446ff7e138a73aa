"""TrainingWorkers: which workers exchange gradients with each other, and which step together."""

import collections
import functools
import itertools
from collections.abc import Iterator

import tensorflow as tf

from tf_onebit.exchanges.handshake import handshake

# Numbers the exchanges of a process in the order of first use. All workers take part in each, so
# their numbers agree, also if one of them creates more objects (to log, test or save). Each group
# has a counter of its own, because the other workers take no part.
_numbers: dict[tuple[int, ...], Iterator[int]] = collections.defaultdict(itertools.count)


def has_exchanged():
    """Tells whether this process has exchanged gradients with all others of its job."""
    return () in _numbers


class TrainingWorkers:
    """Workers of a job, as the exchange of an optimizer's gradients sees them.

    Args:
        engine: `Engine` of all workers of the job.
        train_apart: whether each worker applies its own gradients, at its own pace.
        settings: list of (what, value) pairs of strings on which workers must agree.

    Attributes:
        engine, train_apart: see the arguments.
        model_group: `Group` of workers that hold the model together with this one, or None.
        are_by_node: whether the workers of a node add up their gradients before they exchange them
            with other nodes.
    """

    def __init__(self, engine, train_apart, settings=()):
        self.engine = self._group = engine
        self.train_apart = train_apart
        self.model_group = None
        self.are_by_node = False
        self._settings = settings
        if train_apart:
            engine.whereabouts.are_in_step = False

    def divide(self, group):
        """Restricts the exchange of gradients to a group of the workers.

        Args:
            group: `Engine` of the group of this worker.
        """
        self._group = group
        self.engine.whereabouts.are_in_step = False

    def join_by_node(self):
        """Has the workers of a node add up their gradients before they exchange them with others.

        There are several nodes, each of several workers.
        """
        self.are_by_node = True

    def follow(self, model_group):
        """Restricts the exchange to the workers that hold the same parts of a model as this one.

        Args:
            model_group: `Group` of this worker.
        """
        self._group = model_group.between
        self.model_group = model_group

    @property
    def group(self):
        """`Engine` of the workers that exchange gradients with each other. Default: all.

        By node, these are the workers at the same place in all nodes.
        """
        # The scope compares the workers first: some may not expect groups, and would not answer.
        if self.are_by_node and self._group is self.engine and self.scope:
            with tf.init_scope():
                self._group = self.engine.between_nodes()
        return self._group

    @property
    def whole_group(self):
        """`Engine` of the workers whose gradients become one: by node, those of all nodes."""
        return self.engine if self.are_by_node else self._group

    @property
    def count(self):
        """Number of workers whose gradients become one."""
        return self.whole_group.world_size

    @property
    def holders(self):
        """`Engine` of the workers that hold the same variables as this one."""
        return self.engine if self.model_group is None else self.group

    @property
    def are_in_step(self):
        """True if all workers make every step together, so that their numbers of steps agree."""
        is_whole = self._group is self.engine or self.model_group is not None or self.are_by_node
        return is_whole and not self.train_apart

    @property
    def in_step(self):
        """`Engine` of the workers that make every step together with this one, or None."""
        if not self.train_apart:
            return self.engine if self.are_in_step else self.group
        group = self.model_group
        return group.within if group is not None and group.processes > 1 else None

    def of_worker(self, worker, by_device):
        """Returns the entries of a list by device that belong to a worker of this process.

        Device i belongs to worker i % workers: to the only one, or to a member of a model-parallel
        group.

        Args:
            worker: index in `group.ranks`.
            by_device: list with an entry for each device of this process.
        """
        return by_device[worker :: len(self.group.ranks)]

    def meet(self, occasion, iterations):
        """Meets the other workers between two steps, if all make every step together.

        Args:
            occasion: occasion of the meeting, in a few words.
            iterations: variable that counts the steps that this worker has made.

        Raises:
            RuntimeError: if another worker does something else.
        """
        ranks = self.engine.ranks
        if self.are_in_step and len(ranks) < self.engine.world_size:
            so_far = f"after {iterations.numpy()} steps"
            self.engine.meet([handshake(occasion, []) for _ in ranks], occasion, so_far)

    @functools.cached_property
    def scope(self):
        """Prefix of the names of collectives in the group. The first use compares the workers."""
        compared = self.whole_group
        members = () if compared is self.engine else tuple(compared.members)
        self._number = next(_numbers[members])
        scope = "_".join(map(str, ["tf_onebit", self._number, *members]))
        with tf.init_scope():
            compared.run([handshake(scope, self._settings) for _ in compared.ranks])
        return scope

    def scope_of(self, engine):
        """Returns the prefix of the names of collectives between the workers of an `Engine`."""
        own = self.scope
        return own if engine is self.group else f"tf_onebit_{self._number}"
