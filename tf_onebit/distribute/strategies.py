"""`MirroredStrategy` and `MultiWorkerMirroredStrategy` with an exchange."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from tf_onebit._cluster_spec import require_valid
from tf_onebit._framework_internals.keras_optimizers import calling_optimizer
from tf_onebit._framework_internals.tf_functions import CallNumbers
from tf_onebit._framework_internals.tf_strategies import (
    CollectiveAllReduceExtended,
    MirroredExtended,
    each_replica_for,
    one_replica_of,
    select_replica,
)
from tf_onebit._training.building import RequestedExchange, resolve_exchange
from tf_onebit._training.model_optimizers import flush_where_shown, require_no_xla
from tf_onebit._validation import is_whole
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.collectives.requests import AllGather, one_request
from tf_onebit.collectives.tensorflow import CARRIED, TensorFlowEngine
from tf_onebit.collectives.wire_types import from_wire, to_wire
from tf_onebit.distribute.begin_of_fit import prepare
from tf_onebit.distribute.cluster import (
    SECONDS_TO_COME,
    configure_heartbeat,
    resolver_of_environment,
    wait_for_all,
)
from tf_onebit.distribute.coordination_board import whereabouts_in_cluster
from tf_onebit.distribute.functions import LiftedFunctions, is_lifted
from tf_onebit.distribute.model_groups import DeviceGroups
from tf_onebit.distribute.optimizer import adopt, require_adopted
from tf_onebit.distribute.recovery import recovering
from tf_onebit.distribute.reductions import Reducing, ReducingExtended
from tf_onebit.distribute.server import sigterm_as_it_was, tend_server
from tf_onebit.distribute.uneven_data import prepared, without_effect_of_empty_batches
from tf_onebit.exchanges.schedule import delay_of

# TensorFlow numbers the groups of every strategy from 1. It would take a second strategy's groups
# for the first one's, whose collectives had other shapes.
_first_groups = itertools.count(1000, 1000)
# For strategies of one process: workers may differ in how many they make.
_first_groups_within = itertools.count(1 << 24, 1000)


class _Exchanging(Reducing):
    """Mixin for both strategies that adds to TensorFlow's."""

    def scope(self) -> contextlib.AbstractContextManager[tf.distribute.Strategy]:
        prepare(self.extended.engine)
        return super().scope()

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Any:
        if is_lifted(fn, self.extended.worker_devices):
            if not isinstance(args, (list, tuple)):
                raise ValueError(f"args must be a list or tuple. Received: args={args!r}.")
            return self._lifted_functions.of(fn)(*args, **(kwargs or {}))
        model = getattr(fn, "__self__", None)
        if not isinstance(model, keras.Model):
            model = None
        else:
            _check_model(model, self)
        fn = without_effect_of_empty_batches(fn, model)
        return self.extended.of_replicas(super().run(fn, args, kwargs, options))

    @property
    def model_groups(self) -> Any:
        """The groups of `model_parallel` devices, for `tf_onebit.model_parallel.split`."""
        return self.extended.model_groups

    @functools.cached_property
    def _lifted_functions(self):
        return LiftedFunctions(self.run)


def _check_model(model, strategy):
    require_no_xla(model)
    require_adopted(model.optimizer, strategy)
    if delay_of(strategy.exchange):
        flush_where_shown(model)


def _number_of_devices(model_parallel):
    if not is_whole(model_parallel, 1):
        raise ValueError(
            "model_parallel must be a positive whole number of devices. Received: "
            f"model_parallel={model_parallel!r}. Use 2 for pairs."
        )
    return model_parallel


