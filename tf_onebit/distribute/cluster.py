"""The cluster of a job: its workers' arrival and signs of life."""

import functools
import os
import socket
import time
import warnings

import tensorflow as tf

from tf_onebit._cluster_spec import addresses_of, host_and_port
from tf_onebit._framework_internals.tf_strategies import (
    configure_coordination_service,
    has_coordination_service,
)

_POLL_SECONDS = 0.2
SECONDS_TO_COME = 300
# A worker without a heartbeat for half of this time ends the job. TCP retries after intervals that
# double from 0.2 seconds: after a pause of 30 seconds, at the latest 51 seconds from the first try.
_SECONDS_WITHOUT_HEARTBEAT = 120


def resolver_of_environment():
    """Returns the resolver of TF_CONFIG.

    If that is not set, it warns once, and tells how to start several workers.
    """
    if not os.environ.get("TF_CONFIG"):
        _warn_of_one_worker()
    return tf.distribute.cluster_resolver.TFConfigClusterResolver()


@functools.cache
def _warn_of_one_worker():
    warnings.warn(
        "This process is the only worker of its strategy: TF_CONFIG is not set. To start several "
        "on this machine: tf-onebit launch -np 2 -- python train.py. On several hosts, set "
        "TF_CONFIG on each.",
        stacklevel=4,
    )


def configure_heartbeat(cluster_resolver, timeout_seconds):
    """Sets how long workers wait for a sign of life from each other."""
    if not has_coordination_service():  # else an earlier strategy has set it
        seconds = timeout_seconds or _SECONDS_WITHOUT_HEARTBEAT
        configure_coordination_service(cluster_resolver.cluster_spec(), seconds)


def wait_for_all(cluster_resolver, timeout_seconds):
    """Waits until every worker of the cluster has started.

    TensorFlow itself waits for an hour, and cannot be interrupted. So before its server starts,
    each worker listens at the server's address, and the others connect to it.

    Raises:
        OSError: if another program listens at this worker's address.
        TimeoutError: after `timeout_seconds`, if some workers have not started.
    """
    timeout_seconds = timeout_seconds or SECONDS_TO_COME
    addresses, me = addresses_of(cluster_resolver)
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
        f"All workers of the cluster must start within {timeout_seconds:g} seconds. Missing: "
        f"{names}. Start them all. If that takes longer, pass "
        "communication_options=tf.distribute.experimental.CommunicationOptions(timeout_seconds=...)."
    )


def _listening(address, most):
    """Opens a socket that holds up to `most` connections without accepting them."""
    port = host_and_port(address)[1]
    dualstack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dualstack else socket.AF_INET
    try:
        return socket.create_server(
            ("", port), family=family, backlog=most, dualstack_ipv6=dualstack
        )
    except OSError as error:
        raise OSError(
            f"This worker cannot listen at its address in the cluster, {address}: "
            f"{error.strerror}. Give every worker a free port."
        ) from error


def _answers(address):
    try:
        socket.create_connection(host_and_port(address), timeout=1).close()
    except OSError:
        return False
    return True
