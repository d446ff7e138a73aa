"""TensorFlow's server in a worker: its effect on signals, and its connections."""

import contextlib
import ctypes
import ipaddress
import os
import signal
import socket
import stat
import threading
import time

from tf_onebit._cluster_spec import addresses_of, host_and_port

# More than the size of `struct sigaction` on any platform.
_ACTION_BYTES = 1024
# Intervals between two looks at the sockets: once the server listens, and before.
_TENDING_SECONDS, _SECONDS_TO_LISTEN = 1.0, 0.02


@contextlib.contextmanager
def sigterm_as_it_was():
    """Keeps this process's SIGTERM action while TensorFlow's server starts.

    The server catches SIGTERM, only to report it to others that ask. The worker would go on.
    """
    libc = ctypes.CDLL(None)
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    libc.sigaction(signal.SIGTERM, None, action)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGTERM, action, None)


def tend_server(cluster_resolver):
    """Starts a thread that sets options of the server's sockets, which the server itself cannot.

    * Connections outlast a pause of the link or of a worker. gRPC would give up a connection whose
      message takes more than 20 seconds. Heartbeats detect workers that are gone.
    * If the whole cluster is on this machine, no other machine can connect. TensorFlow listens on
      all interfaces, and obeys any client that connects.
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
    """Yields the sockets of this process at one of its ports, and closes each after its turn."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            # A duplicate stays valid if the original is closed meanwhile.
            copy = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
        with copy, contextlib.suppress(OSError):
            is_of_internet = copy.family in (socket.AF_INET, socket.AF_INET6)
            if is_of_internet and copy.getsockname()[1] == port:
                yield copy
