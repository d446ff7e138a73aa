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

_POLL_SECONDS = 0.1
# Between asking a worker to end and making it.
_GRACE_SECONDS = 10
_PR_SET_PDEATHSIG = 1


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
    addresses = free_addresses(num_workers)
    workers, readers = [], []
    previous = signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    try:
        for rank in range(num_workers):
            workers.append(_start(program, tf_config(addresses, rank)))
        readers = _mark_output(workers)
        return _first_failure(workers)
    except OSError as error:
        print(f"tf-onebit launch: {shlex.join(program)}: {error.strerror}", file=sys.stderr)
        return 127
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        _end(workers)
        for reader in readers:
            reader.join(_GRACE_SECONDS)
        signal.signal(signal.SIGTERM, previous)


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
        # What a worker starts ends with it, and it ends with this process, however that ends.
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
    )


def _mark_output(workers):
    """Copies the workers' output, line by line. Returns the threads that do."""
    readers = [
        threading.Thread(target=_mark_lines, args=(pipe, file, f"[{rank}] ".encode()), daemon=True)
        for rank, worker in enumerate(workers)
        for pipe, file in ((worker.stdout, sys.stdout.buffer), (worker.stderr, sys.stderr.buffer))
    ]
    for reader in readers:
        reader.start()
    return readers


def _mark_lines(pipe, file, mark):
    for line in pipe:
        file.write(mark + line.removesuffix(b"\n") + b"\n")
        file.flush()


def _first_failure(workers):
    running = dict(enumerate(workers))
    while running:
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


def _end(workers):
    """Ends the workers and all that they started."""
    _signal_groups(workers, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_SECONDS
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(max(0, deadline - time.monotonic()))
    _signal_groups(workers, signal.SIGKILL)


def _signal_groups(workers, signum):
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signum)
