"""`tf-onebit launch -H` between network namespaces, each of which has a daemon of SSH."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from tests.rehearsal.test_programs import needs_namespaces
from tests.support.launch import processes_with

ROOT = pathlib.Path(__file__).resolve().parents[2]
SSHD = "/usr/sbin/sshd"
FIT = """
import keras
import numpy as np

import tf_onebit

strategy = tf_onebit.distribute.MultiWorkerMirroredStrategy(tf_onebit.OneBit(min_size=0))
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile("adam", loss="mse")
x = np.random.default_rng(0).normal(size=(64, 8))
model.fit(x, x[:, :1], 32, epochs=2, verbose=0)
print("digest", sum(float(np.sum(np.abs(w))) for w in model.get_weights()))
"""

pytestmark = [
    needs_namespaces,
    pytest.mark.skipif(not os.path.exists(SSHD), reason="it needs openssh-server"),
]


@pytest.fixture(scope="module")
def network():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from network import hosts_on_a_bridge

    with hosts_on_a_bridge(3, "none") as network:
        yield network


@pytest.fixture(scope="module")
def environment(network, tmp_path_factory):
    """Starts daemons on two hosts. Yields an environment whose `ssh` has a key for them."""
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("key", "host"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(command, check=True)
    config = {
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "key.pub",
        "StrictModes": "no",
        "PidFile": "none",
    }
    os.makedirs("/run/sshd", exist_ok=True)
    options = [option for item in config.items() for option in ("-o", "{} {}".format(*item))]
    daemons = [
        subprocess.Popen(
            ["ip", "netns", "exec", network.namespace(host), SSHD, "-D", "-f", "/dev/null"]
            + options,
            stderr=subprocess.DEVNULL,
        )
        for host in (1, 2)
    ]
    ssh = folder / "ssh"
    ssh.write_text(
        f"#!/bin/sh\nexec {shutil.which('ssh')} -i {folder}/key -o StrictHostKeyChecking=no "
        f'-o UserKnownHostsFile={folder}/known -o LogLevel=ERROR "$@"\n'
    )
    ssh.chmod(0o755)
    yield os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "TF_CPP_MIN_LOG_LEVEL": "2"}
    for daemon in daemons:
        daemon.terminate()
        daemon.wait()


def start(network, environment, *program):
    hosts = f"{network.address(0)},{network.address(1)}:2,{network.address(2)}"
    launch = [pathlib.Path(sys.executable).with_name("tf-onebit"), "launch", "-H", hosts, "--"]
    return subprocess.Popen(
        ["ip", "netns", "exec", network.namespace(0), *launch, *program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_model_trains_on_three_hosts(network, environment):
    job = start(network, environment, sys.executable, "-c", FIT)
    output, errors = job.communicate(timeout=300)
    assert job.returncode == 0, errors
    lines = sorted(output.splitlines())
    assert [line[:10] for line in lines] == [f"[{rank}] digest" for rank in range(4)]
    assert len({line[4:] for line in lines}) == 1


@pytest.mark.parametrize("event", ["SIGTERM", "SIGKILL", "cut link"])
def test_workers_of_all_hosts_end_together(event, network, environment):
    job = start(network, environment, "bash", "-c", "echo begun; sleep 3456.7 & sleep 3456.7")
    assert sorted(job.stdout.readline()[:3] for _ in range(4)) == ["[0]", "[1]", "[2]", "[3]"]
    if event == "cut link":
        link = ["ip", "-n", network.namespace(2), "link", "set", network.interface]
        subprocess.run([*link, "down"], check=True)
        try:
            _, errors = job.communicate(timeout=120)
        finally:
            subprocess.run([*link, "up"], check=True)
        assert f"worker 3 on {network.address(2)} ended with status 255, as SSH does" in errors
    else:
        job.send_signal(signal.Signals[event])
        job.communicate(timeout=30)
    assert not processes_with("3456.7", most_seconds=60)
