"""`tf-onebit launch -H` starts workers on other hosts by SSH, and ends them together.

A program named `ssh` stands for the client. It runs the command on this machine, in an environment
and a session of its own.
"""

import json
import os
import signal
import subprocess

import pytest

from tests.support.launch import processes_with
from tests.unit.launch.test_launch import PROGRAM

# Addresses that belong to no machine (RFC 5737).
ONE, OTHER, UNREACHABLE = "203.0.113.1", "203.0.113.2", "203.0.113.3"
SSH = f"""#!/bin/bash
while [[ $1 == -* ]]; do shift 2; done
if [[ $1 == {UNREACHABLE} ]]; then echo 'Permission denied (publickey).' >&2; exit 255; fi
echo 'Welcome!'  # as some shells greet
exec setsid --wait env -i PATH=$PATH SSH_HOST=$1 bash -c "$2"
"""


@pytest.fixture
def environment(tmp_path):
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    return os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SSH_HOST": "here"}


def command(hosts, script, *options):
    return [PROGRAM, "launch", "-H", hosts, *options, "--", "bash", "-c", script]


def launch(environment, *arguments):
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=60, env=environment
    )


def test_workers_of_several_hosts_form_one_cluster(environment):
    environment["OF_THE_JOB"] = "a 'quoted' value\nof two lines"
    script = 'echo "$SSH_HOST $TF_CONFIG"; echo "$OF_THE_JOB"; pwd'
    job = launch(environment, f"{ONE}:2,{OTHER}", script)
    assert job.returncode == 0, job.stderr
    lines = sorted(job.stdout.splitlines())
    hosts, addresses = [ONE, ONE, OTHER], set()
    for rank, host in enumerate(hosts):
        of_rank = [line.removeprefix(f"[{rank}] ") for line in lines if line[1] == str(rank)]
        (first,) = [line for line in of_rank if line.startswith(host)]
        config = json.loads(first.removeprefix(host))
        assert config["task"] == {"type": "worker", "index": rank}
        assert [a.rpartition(":")[0] for a in config["cluster"]["worker"]] == hosts
        addresses.add(tuple(config["cluster"]["worker"]))
        assert {"a 'quoted' value", "of two lines", os.getcwd()} < set(of_rank)
    assert len(addresses) == 1 and len(set(*addresses)) == 3


def test_fewer_workers_than_the_hosts_have_fill_the_first_ones(environment):
    job = launch(environment, f"{ONE}:2,{OTHER}:2", "echo $SSH_HOST", "-np", "3")
    assert sorted(job.stdout.splitlines()) == [f"[0] {ONE}", f"[1] {ONE}", f"[2] {OTHER}"]


def test_a_failure_on_one_host_ends_the_workers_of_all(environment):
    script = f"[ $SSH_HOST = {OTHER} ] && exit 3; sleep 1234.5 & sleep 1234.5"
    job = launch(environment, f"{ONE},{OTHER}", script)
    assert job.returncode == 3
    assert f"worker 1 on {OTHER} ended with status 3. The others were ended." in job.stderr
    assert not processes_with("1234.5")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_workers_on_other_hosts_end_with_the_launcher(environment, signum):
    script = "echo begun; sleep 2345.6 & sleep 2345.6"
    with subprocess.Popen(
        command(f"{ONE},{OTHER}", script), env=environment, stdout=subprocess.PIPE
    ) as job:
        begun = [job.stdout.readline() for _ in range(2)]
        assert sorted(begun) == [b"[0] begun\n", b"[1] begun\n"]
        job.send_signal(signum)
        assert job.wait(30) in (-signum, 128 + signum)
    assert not processes_with("2345.6", most_seconds=30)


def test_a_host_that_cannot_be_reached_ends_the_job_with_a_reason(environment):
    job = launch(environment, f"{ONE},{UNREACHABLE}", "echo begun")
    assert (job.returncode, job.stdout) == (1, "")
    assert f"{UNREACHABLE} runs no worker: Permission denied (publickey). It must be" in job.stderr
    assert f"possible to call `ssh {UNREACHABLE}` without a password" in job.stderr


def test_without_ssh_it_says_what_to_install(environment):
    job = launch(environment | {"PATH": "/nowhere"}, ONE, "true")
    assert job.returncode == 1
    assert "ssh is not installed here. Install openssh-client." in job.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-H", "host0:0"], "Hosts are written like host0:2,host1:2"),
        (["-H", "host0:2,host0:2"], "Each host is named once, with all of its workers"),
        (["-H", "localhost:2", "-np", "3"], "The hosts have 2 workers. Received: -np 3."),
        (["-H", f"localhost,{ONE}"], "Received: localhost, which is another machine on each host"),
        (["-H", "no-such-host.invalid"], "Received: no-such-host.invalid, which has no address"),
        ([], "arguments are required: -np/--num-proc, or -H/--hosts"),
    ],
)
def test_errors_say_what_to_do(options, reason):
    job = subprocess.run(
        [PROGRAM, "launch", *options, "--", "true"], capture_output=True, text=True
    )
    assert job.returncode == 2
    assert reason in job.stderr
