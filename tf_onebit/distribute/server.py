"""TensorFlow's server in a worker: what it does to signals, and to whom it listens how long."""

import contextlib
import ctypes
import ipaddress
import os
import signal
import socket
import stat
import threading
import time

from tf_onebit.cluster_spec import addresses_of, host_and_port

# More than a `struct sigaction` has anywhere.
_ACTION_BYTES = 1024
# From one look at the sockets to the next: once the server listens, and before.
_TENDING_SECONDS, _SECONDS_TO_LISTEN = 1.0, 0.02


@contextlib.contextmanager
def sigterm_as_it_was():
    """Keeps what this process does when it is asked to end.

    TensorFlow's server catches SIGTERM, to tell others that ask for it, and the worker would go on.
    """
    libc = ctypes.CDLL(None)
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    libc.sigaction(signal.SIGTERM, None, action)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGTERM, action, None)


def tend_server(cluster_resolver):
    """Has this worker's server do, from now on, what it has no options for.

    * Connections outlast a pause of the link or of a worker: gRPC gives up one whose message has
      not arrived within 20 seconds. Heartbeats tell who is gone.
    * Where a cluster is on this machine alone, others cannot connect. TensorFlow listens on all
      interfaces, and does what anybody asks who connects.
    """
    addresses, me = addresses_of(cluster_resolver)
    is_local = all(_is_loopback(host_and_port(address)[0]) for address in addresses.values())
    _, port = host_and_port(addresses[me])

    def tend():
        while True:
            has_any = False
            for one in _sockets_at(port):
                has_any = True
                with contextlib.suppress(OSError):
                    _tend(one, is_local)
            time.sleep(_TENDING_SECONDS if has_any else _SECONDS_TO_LISTEN)

    threading.Thread(target=tend, daemon=True).start()


def _tend(one, is_local):
    if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
    elif is_local:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")


def _is_loopback(host):
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _sockets_at(port):
    """The sockets of this process at a port of its own: iterator. Each is closed after its turn."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            # What is closed meanwhile stays the same here.
            copy = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
        with copy, contextlib.suppress(OSError):
            is_of_internet = copy.family in (socket.AF_INET, socket.AF_INET6)
            if is_of_internet and copy.getsockname()[1] == port:
                yield copy
