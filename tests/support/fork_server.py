"""Starts Python programs in forks of processes that have imported TensorFlow already.

The import of TensorFlow takes more than three seconds of a core, most of the time of many test
jobs. A `ForkServer` imports it once, and runs each program in a fork of itself. That is safe
because the import starts no threads.

    server = ForkServer({"OMP_NUM_THREADS": "1"})
    command = server.command(["-c", "print(1)"])  # what to start, in place of Python

The started process, fork_client.py, hands its arguments, environment, folder and standard streams
to the fork. It passes on signals, and ends as the fork does. If it is killed, so is the fork.

Forks of one server hash strings alike, so their sets have the same order. No test would notice
workers that rely on that order. So there are two servers: one for even ranks, and one for odd ones.
"""

import atexit
import contextlib
import gc
import json
import os
import pathlib
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import types

import keras  # noqa: F401
import numpy as np
import tensorflow as tf

import tests.support.untuned_data  # noqa: F401

_CLIENT = str(pathlib.Path(__file__).with_name("fork_client.py"))
# Keras would import them where they are installed. A program may.
_LEFT_OUT = ("sklearn", "matplotlib")


class ForkServer:
    """Processes that have imported TensorFlow. They end with this process.

    Args:
        environment: dictionary of variables that must be set before the import.
        num_servers: 2, or 1 for programs without ranks.
    """

    def __init__(self, environment, num_servers=2):
        self._folder = tempfile.TemporaryDirectory()
        self._servers = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", self._address(index)],
                env=os.environ | {"TF_ONEBIT_TESTS_WITHOUT": " ".join(_LEFT_OUT)} | environment,
                stdin=subprocess.PIPE,
                start_new_session=True,  # it ends with this process, but not on Ctrl-C
            )
            for index in range(num_servers)
        ]
        atexit.register(self._end)

    def _end(self):
        for server in self._servers:
            server.stdin.close()
            server.wait()

    def _address(self, index):
        return f"{self._folder.name}/{index}"

    def command(self, arguments):
        """Returns the command to start in place of Python with these arguments.

        Args:
            arguments: list of strings: `-c` and a source, `-m` and a module, or a path. The
                program's arguments follow.
        """
        for server in self._servers:
            assert server.poll() is None, f"A fork server has ended with {server.returncode}."
        # -S and -E: the client needs no packages, and starts in hundredths of a second.
        return [sys.executable, "-S", "-E", _CLIENT, self._address(""), *arguments]


def _serve(address):
    """Forks for every client. Returns in a fork only, with the arguments of its program."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.unfinished")
    listener.listen()
    os.rename(f"{address}.unfinished", address)  # clients wait for it
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    clients = {}  # by the number of the fork
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:  # the process that started the server has ended
                for pid in clients:
                    os.kill(pid, signal.SIGKILL)
                sys.exit()
            elif key.fileobj is listener:
                client, _ = listener.accept()
                request, descriptors = _receive(client)
                pid = os.fork() if request else None
                if pid == 0:
                    selector.close()
                    listener.close()
                    for other in [client, *clients.values()]:
                        other.close()
                    _become(request, descriptors)
                    return request["arguments"]
                for descriptor in descriptors:
                    os.close(descriptor)
                if request:
                    _tell(client, pid)
                    clients[pid] = client
                    selector.register(client, selectors.EVENT_READ, pid)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
            elif key.data not in clients:
                continue  # its fork has ended, too
            elif key.fileobj is clients[key.data]:  # the client has been killed
                selector.unregister(key.fileobj)
                os.kill(key.data, signal.SIGKILL)
            else:  # the fork has ended
                _, status = os.waitpid(key.data, 0)
                selector.unregister(key.fileobj)
                os.close(key.fileobj)
                client = clients.pop(key.data)
                with contextlib.suppress(KeyError):
                    selector.unregister(client)
                _tell(client, os.waitstatus_to_exitcode(status))
                client.close()


def _tell(client, number):
    with contextlib.suppress(OSError):  # the client has been killed
        client.sendall(f"{number}\n".encode())


def _receive(client):
    """Returns a client's request and its standard streams, or None if it has been killed."""
    data, descriptors, *_ = socket.recv_fds(client, 1 << 16, 3)
    while not data.endswith(b"\n"):
        more = client.recv(1 << 16)
        if not more:
            return None, descriptors
        data += more
    return json.loads(data), descriptors


def _become(request, descriptors):
    """Gives this process the client's folder, environment and standard streams."""
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for name in _LEFT_OUT:
        if name not in os.environ.get("TF_ONEBIT_TESTS_WITHOUT", "").split():
            sys.modules.pop(name, None)
    # Each process that imports these has random numbers of its own.
    np.random.seed()
    tf.random.set_seed(None)


def _run(program, *arguments):
    """Runs a program as `python program arguments` does."""
    if program == "-m":
        sys.argv, sys.path[0] = list(arguments), os.getcwd()
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif program == "-c":
        source, *arguments = arguments
        sys.argv, sys.path[0] = ["-c", *arguments], ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(source, "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0] = [program, *arguments], str(pathlib.Path(program).parent)
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__file__ = program
        exec(compile(pathlib.Path(program).read_bytes(), program, "exec"), main.__dict__)


if __name__ == "__main__":
    assert len(os.listdir("/proc/self/task")) == 1, "A process with threads cannot be forked."
    gc.freeze()
    _run(*_serve(sys.argv[1]))
