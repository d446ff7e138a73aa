"""Workers on other hosts, by SSH.

A client of SSH stands for each worker. It runs the program `on_host.py` there, and carries:

1. from the host: a word, and a port that is not in use there;
2. to the host: the worker's program, and variables of its environment, as a line of JSON;
3. the worker's output.

The way to the host stays open as long as the worker may run.
"""

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys

from tf_onebit._launch.groups import POLL_SECONDS

READY = "tf-onebit-port"
# A host that answers no more ends the client after three such periods.
_SSH = (
    *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
)
# Variables that describe a login at one host.
_OF_A_LOGIN = ("SSH_", "XDG_", "DBUS_", "DISPLAY", "HOSTNAME", "XAUTHORITY", "TMPDIR", "PWD")


class ConnectionFailed(Exception):
    """A host that runs no worker, with the reason that SSH gave."""


class RemoteWorker(subprocess.Popen):
    """Client of SSH that stands for a worker on another host.

    Args:
        host: name or address of the host.
        watchdog: `Watchdog` that ends the client when this process is gone.

    Raises:
        ConnectionFailed: if this machine has no SSH.
    """

    def __init__(self, host, watchdog):
        self._host, self._is_started = host, False
        python_path = os.environ.get("PYTHONPATH")
        settings = [] if python_path is None else [f"PYTHONPATH={python_path}"]
        command = shlex.join(["env", *settings, sys.executable, "-m", f"{__package__}.on_host"])
        try:
            super().__init__(
                # Programs have the same paths on all hosts.
                [*_SSH, host, f"cd {shlex.quote(os.getcwd())} && exec {command}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=watchdog.watch_this_group,  # safe: this process has no threads yet
            )
        except FileNotFoundError as error:
            raise ConnectionFailed(
                f"{host} runs no worker: ssh is not installed here. Install openssh-client."
            ) from error

    def port(self, asked):
        """Returns a free port of the worker's host, or None if `asked` gets a signal before.

        Raises:
            ConnectionFailed: if the connection ends before.
        """
        line = b""
        while not asked:
            if not select.select([self.stdout], [], [], POLL_SECONDS)[0]:
                continue
            # Byte by byte, because what follows is the worker's own output.
            byte = os.read(self.stdout.fileno(), 1)
            if not byte:
                raise ConnectionFailed(
                    f"{self._host} runs no worker: {self._reason()}. It must be possible to call "
                    f"`ssh {self._host}` without a password, and {sys.executable} and "
                    f"{os.getcwd()} must exist there."
                )
            if byte != b"\n":
                line += byte
                continue
            word, _, port = line.decode(errors="replace").partition(" ")
            if word == READY:
                return int(port)
            line = b""  # a greeting of the host's shell
        return None

    def _reason(self):
        said = self.stderr.read().decode(errors="replace").split("\n")
        return "; ".join(filter(None, map(str.strip, said))).rstrip(".") or "no connection"

    def start(self, program, environment):
        """Starts the program of the worker.

        Args:
            program: list of strings.
            environment: dictionary of variables that go before those of this process.
        """
        content = json.dumps({"program": program, "environment": environment})
        self._is_started = True
        with contextlib.suppress(BrokenPipeError):  # the client has ended, which its status tells
            self.stdin.write(content.encode() + b"\n")
            self.stdin.flush()

    def ask_to_end(self):
        """Has the worker ended on its host, after which the client ends."""
        if not self._is_started:
            os.kill(self.pid, signal.SIGKILL)  # unlike `kill`, this keeps its id taken
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()


def without_login(environment):
    """Returns the variables of an environment that do not describe a login at a host."""
    return {name: value for name, value in environment.items() if not name.startswith(_OF_A_LOGIN)}
