"""Private parts of `tf.distribute`, and the coordination service of its clusters."""

import tensorflow as tf
from tensorflow.python.distribute import multi_worker_util
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.distribute.distribute_utils import is_mirrored, regroup, select_replica
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended
from tensorflow.python.distribute.values_util import (
    get_current_replica_id_as_int,
    mark_as_unsaveable,
)
from tensorflow.python.eager import context as tf_context

__all__ = [
    # tensorflow/python/distribute/collective_all_reduce_strategy.py:334
    "CollectiveAllReduceExtended",
    "MirroredExtended",  # tensorflow/python/distribute/mirrored_strategy.py:310
    "configure_coordination_service",
    "each_replica_for",
    "get_current_replica_id_as_int",  # tensorflow/python/distribute/values_util.py:283
    "has_coordination_service",
    "is_mirrored",  # tensorflow/python/distribute/distribute_utils.py:398
    "mark_as_unsaveable",  # tensorflow/python/distribute/values_util.py:371
    "one_replica_of",
    "place_in_cluster",
    "read_key",
    "regroup",  # tensorflow/python/distribute/distribute_utils.py:58
    "remove_key",
    "select_replica",  # tensorflow/python/distribute/distribute_utils.py:157
    "write_key",
]


def each_replica_for(structure, times, total):
    """Repeats the values of each replica in a structure. Values of `total` replicas stay.

    Relies on `DistributedValues.values` (tensorflow/python/distribute/values.py:227).

    Args:
        structure: structure of values, some of them with one value per replica.
        times: number of repetitions of each value.
        total: number of replicas, and so of values, afterwards.
    """

    def repeated(values):
        return tuple(value for value in values for _ in range(times))

    return _with_replicas(structure, lambda v: v if len(v) == total else repeated(v))


def one_replica_of(structure, of):
    """Returns a structure with the first of every `of` replicas: the reverse."""
    return _with_replicas(structure, lambda values: values[::of])


def _with_replicas(structure, function):
    def changed(value):
        is_distributed = isinstance(value, tf.distribute.DistributedValues)
        if not is_distributed or isinstance(value, tf.Variable):
            return value
        return regroup(tuple(function(value.values)))

    return tf.nest.map_structure(changed, structure)


def place_in_cluster(cluster_resolver):
    """Returns the rank of this process in a cluster, and the cluster's number of workers.

    Relies on `id_in_cluster` and `worker_count`
    (tensorflow/python/distribute/multi_worker_util.py:232, 211).
    """
    spec, job = cluster_resolver.cluster_spec(), cluster_resolver.task_type
    rank = multi_worker_util.id_in_cluster(spec, job, cluster_resolver.task_id)
    return rank, multi_worker_util.worker_count(spec, job)


def has_coordination_service():
    """Tells whether a coordination service has been configured for this process.

    Relies on `Context.coordination_service` (tensorflow/python/eager/context.py:942).
    """
    return tf_context.context().coordination_service is not None


def configure_coordination_service(cluster_spec, heartbeat_timeout_seconds):
    """Configures the service that tells workers of a cluster which of them are gone.

    Relies on `Context.configure_coordination_service` (tensorflow/python/eager/context.py:903).
    `CollectiveAllReduceExtended` calls it in the same way if there is no service yet
    (tensorflow/python/distribute/collective_all_reduce_strategy.py:562).

    Args:
        cluster_spec: `tf.train.ClusterSpec`.
        heartbeat_timeout_seconds: time without a sign of life after which a worker counts as gone.
    """
    spec = multi_worker_util.normalize_cluster_spec(cluster_spec)
    # The module of these messages has another name in each version of TensorFlow. So a message that
    # holds them makes them.
    jobs = tf.compat.v1.ConfigProto().experimental.coordination_config.coordinated_job_list
    for job in ("chief", "worker"):
        if job in spec.jobs:
            jobs.add(name=job, num_tasks=spec.num_tasks(job))
    tf_context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=multi_worker_util.coordination_leader(spec),
        heartbeat_timeout_in_ms=int(1000 * heartbeat_timeout_seconds),
        coordinated_jobs=list(jobs),
    )


def write_key(key, text):
    """Writes a text to the coordination service.

    Relies on `Context.set_config_key_value` (tensorflow/python/eager/context.py:945).
    """
    tf_context.context().set_config_key_value(key, text)


def read_key(key, milliseconds):
    """Reads a text from the coordination service, and waits for it for a limited time.

    Relies on `Context.get_config_key_value` (tensorflow/python/eager/context.py:951).

    Raises:
        tf.errors.DeadlineExceededError, tf.errors.NotFoundError: if there is no text in time.
    """
    return tf_context.context().get_config_key_value(key, milliseconds)


def remove_key(key):
    """Removes a text from the coordination service.

    Relies on `Context.delete_config_key_value` (tensorflow/python/eager/context.py:960).
    """
    tf_context.context().delete_config_key_value(key)
