"""HorovodEngine: Horovod's collectives, with one process per worker."""

import atexit
import contextlib
import functools
import http.client
import math
import os
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from tf_onebit._framework_internals.tf_variables import on_device, plain_variables
from tf_onebit.collectives.engine import Engine, ProcessEngine
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.collectives.ordered_sum import ordered_sum
from tf_onebit.collectives.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Exchanging,
    T,
)
from tf_onebit.collectives.whereabouts import Board, Whereabouts
from tf_onebit.collectives.wire_types import from_wire, to_wire

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 0.5
_SECONDS_TO_ANSWER = 10
# Environment variable with the number of seconds that workers wait for each other.
STALL_LIMIT = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
_RENDEZVOUS = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"

# The types that all of Horovod's collectives carry: no bfloat16.
_CARRIED = frozenset(
    [tf.float16, tf.float32, tf.float64, tf.uint8, tf.int8, tf.int32, tf.int64],
)


class HorovodEngine(ProcessEngine):
    """Engine of one worker per process, connected by Horovod.

    Horovod matches collectives by name, so a name may be in use only once at a time. An exchange
    that runs several times in a graph uses the same names. So each run waits for the one before.

    Args:
        process_set: set of the workers, which includes this process. Default: all of the job.
        device: name of the device that carries messages. Default: Horovod's choice.
    """

    def __init__(self, process_set: hvd.ProcessSet | None = None, device: str = "") -> None:
        self._process_set = process_set
        self._device = device or None
        self._turn: tf.Variable | None = None

    @property
    def whereabouts(self) -> Whereabouts:  # type: ignore[override]  # Horovod knows it
        return _whereabouts(() if self._process_set is None else tuple(self.members))

    def run(self, generators: Iterable[Exchanging[T]]) -> list[T]:
        if tf.executing_eagerly():
            return super().run(generators)
        if self._turn is None:
            with tf.init_scope(), plain_variables("CPU:0"):
                self._turn = tf.Variable(0, trainable=False)
        # TensorFlow runs the ops that change a variable in program order, across functions and
        # branches. So a run begins only after the run traced before it has ended.
        with tf.control_dependencies([self._turn.assign_add(1)]):
            results = super().run(generators)
        answers = tf.nest.flatten(results, expand_composites=True)
        with tf.control_dependencies([answer for answer in answers if tf.is_tensor(answer)]):
            self._turn.assign_add(-1)
        return results

    @property
    def members(self) -> Sequence[int]:
        return range(hvd.size()) if self._process_set is None else self._process_set.ranks

    @property
    def world_size(self) -> int:  # type: ignore[override]  # Horovod knows it
        return len(self.members)

    @property
    def ranks(self) -> list[int]:  # type: ignore[override]  # Horovod knows it
        return [self.members.index(hvd.rank())]

    def between_nodes(self) -> Engine:
        """Returns the engine of the workers at this worker's place in all nodes.

        It answers requests `Within` the node, too. All workers call it. There are several nodes,
        each of several workers.

        Raises:
            ValueError: if nodes have different numbers of workers.
        """
        node, between = self.divided(None)
        between.node = node
        return between

    def divided(self, members: int | None) -> tuple[Engine, Engine]:
        """Divides the workers into groups of consecutive ranks. All workers call it.

        Args:
            members: number of workers in a group, or None for those of a node.

        Returns:
            Two engines: of the group of this worker, and of the workers at its place in all groups.

        Raises:
            ValueError: if groups or nodes would have different sizes.
        """
        ranks = range(self.world_size)
        groups = (
            self.nodes() if members is None else [ranks[i:][:members] for i in ranks[::members]]
        )
        sizes = [members or len(groups[0]), *map(len, groups)]
        if len(set(sizes)) > 1:
            raise ValueError(
                "All groups must have the same number of workers. Received: "
                f"{self.world_size} workers, in groups of {', '.join(map(str, set(sizes)))}. Start "
                "a number of workers that is a multiple of the size of a group."
            )
        # All workers must create all sets, in the same order.
        within = _engine_of_own(groups, self._device)
        return within, _engine_of_own(list(zip(*groups, strict=True)), self._device)

    def by_node(self) -> tuple["HorovodEngine", "_BetweenNodes"]:
        """Returns two engines: of the workers on this node, and of the nodes as workers."""
        nodes = self.nodes()
        within = [HorovodEngine(_process_set(node)) for node in nodes]
        leaders = _process_set(tuple(node[0] for node in nodes))
        mine = next(i for i, node in enumerate(nodes) if hvd.rank() in node)
        return within[mine], _BetweenNodes(within[mine], leaders, mine, len(nodes))

    def nodes(self) -> list[tuple[int, ...]]:
        """Returns the ranks on each node: list of tuples of consecutive numbers."""
        request = AllGather(tf.constant([hvd.local_rank()]), "tf_onebit/nodes")
        local_ranks = self.run_one(_as_list(request))[0].numpy().tolist()
        nodes: list[list[int]] = []
        for rank, local_rank in enumerate(local_ranks):
            if local_rank == 0:
                nodes.append([])
            if not nodes or local_rank != len(nodes[-1]):
                raise ValueError(
                    "The ranks of a node must be consecutive, from local rank 0. Received: the "
                    f"local ranks {local_ranks}. Have Horovod place processes node by node."
                )
            nodes[-1].append(rank)
        return [tuple(node) for node in nodes]

    def _all_to_all(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._carry(hvd.alltoall, tensor, name)

    def _all_gather(self, request: AllGather) -> tf.Tensor:
        return self._carry(hvd.allgather, request.tensor, request.name)

    def _all_reduce(self, request: AllReduce) -> list[tf.Tensor]:
        # Horovod fuses the tensors that are ready, and so may add in another order in each run.
        # And it cannot add values that travel as another type.
        dtypes = {tensor.dtype for tensor in request.tensors}
        floating = any(dtype.is_floating for dtype in dtypes)
        if not dtypes <= _CARRIED or (self.world_size > 2 and floating):
            return self.run_one(ordered_sum(request, self.world_size))
        options = {"op": hvd.Sum, "postscale_factor": request.scale}
        return [
            self._carry(hvd.allreduce, tensor, f"{request.name}/{i}", **options)
            for i, tensor in enumerate(request.tensors)
        ]

    def _broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor:
        return self._carry(hvd.broadcast, tensor, name, root_rank=self.members[root])

    def _carry(
        self,
        collective: Callable[..., tf.Tensor],
        tensor: tf.Tensor,
        name: str,
        **options: Any,
    ) -> tf.Tensor:
        # The scope is ignored: Keras numbers the scopes of optimizers, and workers may have created
        # different numbers of them. Horovod then cuts a name after its last slash, so names must
        # have none.
        options |= {"name": name.replace("/", "."), "ignore_name_scope": True}
        if self._process_set is not None:
            options["process_set"] = self._process_set
        with on_device(self._device):
            carried = collective(to_wire(tensor, _CARRIED), **options)
        return from_wire(carried, tensor.dtype)


class _BetweenNodes(ProcessEngine):
    """Engine of a job's nodes, each one worker. First processes communicate for their nodes.

    Every process of a node runs the same generator with the same state, so that all keep it.
    """

    def __init__(
        self, within: HorovodEngine, leaders: hvd.ProcessSet, node: int, count: int
    ) -> None:
        self.world_size = count
        self.ranks = [node]
        self._within = within
        self._leaders = HorovodEngine(leaders) if hvd.rank() in leaders.ranks else None

    def _all_to_all(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._forwarded(AllToAll(tensor, name), [tensor])[0]

    def _all_gather(self, request: AllGather) -> tf.Tensor:
        tensor = request.tensor
        if request.uneven:
            raise NotImplementedError(
                "All nodes must exchange tensors of the same shape. Received: a request for an "
                f"uneven AllGather, {request.name!r}."
            )
        shape = tf.concat([[self.world_size * tf.shape(tensor)[0]], tf.shape(tensor)[1:]], axis=0)
        return self._forwarded(request, [tf.zeros(shape, tensor.dtype)])[0]

    def _all_reduce(self, request: AllReduce) -> list[tf.Tensor]:
        return self._forwarded(request, request.tensors)

    def _broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor:
        return self._forwarded(Broadcast([tensor], root, name), [tensor])[0]

    def _forwarded(self, request: Collective, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the leaders' answer to a request, broadcast to all processes of this node.

        Args:
            request: the request.
            like: list of tensors with the answer's shapes and dtypes.
        """
        if self._leaders is not None:
            answer = self._leaders.run_one(_as_list(request))
        else:
            # Constants would not do. TensorFlow would run their collectives while it optimizes the
            # graph, and merge those with the same constant, unlike on the first process.
            answer = [tf.raw_ops.Empty(shape=tf.shape(t), dtype=t.dtype) for t in like]
        if self._within.world_size == 1:
            return answer
        return self._within.run_one(_as_list(Broadcast(answer, 0, f"{request.name}/told")))


def _engine_of_own(sets: Sequence[Sequence[int]], device: str | None) -> Engine:
    """Returns the engine of the set of ranks that has this worker. All workers call it."""
    if len(sets[0]) == 1:
        return LockstepEngine([None])  # needs no process sets
    engines = [HorovodEngine(_process_set(tuple(ranks)), device or "") for ranks in sets]
    return next(engine for engine in engines if hvd.rank() in engine.members)


def _as_list(request: Collective) -> Exchanging[list[tf.Tensor]]:
    """Generator: makes one request, and returns its answer as a list of tensors."""
    answer = yield request
    return answer if isinstance(request, AllReduce | Broadcast) else [answer]


def run(generator: Exchanging[T]) -> T:
    """Runs `HorovodEngine().run_one(generator)`."""
    return HorovodEngine().run_one(generator)


def meet(generator: Exchanging[T]) -> T:
    """Runs `HorovodEngine().meet` for the generator of this worker."""
    return HorovodEngine().meet([generator])[0]


class _RendezvousBoard(Board):
    """Board in the launcher of a job whose processes find each other by Gloo.

    Args:
        address, port: those of the launcher.
        ranks: ranks of the processes that share the board, or none for all of the job.
    """

    def __init__(self, address: str, port: str, ranks: tuple[int, ...]) -> None:
        self._folder = f"http://{address}:{port}/{'_'.join(['tf_onebit', *map(str, ranks)])}"
        # No proxy, as in Horovod's own requests.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def leave(self, key: str, text: str) -> None:
        self._ask("PUT", key, text.encode())

    def read(self, key: str, seconds: float = 0.0) -> str | None:
        deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS
        while (text := self._ask("GET", key)) is None and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return None if text is None else text.decode()

    def remove(self, key: str) -> None:
        with contextlib.suppress(ConnectionError):
            self._ask("DELETE", key)

    def _ask(self, method: str, key: str, data: bytes | None = None) -> bytes | None:
        """Returns the answer of the launcher, or None if there is no such note."""
        url = f"{self._folder}/{key.replace('/', '.')}"
        request = urllib.request.Request(url, data, method=method)
        try:
            with self._opener.open(request, timeout=_SECONDS_TO_ANSWER) as response:
                return response.read()
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "code", None) == http.HTTPStatus.NOT_FOUND:
                return None
            raise ConnectionError(f"The launcher of the job does not answer: {error}") from error


@functools.cache
def _whereabouts(ranks: tuple[int, ...]) -> Whereabouts:
    address, port = map(os.environ.get, _RENDEZVOUS)
    board = _RendezvousBoard(address, port, ranks) if address and port else None
    members = ranks or range(hvd.size())
    count = len(members) if board else 1
    whereabouts = Whereabouts(board, members.index(hvd.rank()), count, members)
    seconds = float(os.environ.get(STALL_LIMIT) or 0)
    whereabouts.seconds = seconds or math.inf
    atexit.register(whereabouts.exit)
    return whereabouts


@functools.cache
def _process_set(ranks: tuple[int, ...]) -> hvd.ProcessSet:
    if len(ranks) == hvd.size():
        return hvd.global_process_set
    try:
        return hvd.add_process_set(list(ranks))
    except ValueError as error:
        if "duplicate" in str(error):
            raise ValueError(
                "Groups of workers make their own process sets, and Horovod allows no two of the "
                f"same ranks. Received: a set of the ranks {list(ranks)}, made by the program. "
                "Remove it with hvd.remove_process_set before training."
            ) from error
        if "DYNAMIC" not in str(error):
            raise
        raise ValueError(
            "Groups of workers need dynamic process sets of Horovod. Received: a Horovod that "
            'was initialized without them. Use hvd.init(process_sets="dynamic").'
        ) from error