class _ExchangingExtended(ReducingExtended):
    """Mixin for the implementations of both strategies that adds to TensorFlow's.

    Attributes:
        engine: `Engine` of all workers.
        members: number of devices that hold one model together.
    """

    members = 1
    _shows_members = False

    @functools.cached_property
    def model_groups(self):
        """The `DeviceGroups` of the strategy."""
        return DeviceGroups(self._container_strategy(), self._devices, self._engines)

    def _set_members(self, members):
        if len(self._devices) % members:
            raise ValueError(
                "model_parallel must divide the number of devices of a process. Received: "
                f"model_parallel={members} for the devices {', '.join(self._devices)}."
            )
        self.members = members

    @property
    def worker_devices(self):
        # A group is one replica, with the device of its first member. TensorFlow calls functions
        # on all of them.
        return self._devices if self._shows_members else self._devices[:: self.members]

    @property
    def _num_replicas_in_sync(self):
        return len(self._devices) // self.members * self._num_workers

    @contextlib.contextmanager
    def showing_members(self):
        """Returns a context in which each member of a group is a replica for TensorFlow."""
        before, self._shows_members = self._shows_members, True
        try:
            yield
        finally:
            self._shows_members = before

    def of_replicas(self, results):
        """Returns results of all members as those of the groups: their first members'."""
        return results if self.members == 1 else one_replica_of(results, self.members)

    def _create_variable(self, next_creator, **kwargs):
        adopt(calling_optimizer())
        return super()._create_variable(next_creator, **kwargs)

    def _call_for_each_replica(self, fn, args, kwargs):
        if len(self._devices) > 1:
            if self.members > 1:
                args, kwargs = each_replica_for((args, kwargs), self.members, len(self._devices))
            with self.showing_members():
                return super()._call_for_each_replica(fn, args, kwargs)
        # TensorFlow would start a thread even for one replica. Unlike this thread, it cannot merge
        # in a branch: gradient accumulation and loss scaling would fail.
        args, kwargs = select_replica(0, (args, kwargs))
        context = _ReplicaContext(self._container_strategy(), self._id_in_cluster)
        with tf.device(self._devices[0]), context:
            return fn(*args, **kwargs)


class MirroredStrategy(_Exchanging, tf.distribute.MirroredStrategy):
    """Strategy for several devices of one process, each a worker of the exchange.

    Args:
        exchange: `tf_onebit.Exchange`, or "auto": see `tf_onebit.Auto`. Default: `FullPrecision()`.
        devices: list of device names. Default: all GPUs.
        model_parallel: number of consecutive devices that hold one model together, and are one
            worker: see `model_groups`.

    Raises:
        ValueError: if `exchange` is not an exchange, or `model_parallel` does not divide the number
            of devices. Also in the first step, if model or optimizer were made outside of the
            scope.

    Example:
        >>> import keras, tf_onebit
        >>> strategy = MirroredStrategy(tf_onebit.OneBit(), devices=["CPU:0"])
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", loss="mse")
        >>> history = model.fit(tf.ones([32, 8]), tf.ones([32, 1]), verbose=0)
    """

    def __init__(
        self,
        exchange: RequestedExchange = None,
        devices: Sequence[str] | None = None,
        model_parallel: int = 1,
    ) -> None:
        self.exchange = resolve_exchange(exchange)
        self.model_parallel = _number_of_devices(model_parallel)
        self._collective_key_base = next(_first_groups_within)
        extended = _MirroredExtended(self, devices=devices)
        tf.distribute.Strategy.__init__(self, extended)


class _MirroredExtended(_ExchangingExtended, MirroredExtended):
    def _initialize_single_worker(self, devices):
        super()._initialize_single_worker(devices)
        self._num_workers, self._id_in_cluster = 1, 0
        self._set_members(self._container_strategy().model_parallel)
        self._engines = [
            LockstepEngine(self._devices[member :: self.members]) for member in range(self.members)
        ]
        self.engine = self._engines[0]
        ((host, _),) = self._input_workers_devices
        self._input_workers_devices = ((host, self.worker_devices),)


