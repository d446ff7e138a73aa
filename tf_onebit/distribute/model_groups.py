"""Groups of devices of one process that hold one model together."""

import contextlib

import tensorflow as tf

from tf_onebit._framework_internals.keras_variables import is_in_symbolic_call
from tf_onebit._framework_internals.tf_strategies import get_current_replica_id_as_int
from tf_onebit._framework_internals.tf_variables import copies_of
from tf_onebit._shares import Group
from tf_onebit.collectives.engine import Engine, ProcessEngine
from tf_onebit.collectives.ordered_sum import added_in_order
from tf_onebit.distribute.replicas import regrouped


class DeviceGroups(Group):
    """Division of the devices of each process into groups, each of which holds one model.

    TensorFlow's replicas are the members here. A group is one replica of the model, with one batch
    for all members.

    Args:
        strategy: strategy of this package.
        devices: list of the names of this process' devices. Each `members` of them form a group.
        engines: list of one `Engine` for each member, which connects it with its peers.
    """

    number = 0  # the strategy divides the data
    processes = 1

    def __init__(self, strategy, devices, engines):
        self.strategy = strategy
        self.members = len(engines)
        self._devices = devices
        self.job = engines[0]
        self.within = _Members(strategy, devices, self.members)
        self.between = _Peers(engines)

    def __repr__(self):
        name, count = type(self.strategy).__name__, len(self._devices) // self.members
        return f"<groups of a {name}: {count} of {self.members} devices in each process>"

    @property
    def member(self):
        """Number of the member whose computation is being traced, or 0 outside of replicas."""
        if self.within.replica_context is None:
            return 0
        return get_current_replica_id_as_int() % self.members

    def place_of_parts(self):
        return self.strategy.scope()

    def parts_of(self, whole, axis):
        parts = tf.split(whole, self.members, axis)
        return [parts[index % self.members] for index in range(len(self._devices))]

    def whole_of(self, variable, axis):
        return tf.concat(copies_of(variable)[: self.members], axis)

    def share_values(self, weights, others):
        pass  # the strategy has made all copies of a variable the same

    def together(self, call, tells_failure=False):
        return contextlib.nullcontext()  # one process has all members


class _Members(ProcessEngine):
    """Engine of the members of a group, for use within a replica.

    All replicas of the process run one after another, and meet in each request.

    Args:
        strategy, devices: see `DeviceGroups`.
        members: number of members of a group.
    """

    def __init__(self, strategy, devices, members):
        self.world_size = members
        self._strategy = strategy
        self._devices = devices

    @property
    def replica_context(self):
        """The strategy's replica context, or None outside of its replicas."""
        context = tf.distribute.get_replica_context()
        return None if context is None or context.strategy is not self._strategy else context

    def _all_to_all(self, tensor, name):
        def received(tensors, member):
            return [tf.stack([one[member] for (one,) in tensors])]

        return self._merged(received, [tensor])[0]

    def _all_gather(self, request):
        def joined(tensors, member):
            return [tf.concat([one for (one,) in tensors], axis=0)]

        return self._merged(joined, [request.tensor])[0]

    def _all_reduce(self, request):
        def sums(tensors, member):
            return [added_in_order(terms) for terms in zip(*tensors, strict=True)]

        return self._merged(sums, list(request.tensors))

    def _merged(self, function, tensors):
        """Calls a function of the tensors of all members, once for each of them, on its device.

        Args:
            function: function of the members' lists of tensors, and of the number of a member. It
                returns a list of tensors.
            tensors: list of tensors of this member.
        """
        context = self.replica_context
        if context is None:
            if is_in_symbolic_call():  # only shapes matter
                return function([tensors] * self.world_size, 0)
            raise ValueError(
                "The members of a group compute the outputs of a split model together, in the "
                "replicas of their strategy. Received: a call of the model outside of them. Use "
                "model.predict, or strategy.run(model, args=(x,))."
            )

        def merged(strategy, tensors):
            columns = [self._of_devices(tensor) for tensor in tensors]
            rows = [list(row) for row in zip(*columns, strict=True)]
            results = []
            for index, device in enumerate(self._devices):
                member = index % self.world_size
                with tf.device(device):
                    group = rows[index - member : index - member + self.world_size]
                    results.append(function(group, member))
            return regrouped(results)

        return context.merge_call(merged, (tensors,))

    def _of_devices(self, tensor):
        if isinstance(tensor, tf.distribute.DistributedValues):
            return self._strategy.experimental_local_results(tensor)
        return [tensor] * len(self._devices)  # all members have passed the same object


class _Peers(Engine):
    """Engine of the workers that exchange gradients, for each member of a group with its peers.

    Generators are in the order of the devices of this process.

    Args:
        engines: list of one `Engine` for each member.
    """

    def __init__(self, engines):
        self._engines = engines
        self.world_size = engines[0].world_size
        self.whereabouts = engines[0].whereabouts
        self.ranks = [
            rank for ranks in zip(*(e.ranks for e in engines), strict=True) for rank in ranks
        ]

    @property
    def members(self):
        return self._engines[0].members

    def run(self, generators):
        generators = list(generators)
        results = [None] * len(generators)
        for member, engine in enumerate(self._engines):
            of_member = slice(member, None, len(self._engines))
            results[of_member] = engine.run(generators[of_member])
        return results

    def place(self, index):
        group, member = divmod(index, len(self._engines))
        return self._engines[member].place(group)
