"""Several hosts on one machine: network namespaces on a bridge, their links shaped to a rate.

    sudo python benchmarks/network.py --rate 1gbit 100mbit none --delay-ms 0

This command prints the TCP goodput between two such hosts. It needs Linux, root and iproute2.
"""

import argparse
import contextlib
import ctypes
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from delay import carry_with_delay, tap_device

CLONE_NEWNET = 0x40000000
HOSTS_DIRECTORY = pathlib.Path("/etc/netns")
BITS_PER_SECOND = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
RATE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)")


class Network:
    """Hosts `0 .. num_hosts-1`, each a network namespace whose only link goes to the bridge.

    Attributes:
        num_hosts: number of hosts.
        rate: rate of every link in both directions, such as "1gbit", or "none".
        delay_seconds: time that a packet takes from one host to another.
        bridge_address: address of the bridge, which every host reaches.
        bridge_namespace: name of the namespace that holds the bridge.
        interface: name of each host's interface inside its namespace.
    """

    bridge_address = "10.0.0.254"
    interface = "eth0"

    def __init__(self, num_hosts, rate, delay_seconds=0.0):
        self.num_hosts = num_hosts
        self.rate = rate
        self.delay_seconds = delay_seconds
        # Two runs at a time must not meet, so every name contains the process id.
        self._prefix = f"onebit-{os.getpid()}"
        self.bridge_namespace = f"{self._prefix}-bridge"

    def namespace(self, host):
        return f"{self._prefix}-host{host}"

    def address(self, host):
        return f"10.0.0.{host + 1}"

    def command(self, host, argv):
        """Returns the command line that runs `argv` on a host."""
        return ["ip", "netns", "exec", self.namespace(host), *argv]

    @contextlib.contextmanager
    def inside(self, namespace):
        """Makes sockets of this thread belong to `namespace` within the block."""
        with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{namespace}") as there:
            _set_network_namespace(there)
            try:
                yield
            finally:
                _set_network_namespace(home)

    def goodput_bits_per_second(self, duration_seconds=2.0):
        """Measures a plain TCP transfer from host 0 to host 1."""
        with self.inside(self.namespace(1)):
            listener = socket.create_server((self.address(1), 0))
        with self.inside(self.namespace(0)):
            sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
        listener.close()

        def send():
            chunk = bytes(1 << 20)
            # It ends with the connection, when the receiver has enough.
            with contextlib.suppress(OSError):
                while True:
                    sender.sendall(chunk)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        buffer = bytearray(1 << 20)
        received_bytes = 0
        # The shaper's first burst passes unshaped. The clock starts after it.
        warm_up_end = time.perf_counter() + 0.5
        while time.perf_counter() < warm_up_end:
            receiver.recv_into(buffer)
        start = time.perf_counter()
        while time.perf_counter() - start < duration_seconds:
            received_bytes += receiver.recv_into(buffer)
        elapsed_seconds = time.perf_counter() - start
        receiver.close()
        sender.close()
        thread.join()
        return 8 * received_bytes / elapsed_seconds


@contextlib.contextmanager
def hosts_on_a_bridge(num_hosts, rate, delay_seconds=0.0):
    """Makes a `Network`, and removes all of it at the end, also after an error.

    Args:
        num_hosts: number of hosts, at most 200.
        rate: rate of each host's link in both directions as `tc` writes it, such as "1gbit", or
            "none" for links that are not shaped.
        delay_seconds: time that a packet takes from one host to another. A thread of this program
            then carries all packets, so use it with rates of at most some tens of Mbit/s.

    Yields:
        A `Network`.
    """
    if not 1 <= num_hosts <= 200:
        raise ValueError(f"num_hosts must be 1 to 200. Received: num_hosts={num_hosts}.")
    _check_privileges()
    network = Network(num_hosts, rate, delay_seconds)
    with contextlib.ExitStack() as undo:
        undo.enter_context(_terminated_by_exception())
        bridge = network.bridge_namespace
        _add_namespace(bridge, undo)
        _ip(bridge, "link add name bridge0 type bridge")
        _ip(bridge, f"address add {network.bridge_address}/24 dev bridge0")
        _ip(bridge, "link set bridge0 up")
        for host in range(num_hosts):
            namespace = network.namespace(host)
            _write_hosts_file(namespace, network.address(host), undo)
            _add_namespace(namespace, undo)
            port = f"port{host}"
            if delay_seconds:
                _add_delayed_link(network, namespace, port, undo)
            else:
                _ip(
                    bridge,
                    f"link add {port} type veth peer name {network.interface} netns {namespace}",
                )
            _ip(bridge, f"link set {port} master bridge0 up")
            _ip(namespace, f"address add {network.address(host)}/24 dev {network.interface}")
            _ip(namespace, f"link set {network.interface} up")
            _ip(namespace, "link set lo up")
            _shape(namespace, network.interface, rate)
            _shape(bridge, port, rate)
        yield network


