"""`tf-onebit launch` starts workers, marks their output, and ends them together."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

import tf_onebit
from tests.support.nightly import nightly
from tf_onebit._launch import _start
from tf_onebit._launch.groups import Watchdog

PROGRAM = str(pathlib.Path(sys.executable).with_name("tf-onebit"))


def command(num_workers, script, *options):
    return [PROGRAM, "launch", "-np", str(num_workers), *options, "--", "bash", "-c", script]


def launch(num_workers, script, *options, **environment):
    """Runs a shell script in every worker."""
    return subprocess.run(
        command(num_workers, script, *options),
        capture_output=True,
        text=True,
        timeout=30,
        env=os.environ | environment,
    )


@contextlib.contextmanager
def running(*arguments, **options):
    """Runs a job of `command`, and ends it after an error."""
    with subprocess.Popen(command(*arguments), **options) as job:
        try:
            yield job
        except BaseException:
            job.kill()
            raise


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
    # Worker 0 fails. Without the launcher, worker 1 and its children would continue.
    start = time.monotonic()
    job = launch(2, f"{FIRST} {failure};; esac; sleep 100 & sleep 100")
    assert time.monotonic() - start < 20
    assert job.returncode == status
    assert f"worker 0 ended {reason}. The others were ended." in job.stderr


def test_who_left_early_is_named_before_who_missed_it():
    job = launch(3, f"{FIRST} exit 0;; *'\"index\": 1'*) sleep 1; exit 3;; esac; sleep 100")
    assert job.returncode == 3
    assert job.stderr.splitlines()[-1] == (
        "tf-onebit launch: worker 0 ended with status 0 while others were running. Then worker 1 "
        "ended with status 3. The others were ended."
    )


def test_a_worker_that_ends_well_ends_no_other():
    job = launch(2, f"{FIRST} exit 0;; esac; sleep 1; echo done")
    assert job.returncode == 0
    assert job.stdout == "[1] done\n"


# A bar like Keras' that waits in its middle, for ten seconds at most.
BAR = "printf '\\r1/2 ━ a'; for i in {{1..200}}; do [ -e {} ] && break; sleep 0.05; done; "
BAR += "printf '\\b\\b\\b\\r2/2 ━━ b\\n'; printf end"


def test_progress_is_passed_on_in_lines_of_their_workers(tmp_path):
    with running(2, BAR.format(tmp_path / "go"), stdout=subprocess.PIPE) as job:
        lines = [job.stdout.readline().decode() for _ in range(2)]
        assert sorted(lines) == ["[0] 1/2 ━ a\n", "[1] 1/2 ━ a\n"]
        (tmp_path / "go").touch()
        lines = sorted(job.stdout.read().decode().splitlines())
    assert lines == ["[0] 2/2 ━━ b", "[0] end", "[1] 2/2 ━━ b", "[1] end"]


def test_on_a_terminal_each_worker_has_a_row_that_is_redrawn(tmp_path):
    ours, terminal = os.openpty()
    with running(2, BAR.format(tmp_path / "go"), stdout=terminal):
        os.close(terminal)
        text = b""
        while b"[0] 1/2" not in text or b"[1] 1/2" not in text:
            text += os.read(ours, 1024)
        (tmp_path / "go").touch()
        with contextlib.suppress(OSError):  # the terminal is closed
            while True:
                text += os.read(ours, 1024)
    os.close(ours)
    rows = re.findall(r"\x1b\[2K\x1b\[\?7l(.*?)\x1b\[\?7h\r\n", text.decode())
    assert set(rows) == {"[0] 1/2 ━ a", "[1] 1/2 ━ a"}
    # Text above the two rows stays. Complete lines are below.
    assert b"\x1b[2A\x1b[J" in text
    assert text.decode().splitlines()[-1].endswith("] end")


def test_lines_end_as_they_are_written():
    job = launch(1, "printf 'one\\r\\n\\ntwo'")
    assert job.stdout.splitlines() == ["[0] one", "[0] ", "[0] two"]


LEVEL = "echo level ${TF_CPP_MIN_LOG_LEVEL-none}"


@pytest.mark.parametrize(
    "options, environment, levels",
    [
        ([], {}, ["[0] level 1", "[1] level 2"]),
        ([], {"TF_CPP_MIN_LOG_LEVEL": "0"}, ["[0] level 0", "[1] level 0"]),
        (["--verbose"], {}, ["[0] level none", "[1] level none"]),
    ],
)
def test_warnings_of_tensorflow_are_those_of_one_worker(monkeypatch, options, environment, levels):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    job = launch(2, LEVEL, *options, **environment)
    assert sorted(job.stdout.splitlines()) == levels


NOTES = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795706845.320593   17634 port.cc:153] oneDNN custom operations are on.
E0000 00:00:1795706845.320593   17634 cuda_dnn.cc:8579] Unable to register cuDNN factory: Attempting
"""
FAULT = "E0000 00:00:1795706845.320593   17634 cuda_dnn.cc:470] Loaded runtime CuDNN library: 9.1.0"


