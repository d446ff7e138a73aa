"""A program that runs in a fork behaves as one that Python runs, but starts faster."""

import os
import signal
import subprocess
import time

import pytest

from tests.support.launch import ROOT, SETTINGS, python


def start(*arguments, **environment):
    return subprocess.Popen(
        python(arguments),
        cwd=ROOT,
        env=os.environ | SETTINGS | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


SHOW = """
import atexit, os, sys
atexit.register(print, "the end")
print(sys.argv, os.environ["TEST_NAME"], os.getcwd(), __name__, "horovod" in sys.modules, input())
print("an error", file=sys.stderr)
sys.exit(3)
"""


def test_a_fork_has_arguments_environment_folder_and_streams(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SHOW)
    for arguments, shown in (
        (["-c", SHOW, "one"], ["-c", "one"]),
        ([str(script), "one"], [str(script), "one"]),
    ):
        program = start(*arguments, TEST_NAME="a name")
        output, errors = program.communicate("an input\n")
        expected = f"{shown} a name {ROOT} __main__ False an input"
        assert output.splitlines() == [expected, "the end"]
        assert (errors, program.returncode) == ("an error\n", 3)
    module = start("-m", "tests.support.launch", "one")
    assert module.communicate() == ("", "") and module.returncode == 0


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_fork_and_who_started_it_end_by_the_same_signal(signum):
    ending = start("-c", f"import os; os.kill(os.getpid(), {int(signum)})")
    assert ending.wait() == -signum
    waiting = start("-c", "import os, time; print(os.getpid(), flush=True); time.sleep(1000)")
    fork = int(waiting.stdout.readline())
    assert fork != waiting.pid
    waiting.send_signal(signum)
    assert waiting.wait() == -signum
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{fork}"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_error_is_printed_and_ends_a_fork():
    program = start("-c", "raise ValueError('a mistake')")
    _, errors = program.communicate()
    assert program.returncode == 1
    assert errors.splitlines()[-1] == "ValueError: a mistake"


def test_a_fork_may_import_what_its_server_has_left_out(monkeypatch):
    program = "import keras, matplotlib, sklearn; print(keras.__name__)"
    left_out = start("-c", program)
    assert left_out.communicate()[1].splitlines()[-1].startswith("ModuleNotFoundError")
    monkeypatch.delenv("TF_ONEBIT_TESTS_WITHOUT")
    assert start("-c", program).communicate()[0] == "keras\n"


RANDOM = "import os, numpy as np, tensorflow as tf; print(hash('a'), np.random.rand(), " + (
    "float(tf.random.uniform([])))"
)


def test_ranks_draw_numbers_of_their_own_and_hash_in_two_ways():
    ranks = [start("-c", RANDOM, HOROVOD_RANK=str(rank)) for rank in range(3)]
    hashes, *numbers = zip(*(rank.communicate()[0].split() for rank in ranks), strict=True)
    assert hashes[0] == hashes[2] != hashes[1]
    assert [len(set(of_one)) for of_one in numbers] == [3, 3]
