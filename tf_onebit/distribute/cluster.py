"""The cluster of a job: who belongs to it, who has come, who is alive."""

import json
import os
import re
import socket
import time

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
from tensorflow.python.distribute import multi_worker_util
from tensorflow.python.eager import context as tf_context

_POLL_SECONDS = 0.2
_SECONDS_TO_COME = 300
_SECONDS_WITHOUT_HEARTBEAT = 10


def require_valid(cluster_resolver):
    """Raises ValueError if a resolver does not describe a cluster and this worker's place in it."""
    try:
        if not isinstance(json.loads(os.environ.get("TF_CONFIG") or "{}"), dict):
            raise ValueError("it is no JSON object")
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
    elif not all(re.fullmatch(r".+:\d+", str(address)) for address in addresses):
        problem = "has addresses without a port"
    elif len(set(addresses)) < len(addresses):
        problem = "has an address twice"
    else:
        return
    raise ValueError(f"{_source(cluster_resolver)} {problem}. Received: {cluster}.{_REMEDY}")


_REMEDY = (
    ' For two workers it is {"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}, with index 1 on the second.'
)


def _source(cluster_resolver):
    if isinstance(cluster_resolver, tf.distribute.cluster_resolver.TFConfigClusterResolver):
        return f"TF_CONFIG={os.environ.get('TF_CONFIG')!r}"
    return f"The cluster of {type(cluster_resolver).__name__}"


def configure_heartbeat(cluster_resolver, timeout_seconds):
    """Sets how long workers wait for a sign of life from each other."""
    context = tf_context.context()
    if context.coordination_service is not None:
        return  # of an earlier strategy
    spec = multi_worker_util.normalize_cluster_spec(cluster_resolver.cluster_spec())
    context.configure_coordination_service(
        service_type="standalone",
        service_leader=multi_worker_util.coordination_leader(spec),
        heartbeat_timeout_in_ms=int(1000 * (timeout_seconds or _SECONDS_WITHOUT_HEARTBEAT)),
        coordinated_jobs=[
            CoordinatedJob(name=job, num_tasks=spec.num_tasks(job))
            for job in ("chief", "worker")
            if job in spec.jobs
        ],
    )


def wait_for_all(cluster_resolver, timeout_seconds):
    """Waits until every worker of the cluster has come.

    TensorFlow itself waits for an hour, and cannot be interrupted. So workers show themselves by
    listening where TensorFlow's server will listen next.

    Raises:
        OSError: if something else is listening at this worker's address.
        TimeoutError: after `timeout_seconds`, if some have not come.
    """
    timeout_seconds = timeout_seconds or _SECONDS_TO_COME
    spec = multi_worker_util.normalize_cluster_spec(cluster_resolver.cluster_spec())
    me = cluster_resolver.task_type, cluster_resolver.task_id
    addresses = {
        (job, index): spec.task_address(job, index)
        for job in spec.jobs
        for index in spec.task_indices(job)
    }
    missing = {task: address for task, address in addresses.items() if task != me}
    deadline = time.monotonic() + timeout_seconds
    with _listening(addresses[me], most=len(addresses)):
        while True:
            missing = {task: at for task, at in missing.items() if not _answers(at)}
            if not missing:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
    names = ", ".join(f"{job} {index} at {at}" for (job, index), at in missing.items())
    raise TimeoutError(
        f"All workers of the cluster must come within {timeout_seconds:g} seconds. Missing: "
        f"{names}. Start them all; where that takes longer, pass communication_options="
        "tf.distribute.experimental.CommunicationOptions(timeout_seconds=...)."
    )


def _listening(address, most):
    """A socket that takes `most` connections, though nobody accepts them."""
    port = _host_and_port(address)[1]
    dualstack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dualstack else socket.AF_INET
    try:
        return socket.create_server(
            ("", port), family=family, backlog=most, dualstack_ipv6=dualstack
        )
    except OSError as error:
        raise OSError(
            f"This worker cannot listen at its address in the cluster, {address}: "
            f"{error.strerror}. Give every worker a port that is free."
        ) from error


def _answers(address):
    try:
        socket.create_connection(_host_and_port(address), timeout=1).close()
    except OSError:
        return False
    return True


def _host_and_port(address):
    host, port = address.rsplit(":", 1)
    return host.strip("[]"), int(port)
