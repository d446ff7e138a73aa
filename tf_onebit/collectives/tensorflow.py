"""TensorFlowEngine: TensorFlow's own collectives, with one process per worker."""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager

import tensorflow as tf

from tf_onebit._framework_internals.tf_variables import plain_variables
from tf_onebit.collectives.engine import ProcessEngine
from tf_onebit.collectives.ordered_sum import ordered_sum
from tf_onebit.collectives.requests import AllGather, AllReduce, Exchanging, T
from tf_onebit.collectives.whereabouts import Whereabouts
from tf_onebit.collectives.wire_types import from_wire, to_wire

# The types that all of TensorFlow's collectives carry, with NCCL and on CPUs: no bfloat16, no
# bytes.
CARRIED = frozenset([tf.float16, tf.float32, tf.float64, tf.int32, tf.int64])

# tf.distribute counts its own instance keys from 100 up, in the same groups.
_FIRST_KEY = 1 << 29
# Tensors of unknown length are padded to one of these many lengths per factor of two.
_LENGTHS_PER_OCTAVE = 4
# Two keys for each length; a tensor has fewer than 2**32 rows.
_KEYS_PER_NAME = 2 * 32 * _LENGTHS_PER_OCTAVE


class TensorFlowEngine(ProcessEngine):
    """Engine of one worker per process, connected by the collectives of a TensorFlow cluster.

    Each collective, known by its name and shape, has two permanent instance keys that take turns.
    It uses them in every step and every trace. So several steps may run in one loop of a graph,
    and no keys accumulate. With one key the fastest worker could use it again while others still
    wait for it. With two, all workers have finished with the first before its next use.

    Each collective has its own ordering token. Without a token, or with a common one, collectives
    run one after another in the order of tracing, and buckets cannot overlap. NCCL needs that
    order, which is the same on all workers. A token lies on the worker's device, because a
    collective runs on the device of its token.

    Args:
        rank: rank of this worker.
        world_size: number of workers.
        device: name of this worker's device that takes part.
        group_key: key of the group of these devices, as in `tf.distribute`.
        implementation: "auto", "ring" or "nccl".
        whereabouts: `Whereabouts` of this process. Default: it tells no other process.

    Raises:
        RuntimeError: if the workers' ranks are not all different.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        device: str,
        group_key: int,
        implementation: str = "auto",
        whereabouts: Whereabouts | None = None,
    ) -> None:
        self.world_size = world_size
        if whereabouts is not None:
            self.whereabouts = whereabouts
        self.ranks = [rank]
        self._device = device
        self._group = {
            "group_size": world_size,
            "group_key": group_key,
            "communication_hint": implementation,
        }
        self._common_token = None
        self._needs_order = implementation == "nccl"
        # First key, number of uses and token, by name, type and shape.
        self._channels: dict[tuple[str, tf.DType, str], tuple[int, tf.Variable, tf.Variable]] = {}
        self._first_keys = itertools.count(_FIRST_KEY, _KEYS_PER_NAME)
        self._rank_at = self._place_of = list(range(world_size))
        if world_size > 1:
            self._find_places()

    def _find_places(self) -> None:
        """Finds the place of each rank in TensorFlow's order of devices.

        TensorFlow sorts the names of devices as text: task 10 comes before task 2.
        """
        with tf.init_scope():
            rank_at = self._gather_rows(tf.constant(self.ranks), "tf_onebit/places").numpy().ravel()
        if sorted(rank_at) != list(range(self.world_size)):
            raise RuntimeError(
                f"Each of {self.world_size} workers must have a rank of its own. "
                f"Received: ranks {rank_at.tolist()}. Give every worker another task."
            )
        self._rank_at = rank_at.tolist()
        self._place_of = [self._rank_at.index(rank) for rank in range(self.world_size)]

    def place(self, index: int) -> AbstractContextManager[None]:
        return plain_variables(self._device)

    def run_one(self, generator: Exchanging[T]) -> T:
        with tf.device(self._device):
            return super().run_one(generator)

    def _all_reduce(self, request: AllReduce) -> list[tf.Tensor]:
        return self.run_one(ordered_sum(request, self.world_size))

    def _all_to_all(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        if tensor.shape.num_elements() == 0:
            return tensor
        tensor = self._reordered(tensor, self._rank_at)
        received = self._carry(tf.raw_ops.CollectiveAllToAllV2, tensor, name)
        return self._reordered(tf.ensure_shape(received, tensor.shape), self._place_of)

    def _all_gather(self, request: AllGather) -> tf.Tensor:
        if request.uneven:
            return self._all_gather_uneven(request.tensor, request.name)
        rows = self._gather_rows(request.tensor, request.name, request.variant)
        joined = tf.reshape(rows, tf.concat([[-1], tf.shape(request.tensor)[1:]], axis=0))
        return tf.ensure_shape(joined, [None, *request.tensor.shape[1:]])

    def _all_gather_uneven(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        length = tf.shape(tensor)[0]
        lengths = self._gather_rows(length, f"{name}/lengths")
        # A key carries tensors of one shape only, so tensors are padded to one of a few lengths.
        longest = tf.cast(tf.maximum(tf.reduce_max(lengths), 1), tf.float64)
        octaves = tf.math.log(longest) / tf.math.log(tf.constant(2.0, tf.float64))
        step = tf.math.ceil(_LENGTHS_PER_OCTAVE * octaves)
        padded_length = tf.cast(tf.math.ceil(2.0 ** (step / _LENGTHS_PER_OCTAVE)), tf.int32)
        padding = [[0, padded_length - length]] + [[0, 0]] * (tensor.shape.rank - 1)
        rows = self._gather_rows(tf.pad(tensor, padding), name, tf.cast(step, tf.int32))
        return tf.boolean_mask(rows, tf.sequence_mask(lengths, padded_length))

    def _gather_rows(self, tensor: tf.Tensor, name: str, variant: tf.Tensor | int = 0) -> tf.Tensor:
        """Returns the tensors of all workers, stacked in the order of ranks."""
        if tensor.shape.num_elements() == 0:
            # TensorFlow would crash. All workers have this shape, so all skip the collective.
            return tf.zeros([self.world_size, *tensor.shape], tensor.dtype)
        rows = self._carry(tf.raw_ops.CollectiveGatherV2, tensor[tf.newaxis], name, variant)
        rows = tf.ensure_shape(rows, [self.world_size, *tensor.shape])
        return self._reordered(rows, self._place_of)

    def _broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor:
        wire = to_wire(tensor, CARRIED)
        key, _ = self._next_key(name, tensor)
        if self.ranks == [root]:
            sent = tf.raw_ops.CollectiveBcastSendV2(input=wire, instance_key=key, **self._group)
        else:
            sent = tf.raw_ops.CollectiveBcastRecvV2(
                shape=tf.shape(wire), T=wire.dtype, instance_key=key, **self._group
            )
        # Otherwise the sender would not wait, and could use the same key again too early.
        with tf.control_dependencies([sent]):
            all_have_it = self._gather_rows(tf.constant(0), f"{name}/received")
        with tf.control_dependencies([all_have_it]):
            return tf.ensure_shape(from_wire(sent, tensor.dtype), tensor.shape)

    def _reordered(self, rows: tf.Tensor, order: list[int]) -> tf.Tensor:
        return rows if order == sorted(order) else tf.gather(rows, order)

    def _carry(
        self,
        collective: Callable[..., tf.Tensor],
        tensor: tf.Tensor,
        name: str,
        variant: tf.Tensor | int = 0,
    ) -> tf.Tensor:
        key, token = self._next_key(name, tensor)
        carried = collective(
            input=to_wire(tensor, CARRIED),
            instance_key=key + 2 * variant,
            ordering_token=[token.handle],
            **self._group,
        )
        return from_wire(carried, tensor.dtype)

    def _next_key(self, name: str, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Variable]:
        """Returns the instance key for the next use of a collective, and its ordering token.

        A key carries tensors of one type and shape only.
        """
        channel = name, tensor.dtype, str(tensor.shape)
        if channel not in self._channels:
            with tf.init_scope(), plain_variables("CPU:0"):
                uses = tf.Variable(0, trainable=False)
            self._channels[channel] = next(self._first_keys), uses, self._new_token()
        first_key, uses, token = self._channels[channel]
        # A step that runs out of data must not take a turn.
        with tf.control_dependencies([tensor]):
            return first_key + uses.assign_add(1) % 2, token

    def _new_token(self) -> tf.Variable:
        if self._common_token is None or not self._needs_order:
            with tf.init_scope(), plain_variables(self._device):
                self._common_token = tf.Variable(0.0, trainable=False)
        return self._common_token