def _add_delayed_link(network, namespace, port, undo):
    ends = []
    for its_namespace, name in ((namespace, network.interface), (network.bridge_namespace, port)):
        with network.inside(its_namespace):
            ends.append(tap_device(name))
        undo.callback(os.close, ends[-1])
    # A packet crosses two links.
    undo.callback(carry_with_delay(*ends, network.delay_seconds / 2))


def rate_argument(text):
    """Checks a rate. This is the type of a command-line argument.

    Raises:
        argparse.ArgumentTypeError: if it is neither a number with its unit nor "none".
    """
    if text != "none" and not RATE_PATTERN.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f'a rate is a number with kbit, mbit or gbit, as 1gbit, or "none". Received: {text!r}'
        )
    return text


def _shape(namespace, interface, rate):
    if rate == "none":
        return
    number, unit = RATE_PATTERN.fullmatch(rate).groups()
    bytes_per_second = float(number) * BITS_PER_SECOND[unit] / 8
    # A burst passes unshaped after each pause, which flatters short messages. Keep it to one
    # millisecond, but above the 64 KiB of one segmentation-offloaded packet.
    burst_bytes = max(int(bytes_per_second * 1e-3), 128 * 1024)
    _run(
        ["tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf"]
        + ["rate", rate, "burst", str(burst_bytes), "latency", "50ms"]
    )


def _add_namespace(name, undo):
    # This is registered first, so that a namespace that an interrupt leaves half made is removed,
    # too.
    undo.callback(_run, ["ip", "netns", "delete", name], check=False)
    _run(["ip", "netns", "add", name])


def _write_hosts_file(namespace, address, undo):
    """Writes the file that `ip netns exec` lays over /etc/hosts.

    Gloo binds to the host's address.
    """

    def remove():
        shutil.rmtree(HOSTS_DIRECTORY / namespace, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: of another run, or of the administrator
            HOSTS_DIRECTORY.rmdir()

    undo.callback(remove)
    (HOSTS_DIRECTORY / namespace).mkdir(parents=True)
    text = f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n"
    (HOSTS_DIRECTORY / namespace / "hosts").write_text(text)


def _ip(namespace, arguments):
    _run(["ip", "-n", namespace, *arguments.split()])


def _run(command, check=True):
    # The command has a session of its own: Ctrl-C must not stop commands that clean up.
    result = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    if check and result.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {result.stderr.strip()}")


def _set_network_namespace(file):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file.fileno(), CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"Cannot enter the network namespace {file.name}")


def _check_privileges():
    for program in ("ip", "tc"):
        if not shutil.which(program):
            sys.exit(f"The program `{program}` is missing. Install it: apt-get install iproute2")
    if os.geteuid() != 0:
        sys.exit("Network namespaces and traffic shaping need root. Run this command with sudo.")


@contextlib.contextmanager
def _terminated_by_exception():
    """Turns SIGTERM into an exception, so that everything is removed as after any error."""
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rate", type=rate_argument, nargs="+", default=["1gbit", "100mbit", "none"]
    )
    parser.add_argument("--delay-ms", type=float, default=0.0, help="from host to host")
    arguments = parser.parse_args()
    for rate in arguments.rate:
        with hosts_on_a_bridge(2, rate, arguments.delay_ms / 1e3) as network:
            print(f"{rate}: {network.goodput_bits_per_second() / 1e6:.1f} Mbit/s TCP goodput")


if __name__ == "__main__":
    main()