class MultiWorkerMirroredStrategy(_Exchanging, tf.distribute.MultiWorkerMirroredStrategy):
    """Strategy for several processes, on one or many machines, each a worker of the exchange.

    A process with several devices first adds up their gradients in full precision.

    Args:
        exchange: `tf_onebit.Exchange`, or "auto": see `tf_onebit.Auto`. Default:
            `FullPrecision()`. With `tf_onebit.Local()` every worker uses its own gradients.
        cluster_resolver: `tf.distribute.cluster_resolver.ClusterResolver`. Default: the cluster
            in the environment variable TF_CONFIG; without one, this process alone.
        communication_options: `tf.distribute.experimental.CommunicationOptions`. Its
            `timeout_seconds` limits how long workers wait for each other to start (default: 300)
            and for a sign of life (default: 120). Then they end with an error.
        uneven_data: "continue" or "stop", for data that end on some workers before others.
            "continue", as in `tf.distribute`: such workers go on with empty batches until all
            data have ended. Empty batches add nothing to the gradients or, in Keras' own loops, to
            statistics. "stop": all workers stop.
        model_parallel: number of consecutive devices of a process that hold one model together,
            and are one replica: see `model_groups`.

    Raises:
        ValueError: for arguments of wrong type or value, and if TF_CONFIG describes no cluster.
            Also in the first step, if model or optimizer were made outside of the scope. In that
            step also, on all workers, if they do not train the same model in the same way.

    Example:
        >>> import keras, tf_onebit
        >>> strategy = MultiWorkerMirroredStrategy(tf_onebit.OneBit())
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", loss="mse")
        >>> history = model.fit(tf.ones([32, 8]), tf.ones([32, 1]), verbose=0)
    """

    def __init__(
        self,
        exchange: RequestedExchange = None,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
        uneven_data: Literal["continue", "stop"] = "continue",
        model_parallel: int = 1,
    ) -> None:
        self.exchange = resolve_exchange(exchange)
        self.model_parallel = _number_of_devices(model_parallel)
        if uneven_data not in ("continue", "stop"):
            raise ValueError(
                f'uneven_data must be "continue" or "stop". Received: uneven_data={uneven_data!r}.'
            )
        self.uneven_data = uneven_data
        self._collective_key_base = next(_first_groups)
        options = communication_options or tf.distribute.experimental.CommunicationOptions()
        cluster_resolver = cluster_resolver or resolver_of_environment()
        require_valid(cluster_resolver)
        try:
            extended = _MultiWorkerExtended(self, cluster_resolver, options)
        except RuntimeError as error:
            if "at program startup" not in str(error):
                raise
            raise RuntimeError(
                "A MultiWorkerMirroredStrategy must be made before TensorFlow is used. Received: "
                "a program that has already made a tensor, a variable, a dataset or a Keras "
                "object. Make the strategy first."
            ) from error
        tf.distribute.Strategy.__init__(self, extended)

    def reduce(self, reduce_op: tf.distribute.ReduceOp | str, value: Any, axis: int | None) -> Any:
        result = super().reduce(reduce_op, value, axis)
        if self.extended.counts_data and self.uneven_data == "stop":
            return tf.where(result == self.num_replicas_in_sync, result, 0)
        return result


