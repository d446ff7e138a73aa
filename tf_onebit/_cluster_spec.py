"""Checks of a cluster specification: jobs, addresses, and the task of this process."""

import json
import os
import re

import tensorflow as tf

# Job and index.
_Task = tuple[str, int]
_REMEDY = (
    ' For two workers it is {"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}, with index 1 on the second.'
)


def require_valid(cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Raises ValueError if a resolver does not describe a cluster and this worker's place in it."""
    try:
        if not isinstance(json.loads(os.environ.get("TF_CONFIG") or "{}"), dict):
            raise ValueError("it is not a JSON object")
        cluster = cluster_resolver.cluster_spec().as_dict()
        job, index = cluster_resolver.task_type, cluster_resolver.task_id
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(
            f"{_source(cluster_resolver)} cannot be read: {error}.{_REMEDY}"
        ) from error
    if not cluster:
        return
    addresses = [address for tasks in cluster.values() for address in tasks]
    places = [f"{job} {index}" for job, tasks in cluster.items() for index in range(len(tasks))]
    if job not in ("chief", "worker") or not set(cluster) <= {"chief", "worker"}:
        problem = "has jobs other than chief and worker, or none for this process"
    elif f"{job} {index}" not in places:
        problem = f"gives this process the task {job} {index}, but has only {', '.join(places)}"
    elif not all(map(_has_port, addresses)):
        problem = "has addresses without a port from 1 to 65535"
    elif len(set(addresses)) < len(addresses):
        problem = "has an address twice"
    else:
        return
    raise ValueError(f"{_source(cluster_resolver)} {problem}. Received: {cluster}.{_REMEDY}")


def _has_port(address: object) -> bool:
    found = re.fullmatch(r".+:(\d+)", str(address))
    return found is not None and 1 <= int(found[1]) <= 65535


def _source(cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver) -> str:
    if isinstance(cluster_resolver, tf.distribute.cluster_resolver.TFConfigClusterResolver):
        return f"TF_CONFIG={os.environ.get('TF_CONFIG')!r}"
    return f"The cluster of {type(cluster_resolver).__name__}"


def addresses_of(
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver,
) -> tuple[dict[_Task, str], _Task]:
    """Returns the addresses of a valid cluster, and the task of this process.

    Returns:
        Dictionary from tasks, (job, index), to `host:port`; and the task of this process.
    """
    spec = cluster_resolver.cluster_spec()
    addresses = {
        (job, index): spec.task_address(job, index)
        for job in spec.jobs
        for index in spec.task_indices(job)
    }
    return addresses, (cluster_resolver.task_type, cluster_resolver.task_id)


def host_and_port(address: str) -> tuple[str, int]:
    """Splits `host:port`, in which an IPv6 address is in brackets.

    >>> host_and_port("[::1]:2222")
    ('::1', 2222)
    """
    host, port = address.rsplit(":", 1)
    return host.strip("[]"), int(port)
