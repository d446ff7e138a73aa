"""`tf-onebit doctor` checks TF_CONFIG, and says which hosts are reached."""

import errno
import json
import os
import socket

import pytest

from tests.support.launch import free_addresses
from tests.unit.distribute.test_cluster import WRONG, tf_config
from tf_onebit import _cli as cli
from tf_onebit._doctor.fault import Fault
from tf_onebit._doctor.peers import interfaces, peers_report, reach


@pytest.fixture
def listening():
    """Yields an address where a program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_host_that_listens_is_connected_to(listening):
    line = reach(listening)
    assert line.startswith(f"{listening} is 127.0.0.1, found in ")
    assert "; connected in " in line and line.endswith(" ms")
    assert not isinstance(line, Fault)


def test_a_host_that_refuses_is_reached():
    line = reach(*free_addresses(1))
    assert "refused in " in line and "the host is reached, but no program listens there yet" in line
    assert not isinstance(line, Fault)


@pytest.mark.parametrize("host", ["nowhere.invalid", "host..domain"])
def test_a_name_without_an_address_is_a_fault(host):
    line = reach(f"{host}:2222")
    assert line.startswith(f"Not reached: {host}:2222: no address is found for {host!r} (")
    assert "/etc/hosts" in line
    assert isinstance(line, Fault)


@pytest.mark.parametrize(
    "error, what_happened, what_to_do",
    [
        (
            TimeoutError(),
            "no answer within 2 s",
            "do all firewalls on the way allow TCP port 2222?",
        ),
        (OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH)), "unreachable", "interfaces"),
    ],
)
def test_no_way_to_a_host_is_a_fault(error, what_happened, what_to_do, monkeypatch):
    def create_connection(address, timeout):
        raise error

    monkeypatch.setattr(socket, "create_connection", create_connection)
    line = reach("[::1]:2222")
    assert line.startswith("Not reached: [::1]:2222 is ::1")
    assert what_happened in line and what_to_do in line
    assert isinstance(line, Fault)


def test_workers_of_tf_config_and_hosts_are_tried_once_each(listening, monkeypatch):
    (nobody,) = free_addresses(1)
    monkeypatch.setenv("TF_CONFIG", tf_config([listening, nobody]))
    place, _, first, second, third = peers_report([listening, "localhost:22"])
    assert place == "TF_CONFIG: this process is worker 0 of 2"
    assert first.startswith(f"{listening} ") and "connected" in first
    assert second.startswith(f"{nobody} ") and "refused" in second
    assert third.startswith("localhost:22 is ")


@pytest.mark.parametrize("config", WRONG)
def test_tf_config_is_found_wrong_as_by_a_strategy(config, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config)
    fault, _ = peers_report([])
    assert WRONG[config] in fault and f"TF_CONFIG={config!r}" in fault
    assert isinstance(fault, Fault)


@pytest.mark.parametrize("config, said", [(None, "not set"), (json.dumps({}), "no cluster")])
def test_a_worker_alone_needs_no_tf_config(config, said, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if config:
        monkeypatch.setenv("TF_CONFIG", config)
    line, _ = peers_report([])
    assert line.startswith(f"TF_CONFIG: {said}") and not isinstance(line, Fault)


def test_interfaces_have_their_addresses():
    assert "lo 127.0.0.1" in list(interfaces())


def test_the_status_is_1_if_a_host_is_not_reached(listening, monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert cli.main(["doctor", "--hosts", listening]) == 0
    assert cli.main(["doctor", "--hosts", listening, "nowhere.invalid"]) == 1
    assert "Not reached: nowhere.invalid:22: " in capsys.readouterr().out


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_hosts_may_be_addresses_of_ipv6(host, capsys):
    cli.main(["doctor", "--hosts", host])
    assert "[::1]:22 is ::1" in capsys.readouterr().out


@pytest.mark.parametrize("host", ["host:", ":22", "host:ssh", "host:0", "host:65536"])
def test_hosts_are_checked(host, capsys):
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--hosts", host])
    assert f"with a port from 1 to 65535. Received: {host}" in capsys.readouterr().err
