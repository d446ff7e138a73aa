"""`tf-onebit launch`: the workers of a job on this machine, as a TensorFlow cluster."""

import argparse
import contextlib
import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time

_POLL_SECONDS = 0.01
# Between asking a worker to end and making it.
_GRACE_SECONDS = 10
_PR_SET_PDEATHSIG = 1
# What ends the launcher: from the terminal, by others, and because the terminal is gone.
_ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


def add_command(commands):
    """Adds `launch` to the commands of an `argparse` parser."""
    parser = commands.add_parser(
        "launch",
        help="start the workers of a job on this machine",
        description="Starts a program in several processes on this machine, each with TF_CONFIG "
        "set to its place in a cluster of all of them, and marks their output by rank. If one "
        "fails, all are ended.",
        usage="tf-onebit launch -np 2 -- python train.py",
    )
    parser.add_argument("-np", "--num-proc", type=_number, required=True, help="how many processes")
    parser.add_argument("program", nargs="+", help="with its arguments, after --")
    parser.set_defaults(run=lambda options: launch(options.num_proc, options.program))


def _number(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"The number of processes must be at least 1. Received: {text}"
        )
    return int(text)


def launch(num_workers, program):
    """Runs `program` in `num_workers` processes, until all have ended or one has failed.

    Args:
        num_workers: number of processes.
        program: list of strings, the program and its arguments.

    Returns:
        0, or the exit status of the first that failed, as a shell tells it.
    """
    workers, output = [], _Output()
    # But for what this process was started to ignore, as with nohup.
    previous = {s: h for s in _ENDING if (h := signal.getsignal(s)) != signal.SIG_IGN}
    _handle(previous, lambda signum, _: sys.exit(128 + signum))
    try:
        addresses = free_addresses(num_workers)
        for rank in range(num_workers):
            workers.append(_start(program, tf_config(addresses, rank)))
        output.mark(workers)
        status = _first_failure(workers, output)
    except OSError as error:
        print(f"tf-onebit launch: {shlex.join(program)}: {error.strerror}", file=sys.stderr)
        return 127
    finally:
        _end(workers, previous)
        output.finish()
        for signum, handler in previous.items():
            signal.signal(signum, handler)
    if output.error is None:
        return status
    print(
        f"tf-onebit launch: the output of the workers cannot be written: {output.error.strerror}. "
        "They are ended.",
        file=sys.stderr,
    )
    return status or 1


def _handle(signals, handler):
    for signum in signals:
        signal.signal(signum, handler)


def tf_config(addresses, rank):
    """The environment variable that gives a worker its place in a cluster: dictionary."""
    task = {"type": "worker", "index": rank}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}


def free_addresses(count):
    """Addresses of this machine, `host:port`, where nobody listens."""
    with contextlib.ExitStack() as stack:
        # All at once, or the same could come again.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def _start(program, environment):
    libc = ctypes.CDLL(None)
    return subprocess.Popen(
        program,
        # Else a program that writes to a pipe keeps its lines until there are many.
        env={"PYTHONUNBUFFERED": "1"} | os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # What a worker starts is ended with it; and it ends with this process, however that ends.
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
    )


class _Output:
    """The output of workers, line by line, each marked by the rank of its worker.

    Attributes:
        error: why it cannot be written, or None.
    """

    def __init__(self):
        self.error = None
        self._readers = []

    def mark(self, workers):
        """Begins to copy what workers say."""
        for rank, worker in enumerate(workers):
            for pipe, file in ((worker.stdout, sys.stdout), (worker.stderr, sys.stderr)):
                arguments = pipe, file, f"[{rank}] ".encode()
                reader = threading.Thread(target=self._copy, args=arguments, daemon=True)
                reader.start()
                self._readers.append(reader)

    def finish(self):
        """Waits until all has been copied that workers have said."""
        for reader in self._readers:
            reader.join(_GRACE_SECONDS)

    def _copy(self, pipe, file, mark):
        try:
            for line in pipe:
                file.buffer.write(mark + line.removesuffix(b"\n") + b"\n")
                file.buffer.flush()
        except OSError as error:
            # As of `| head`, or a full disk. What Python has kept must not fail once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
            self.error = error


def _first_failure(workers, output):
    running = dict(enumerate(workers))
    while running and output.error is None:
        for rank, worker in list(running.items()):
            status = worker.poll()
            if status:
                how = f"with status {status}" if status > 0 else f"by signal {-status}"
                others = "" if len(workers) == 1 else "; the others are ended"
                print(f"tf-onebit launch: worker {rank} ended {how}{others}.", file=sys.stderr)
                return status if status > 0 else 128 - status
            if status == 0:
                del running[rank]
        time.sleep(_POLL_SECONDS)
    return 0


def _end(workers, signals):
    """Ends the workers and all that they started: at once if one of `signals` comes."""
    deadline = time.monotonic() + _GRACE_SECONDS

    def end_at_once(signum, _):
        nonlocal deadline
        deadline = 0.0

    _handle(signals, end_at_once)
    _signal_groups(workers, signal.SIGTERM)
    while time.monotonic() < deadline and any(worker.poll() is None for worker in workers):
        time.sleep(_POLL_SECONDS)
    _signal_groups(workers, signal.SIGKILL)
    for worker in workers:
        worker.wait()


def _signal_groups(workers, signum):
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signum)