@pytest.mark.parametrize("options, shown", [([], 1), (["--verbose"], 4)])
def test_notes_at_start_up_are_left_out_and_errors_are_not(options, shown):
    job = launch(2, f"cat >&2 <<END\n{NOTES}{FAULT}\nEND", *options)
    for rank in range(2):
        lines = [line for line in job.stderr.splitlines() if line.startswith(f"[{rank}] ")]
        assert len(lines) == shown and lines[-1] == f"[{rank}] {FAULT}"


@pytest.mark.parametrize("seconds", [0, 100])
def test_output_that_cannot_be_written_ends_all(seconds):
    with open("/dev/full", "w") as full:
        job = subprocess.run(
            command(2, f"echo much; sleep {seconds}"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=20,
        )
    assert job.returncode == 1
    assert "the output of the workers cannot be written: No space left on device." in job.stderr
    assert "Traceback" not in job.stderr


def test_workers_end_where_nobody_reads_any_more():
    endless = "while echo more; do :; done"
    with running(2, endless, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        job.stdout.readline()
        job.stdout.close()
        assert job.wait(20) == 1
        assert b"cannot be written: Broken pipe." in job.stderr.read()


def started(job, tmp_path):
    """Returns the process id that a worker's script has written."""
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


def exit_status(signum):
    return -signum if signum == signal.SIGKILL else 128 + signum


@pytest.mark.parametrize(
    "signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL], ids=str
)
def test_what_workers_have_started_ends_with_the_launcher(signum, tmp_path):
    script = f"sleep 100 & echo $! > {tmp_path}/tmp; mv {tmp_path}/tmp {tmp_path}/pid; wait"
    with running(1, script) as job:
        pid = started(job, tmp_path)
        job.send_signal(signum)
        assert job.wait(20) == exit_status(signum)
    assert_ends(pid)


KILLED_AT_ONCE = """
import os, signal
from tf_onebit._launch import _start
from tf_onebit._launch.groups import Watchdog
print(_start(["sleep", "100"], dict(os.environ), Watchdog()).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_ends_also_if_the_launcher_is_killed_as_soon_as_it_has_started_it():
    job = subprocess.run(
        [sys.executable, "-c", KILLED_AT_ONCE], capture_output=True, text=True, timeout=20
    )
    assert job.returncode == -signal.SIGKILL
    assert_ends(int(job.stdout))


def test_workers_start_also_without_their_watchdog():
    watchdog = Watchdog()
    watchdog._process.kill()
    watchdog._process.wait()
    worker = _start(["sh", "-c", "kill -PIPE $$; exit 3"], dict(os.environ), watchdog)
    worker.communicate(timeout=20)
    assert worker.returncode == -signal.SIGPIPE  # by itself: it ends at a closed pipe, as always
    worker = _start(["true"], dict(os.environ), watchdog)
    worker.communicate(timeout=20)
    assert worker.returncode == 0
    watchdog.dismiss()


@pytest.mark.parametrize("signum", [signal.SIGKILL, *nightly(signal.SIGINT)], ids=str)
def test_who_saves_before_it_ends_is_given_the_time(signum, tmp_path):
    # The worker itself, a shell, ends at once. Its output may have no reader.
    saving = f"exec 2> /dev/null; trap 'sleep 1; touch {tmp_path}/saved; exit' TERM; "
    saving += f"echo $$ > {tmp_path}/tmp; mv {tmp_path}/tmp {tmp_path}/pid; "
    saving += "while true; do sleep 0.1; done"
    start = time.monotonic()
    with running(1, f'bash -c "{saving.replace("$", chr(92) + "$")}"; true') as job:
        pid = started(job, tmp_path)
        job.send_signal(signum)
        assert job.wait(20) == exit_status(signum)
    assert_ends(pid)
    assert (tmp_path / "saved").exists()
    assert time.monotonic() - start < 8  # the limit is ten seconds


def test_who_is_asked_twice_does_not_wait_for_workers(tmp_path):
    script = f"trap '' TERM; echo $$ > {tmp_path}/tmp; mv {tmp_path}/tmp {tmp_path}/pid; "
    script += "while true; do sleep 0.1; done"
    with running(1, script) as job:
        pid = started(job, tmp_path)
        start = time.monotonic()
        job.send_signal(signal.SIGINT)
        time.sleep(1)
        assert job.poll() is None
        job.send_signal(signal.SIGINT)
        assert job.wait(20) == 130
        assert time.monotonic() - start < 8  # it would otherwise wait for ten seconds
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


def test_the_version_is_told():
    job = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True)
    assert job.stdout == f"tf_onebit {tf_onebit.__version__}\n"


def test_command_needs_no_tensorflow():
    code = "import sys, tf_onebit._cli; print([m for m in sys.modules if m == 'tensorflow'])"
    job = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert job.stdout == "[]\n"
