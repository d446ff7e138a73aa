"""Two jobs never use one directory, and a killed job leaves no lock."""

import errno
import fcntl
import importlib.util
import json
import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest

from tf_onebit.callbacks import BackupAndRestore, directory_lock
from tf_onebit.callbacks.directory_lock import DirectoryLock

# Only this module is imported, because the package takes seconds to import.
HOLDER = """
import importlib.util, os, pathlib, sys, time

spec = importlib.util.spec_from_file_location("directory_lock", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.DirectoryLock(pathlib.Path(sys.argv[2]), "other").acquire()
if len(sys.argv) > 3 and (child := os.fork()) == 0:
    time.sleep(60)  # longer than its parent lives
print(child if len(sys.argv) > 3 else 0, flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(directory_lock, "_WAIT_SECONDS", 0)
    return tmp_path / "lock"


class Holder:
    """Another process that has the lock."""

    def __init__(self, path, *arguments):
        source = importlib.util.find_spec("tf_onebit.callbacks.directory_lock").origin
        command = [sys.executable, "-c", HOLDER, source, str(path), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.child = int(self.process.stdout.readline())

    def kill(self):
        self.process.kill()
        self.process.communicate()


def test_another_job_that_is_running_is_named(path):
    holder = Holder(path)
    named = rf"another job uses it \(job other, host .*, pid {holder.process.pid}, since 2"
    with pytest.raises(OSError, match=named):
        DirectoryLock(path, "mine").acquire()
    assert json.loads(path.read_text())["job"] == "other"
    holder.kill()
    lock = DirectoryLock(path, "mine")
    lock.acquire()
    assert lock.is_of_this_job()
    lock.release()
    assert not path.exists()


def test_fit_in_the_directory_of_another_job_is_refused(path):
    holder = Holder(path)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    received = f"Received: directory='{path.parent}'.*another job uses it .job other, host"
    with pytest.raises(ValueError, match=received):
        model.fit(np.ones([4, 2]), np.ones([4, 1]), callbacks=[BackupAndRestore(path.parent)])
    holder.kill()


def test_a_killed_job_whose_children_live_keeps_nobody_away(path):
    holder = Holder(path, "forks")
    os.kill(holder.process.pid, signal.SIGKILL)
    holder.process.wait()
    try:
        lock = DirectoryLock(path, "mine")
        lock.acquire()
        lock.release()
    finally:
        os.kill(holder.child, signal.SIGKILL)
        holder.process.communicate()


def test_a_job_that_is_just_ending_is_waited_for(path, monkeypatch):
    monkeypatch.setattr(directory_lock, "_WAIT_SECONDS", 60)
    holder = Holder(path)
    monkeypatch.setattr(directory_lock.time, "sleep", lambda seconds: holder.kill())
    lock = DirectoryLock(path, "mine")
    lock.acquire()
    assert lock.is_of_this_job()
    lock.release()


def test_a_later_fit_of_the_same_process_takes_the_lock_over(path):
    first, second = DirectoryLock(path, "first"), DirectoryLock(path, "second")
    first.acquire()  # and its `fit` ends in an error
    second.acquire()
    assert second.is_of_this_job() and not first.is_of_this_job()
    first.release()  # or never comes
    second.acquire()
    second.release()
    assert not path.exists()


def test_a_lock_whose_file_is_removed_is_taken_anew(path):
    lock = DirectoryLock(path, "mine")
    lock.acquire()
    path.unlink()
    lock.require()
    assert json.loads(path.read_text())["job"] == "mine"
    lock.release()


def test_without_locks_another_job_is_noticed(path, monkeypatch):
    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    lock = DirectoryLock(path, "mine")
    with pytest.warns(UserWarning, match=r"has no locks \(No locks available\)"):
        lock.acquire()
    lock.require()
    path.write_text(json.dumps({"job": "other", "pid": 7}))
    with pytest.raises(OSError, match=r"another job uses it \(job other, pid 7\)"):
        lock.require()
    lock.release()
    assert json.loads(path.read_text())["job"] == "other"