class _MultiWorkerExtended(_ExchangingExtended, CollectiveAllReduceExtended):
    def __init__(self, container_strategy, cluster_resolver, communication_options):
        self._timeout_seconds = communication_options.timeout_seconds
        # Collectives get no timeout: each with one would leave threads behind.
        options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=communication_options.bytes_per_pack,
            implementation=communication_options.implementation,
        )
        super().__init__(container_strategy, cluster_resolver, options)

    # Whether the server of this process is running, shared by all strategies.
    _std_server_started = False
    # The coordination service checks health already.
    _enable_check_health = False

    def _experimental_distribute_dataset(self, dataset, options):
        distributed = super()._experimental_distribute_dataset(dataset, options)
        return prepared(distributed, self._container_strategy())

    def _distribute_datasets_from_function(self, dataset_fn, options):
        distributed = super()._distribute_datasets_from_function(dataset_fn, options)
        return prepared(distributed, self._container_strategy())

    def _gather_to_implementation(self, value, destinations, axis, options):
        if self._num_workers == 1:
            return super()._gather_to_implementation(value, destinations, axis, options)
        # Gathers in the order of ranks. TensorFlow orders by tasks' names, with "10" before "2".
        parts = self._container_strategy().experimental_local_results(value)
        rank = tf.convert_to_tensor(parts[0]).shape.rank
        if not -rank <= axis < rank:
            raise ValueError(
                f"Values must have the axis along which they are gathered. Received: axis={axis} "
                f"for {rank} dimensions. Give a scalar an axis: tf.expand_dims(value, 0)."
            )
        mine = tf.concat(parts, axis)
        # Swaps the axis with the first one, and back afterwards.
        order = list(range(mine.shape.rank))
        order[0], order[axis] = order[axis], order[0]
        name, run = "tf_onebit/gather", self.engine.meet
        if not tf.executing_eagerly():
            name, run = f"{name}_{self._numbers.next()}", self.engine.run
        request = AllGather(tf.transpose(mine, order), name, uneven=True)
        (gathered,) = run([one_request(request)])
        return tf.transpose(gathered, order)

    def _get_variable_creator_initial_value(self, replica_id, device, primary_var, **kwargs):
        creator = super()._get_variable_creator_initial_value
        if replica_id > 0 or self._num_workers == 1:
            return creator(replica_id, device, primary_var, **kwargs)

        # TensorFlow cannot broadcast initial values of every dtype that a variable may have.
        def initial_value():
            value = kwargs["initial_value"]
            value = value() if callable(value) else value
            value = getattr(value, "wrapped_value", value)  # an initial value from a checkpoint
            value = tf.convert_to_tensor(value, kwargs.get("dtype"))
            sent = kwargs | {"initial_value": to_wire(value, CARRIED), "dtype": None}
            return from_wire(creator(replica_id, device, primary_var, **sent)(), value.dtype)

        return initial_value

    def _initialize_local_devices(self, cluster_resolver, worker_device):
        devices, kind = super()._initialize_local_devices(cluster_resolver, worker_device)
        if kind == "CPU":
            # One logical device, unless the program has configured several.
            configured = tf.config.get_logical_device_configuration(
                *tf.config.list_physical_devices("CPU")
            )
            count = len(configured or [None])
            devices = tuple(f"{worker_device}/device:CPU:{index}" for index in range(count))
        return devices, kind

    def _initialize_local(self, cluster_resolver, devices=None):
        super()._initialize_local(cluster_resolver, devices)
        self._make_engine()

    def _initialize_multi_worker(self, cluster_resolver):
        if not tf.executing_eagerly():
            raise RuntimeError(
                "A MultiWorkerMirroredStrategy of several workers must be made in eager mode. "
                "Received: a graph of TensorFlow 1. Make it outside of graphs, without "
                "tf.compat.v1.disable_eager_execution(), and trace steps by tf.function."
            )
        configure_heartbeat(cluster_resolver, self._timeout_seconds)
        recovers = contextlib.nullcontext(False)
        if self._std_server_started:
            recovers = recovering(cluster_resolver, self._timeout_seconds or SECONDS_TO_COME)
        else:
            wait_for_all(cluster_resolver, self._timeout_seconds)
            tend_server(cluster_resolver)
        with recovers as must_recover, sigterm_as_it_was():
            # A later strategy of this process uses the same server, unless that must recover.
            self._std_server_started = self._std_server_started and not must_recover
            super()._initialize_multi_worker(cluster_resolver)
            _MultiWorkerExtended._std_server_started = True
        self._make_engine()

    def _make_engine(self):
        self._numbers = CallNumbers()
        self._set_members(self._container_strategy().model_parallel)
        whereabouts = whereabouts_in_cluster(self._id_in_cluster, self._num_workers)
        if self._timeout_seconds:
            whereabouts.seconds = self._timeout_seconds
        self._engines = [
            TensorFlowEngine(
                self._id_in_cluster,
                self._num_workers,
                device,
                self._collective_keys.get_group_key([device]),
                self._communication_options.implementation.value.lower(),
                whereabouts,
            )
            for device in self._devices[: self.members]
        ]
        self.engine = self._engines[0]


class _ReplicaContext(tf.distribute.ReplicaContext):
    def all_reduce(self, reduce_op, value, options=None):
        require_adopted(calling_optimizer(), self.strategy)
        return super().all_reduce(reduce_op, value, options)
