"""`tf-onebit launch` starts workers, marks what they say, and ends them together."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = str(pathlib.Path(sys.executable).with_name("tf-onebit"))


def launch(num_workers, script, timeout_seconds=30):
    """Runs a shell script in every worker."""
    return subprocess.run(
        [PROGRAM, "launch", "-np", str(num_workers), "--", "bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
    )


def test_every_worker_has_its_place_in_one_cluster():
    job = launch(3, "echo $TF_CONFIG")
    assert job.returncode == 0
    configs = {}
    for line in job.stdout.splitlines():
        mark, _, text = line.partition(" ")
        configs[mark] = json.loads(text)
    assert sorted(configs) == ["[0]", "[1]", "[2]"]
    clusters = [config["cluster"]["worker"] for config in configs.values()]
    assert clusters.count(clusters[0]) == 3 and len(set(clusters[0])) == 3
    for rank in range(3):
        assert configs[f"[{rank}]"]["task"] == {"type": "worker", "index": rank}


def test_errors_stay_errors_and_are_marked():
    job = launch(2, "echo fine; echo wrong >&2")
    assert sorted(job.stdout.splitlines()) == ["[0] fine", "[1] fine"]
    assert sorted(job.stderr.splitlines()) == ["[0] wrong", "[1] wrong"]


FIRST = "case $TF_CONFIG in *'\"index\": 0'*) "


@pytest.mark.parametrize(
    "failure, status, reason",
    [("exit 3", 3, "with status 3"), ("kill -SEGV $$", 139, "by signal 11")],
)
def test_first_failure_ends_all(failure, status, reason):
    # Worker 0 fails; worker 1 and what it has started would go on.
    start = time.monotonic()
    job = launch(2, f"{FIRST} {failure};; esac; sleep 100 & sleep 100")
    assert time.monotonic() - start < 20
    assert job.returncode == status
    assert f"worker 0 ended {reason}; the others are ended." in job.stderr


def test_a_worker_that_ends_well_ends_no_other():
    job = launch(2, f"{FIRST} exit 0;; esac; sleep 1; echo done")
    assert job.returncode == 0
    assert job.stdout == "[1] done\n"


@pytest.mark.parametrize("seconds", [0, 100])
def test_output_that_cannot_be_written_ends_all(seconds):
    with open("/dev/full", "w") as full:
        job = subprocess.run(
            [PROGRAM, "launch", "-np", "2", "--", "bash", "-c", f"echo much; sleep {seconds}"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=20,
        )
    assert job.returncode == 1
    assert "the output of the workers cannot be written: No space left on device." in job.stderr
    assert "Traceback" not in job.stderr


def test_workers_end_where_nobody_reads_any_more():
    command = [PROGRAM, "launch", "-np", "2", "--", "bash", "-c", "while echo more; do :; done"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        job.stdout.readline()
        job.stdout.close()
        assert job.wait(20) == 1
        assert b"cannot be written: Broken pipe." in job.stderr.read()


def started(job, tmp_path):
    """The process id that a worker's script has written."""
    while not (tmp_path / "pid").exists():
        assert job.poll() is None
        time.sleep(0.05)
    return int((tmp_path / "pid").read_text())


def assert_ends(pid):
    for _ in range(200):
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the process is still alive")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_workers_have_started_ends_with_the_launcher(signum, tmp_path):
    script = f"sleep 100 & echo $! > {tmp_path}/tmp; mv {tmp_path}/tmp {tmp_path}/pid; wait"
    with subprocess.Popen([PROGRAM, "launch", "-np", "1", "--", "bash", "-c", script]) as job:
        pid = started(job, tmp_path)
        job.send_signal(signum)
        assert job.wait(20) == 128 + signum
    assert_ends(pid)


def test_who_is_asked_twice_does_not_wait_for_workers(tmp_path):
    script = f"trap '' TERM; echo $$ > {tmp_path}/tmp; mv {tmp_path}/tmp {tmp_path}/pid; "
    script += "while true; do sleep 0.1; done"
    with subprocess.Popen([PROGRAM, "launch", "-np", "1", "--", "bash", "-c", script]) as job:
        pid = started(job, tmp_path)
        start = time.monotonic()
        job.send_signal(signal.SIGINT)
        time.sleep(1)
        assert job.poll() is None
        job.send_signal(signal.SIGINT)
        assert job.wait(20) == 130
        assert time.monotonic() - start < 8  # it would wait for ten seconds
    assert_ends(pid)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_launcher(signum, tmp_path):
    script = f"echo $$ > {tmp_path}/$RANDOM.tmp; mv {tmp_path}/*.tmp {tmp_path}/pid; sleep 100"
    with subprocess.Popen([PROGRAM, "launch", "-np", "1", "--", "bash", "-c", script]) as job:
        pid = started(job, tmp_path)
        job.send_signal(signum)
    assert_ends(pid)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["launch", "-np", "0", "--", "true"], "must be at least 1. Received: 0"),
        (["launch", "-np", "2"], "required: program"),
        (["launch", "-np", "2", "--", "no-such-program"], "no-such-program: No such file"),
        ([], "required: command"),
    ],
)
def test_arguments_are_checked(arguments, message):
    job = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    assert job.returncode != 0
    assert message in job.stderr


def test_command_needs_no_tensorflow():
    code = "import sys, tf_onebit.cli; print([m for m in sys.modules if m == 'tensorflow'])"
    job = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert job.stdout == "[]\n"
