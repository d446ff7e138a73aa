"""Hosts of a job, and how many workers each of them has."""

import argparse
import contextlib
import socket
from typing import NamedTuple

_LOOPBACK = "localhost", "127."


class Host(NamedTuple):
    """A host by the name or address that all hosts of the job know, and its number of workers."""

    name: str
    slots: int


def hosts_argument(text):
    """Returns the hosts that an argument names, such as "host0:2,host1:2": list of `Host`."""
    hosts = []
    for part in text.split(","):
        name, _, slots = part.partition(":")
        slots = slots or "1"
        if not name or not slots.isdecimal() or int(slots) < 1:
            raise argparse.ArgumentTypeError(
                "Hosts are written like host0:2,host1:2, each with its number of workers. "
                f"Received: {text}"
            )
        hosts.append(Host(name, int(slots)))
    names = [host.name for host in hosts]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise argparse.ArgumentTypeError(
            f"Each host is named once, with all of its workers. Received: {text}, where "
            f"{twice[0]} stands several times."
        )
    return hosts


def places(hosts, num_workers):
    """Returns the name of the host of each worker, host by host: list.

    Args:
        hosts: list of `Host`.
        num_workers: number of workers, or None for as many as the hosts have.

    Raises:
        ValueError: for more workers than the hosts have, for a host that has no address, and for
            a name of this machine that other hosts take for their own.
    """
    all_places = [host.name for host in hosts for _ in range(host.slots)]
    count = len(all_places) if num_workers is None else num_workers
    if count > len(all_places):
        raise ValueError(
            f"The hosts have {len(all_places)} workers. Received: -np {count}. Give a smaller "
            "number, or the hosts more workers, for example host0:4."
        )
    chosen = all_places[:count]
    loopback = next((name for name in chosen if name.startswith(_LOOPBACK)), None)
    if loopback is not None and len(set(chosen)) > 1:
        raise ValueError(
            "Every host needs a name or an address by which all others reach it. Received: "
            f"{loopback}, which is another machine on each host. Give this machine's own name or "
            "address."
        )
    return chosen


def is_here(name):
    """Tells whether a name or an address is one of this machine.

    Raises:
        ValueError: if it has no address.
    """
    with contextlib.closing(socket.socket()) as one:
        try:
            one.bind((name, 0))
        except socket.gaierror as error:
            raise ValueError(
                "Workers reach each other by the names or addresses of their hosts. Received: "
                f"{name}, which has no address: {error.strerror}."
            ) from error
        except OSError:  # the address of another machine
            return False
        return True


@contextlib.contextmanager
def reserved_ports(count):
    """Yields ports of this machine that no other program gets within the context: list."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        yield [one.getsockname()[1] for one in sockets]
