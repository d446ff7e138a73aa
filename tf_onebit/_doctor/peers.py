"""The report's lines about this machine among others: TF_CONFIG, and which hosts are reached."""

import concurrent.futures
import fcntl
import os
import socket
import struct
import time

import tensorflow as tf

from tf_onebit._cluster_spec import host_and_port, require_valid
from tf_onebit._doctor.fault import Fault

_CONNECT_SECONDS = 2
_SIOCGIFADDR = 0x8915


def peers_report(hosts):
    """Yields the lines about TF_CONFIG, this machine, its cluster and other hosts.

    Args:
        hosts: list of `host:port`.
    """
    workers = []
    if not os.environ.get("TF_CONFIG"):
        yield "TF_CONFIG: not set"
    else:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        try:
            require_valid(resolver)
        except ValueError as error:
            yield Fault(error)
        else:
            cluster = resolver.cluster_spec()
            workers = [task for job in cluster.jobs for task in cluster.job_tasks(job)]
            yield (
                f"TF_CONFIG: this process is {resolver.task_type} {resolver.task_id} "
                f"of {len(workers)}"
                if workers
                else "TF_CONFIG: no cluster, one worker"
            )
    yield f"This machine: {socket.gethostname()}, {', '.join(interfaces())}"
    yield from reach_all(dict.fromkeys([*workers, *hosts]))


def interfaces():
    """Yields the network interfaces with their IPv4 addresses, each as "name address"."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no IPv4 address
            yield f"{name} {socket.inet_ntoa(answer[20:24])}"


def reach_all(addresses):
    """Tries to connect to all `addresses` (`host:port`) at once, and yields a line for each."""
    if not addresses:
        return
    with concurrent.futures.ThreadPoolExecutor(len(addresses)) as threads:
        yield from threads.map(reach, addresses)


def reach(address):
    """Tries to connect to `host:port`, and returns a line about it, or a `Fault`."""
    host, port = host_and_port(address)
    start = time.monotonic()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:  # UnicodeError: not a possible name
        why = getattr(error, "strerror", error)
        return Fault(
            f"Not reached: {address}: no address is found for {host!r} ({why}). Correct the name, "
            "add it to DNS or to /etc/hosts on this machine, or use an IP address"
        )
    ips = ", ".join(dict.fromkeys(sockaddr[0] for *_, sockaddr in found))
    name = f"{address} is {ips}, found in {_ms_since(start)}"
    start = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return (
            f"{name}; refused in {_ms_since(start)}: the host is reached, but no program listens "
            "there yet"
        )
    except TimeoutError:
        return Fault(
            f"Not reached: {name}; no answer within {_CONNECT_SECONDS} s. Is the host up, and do "
            f"all firewalls on the way allow TCP port {port}?"
        )
    except OSError as error:
        return Fault(
            f"Not reached: {name}; {error.strerror}. Is the host in a network that this machine "
            "can reach through one of its interfaces?"
        )
    return f"{name}; connected in {_ms_since(start)}"


def _ms_since(start):
    return f"{1000 * (time.monotonic() - start):.1f} ms"
