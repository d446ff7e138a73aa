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
import time

from tf_onebit._launch.groups import POLL_SECONDS, Watchdog, end
from tf_onebit._launch.output import Output

_PR_SET_CHILD_SUBREAPER = 36
# Signals that end the launcher: Ctrl-C, `kill`, and a closed terminal.
_ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


def add_command(commands):
    """Adds `launch` to the commands of an `argparse` parser."""
    parser = commands.add_parser(
        "launch",
        help="start the workers of a job on this machine",
        description="Starts a program in several processes on this machine. Sets TF_CONFIG in each "
        "so that they form a TensorFlow cluster. Marks their output by rank. If one process fails, "
        "ends all of them.",
        usage="tf-onebit launch -np 2 -- python train.py",
    )
    parser.add_argument(
        "-np", "--num-proc", type=_number, required=True, help="number of processes"
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="show all log messages of TensorFlow's libraries (default: errors of all workers and "
        "warnings of the first, unless TF_CPP_MIN_LOG_LEVEL is set)",
    )
    parser.add_argument("program", nargs="+", help="program and its arguments, after --")
    parser.set_defaults(
        run=lambda options: launch(options.num_proc, options.program, options.verbose)
    )


def _number(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"The number of processes must be at least 1. Received: {text}"
        )
    return int(text)


def launch(num_workers, program, verbose=False):
    """Runs `program` in `num_workers` processes, until all have ended or one has failed.

    Args:
        num_workers: number of processes.
        program: list of strings, the program and its arguments.
        verbose: whether to show all log messages of TensorFlow's libraries.

    Returns:
        0, or the exit status of the first process that failed, as a shell reports it.
    """
    workers, output = [], Output(verbose)
    watchdog = Watchdog()
    # Processes that outlive the worker that started them become children of this process. So it
    # can find out whether they have ended.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # Signals that this process was started to ignore, as with nohup, stay ignored.
    previous = {s: h for s in _ENDING if (h := signal.getsignal(s)) != signal.SIG_IGN}
    asked, failure = [], None  # signals received
    for signum in previous:
        signal.signal(signum, lambda signum, _: asked.append(signum))
    try:
        addresses = free_addresses(num_workers)
        for rank in range(num_workers):
            settings = {} if verbose else _log_level(rank)
            environment = settings | os.environ | tf_config(addresses, rank)
            workers.append(_start(program, environment, watchdog))
        output.copy(workers)
        status, failure = _first_failure(workers, output, asked)
    except OSError as error:
        print(f"tf-onebit launch: {shlex.join(program)}: {error.strerror}", file=sys.stderr)
        return 127
    finally:
        _end(workers, asked)
        output.finish()
        watchdog.dismiss()
        if failure:  # below all output of workers
            print(f"tf-onebit launch: {failure}", file=sys.stderr)
        for signum, handler in previous.items():
            signal.signal(signum, handler)
    if output.error is None:
        return status
    print(
        f"tf-onebit launch: the output of the workers cannot be written: {output.error.strerror}. "
        "All workers were ended.",
        file=sys.stderr,
    )
    return status or 1


def _log_level(rank):
    """Returns the variable that hides TensorFlow's warnings on all workers but the first.

    Warnings at start-up are the same on all workers. Errors may differ.
    """
    return {"TF_CPP_MIN_LOG_LEVEL": "1" if rank == 0 else "2"}


def tf_config(addresses, rank):
    """Returns the environment variable that gives a worker its place in a cluster: dictionary."""
    task = {"type": "worker", "index": rank}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}


def free_addresses(count):
    """Returns addresses of this machine, `host:port`, with unused ports."""
    with contextlib.ExitStack() as stack:
        # All sockets are open at once, so that no port comes twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def _start(program, environment, watchdog):
    return subprocess.Popen(
        program,
        # Without this, Python buffers many lines before it writes them to a pipe.
        env={"PYTHONUNBUFFERED": "1"} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that processes of a worker end with it
        preexec_fn=watchdog.watch_this_group,  # safe: this process has no threads yet
    )


def _first_failure(workers, output, asked):
    """Waits until all workers have ended, one has failed, or a signal has come.

    Returns:
        Status of the job, and a sentence on the failure, or None if no worker failed.
    """
    running, ended = dict(enumerate(workers)), []
    while running and output.error is None and not asked:
        for rank, worker in list(running.items()):
            status = _status(worker)
            if status:
                return status if status > 0 else 128 - status, _failure(
                    rank, status, ended, running
                )
            if status == 0:
                ended.append(rank)
                del running[rank]
        time.sleep(POLL_SECONDS)
    return 128 + asked[0] if asked else 0, None


def _status(worker):
    """Polls a worker like `worker.poll()`, but keeps the ids of the worker and its group taken."""
    ended = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _failure(rank, status, ended, running):
    """Describes how a worker failed.

    It names the workers that had ended before, because the failed worker may have needed them.
    """
    how = f"with status {status}" if status > 0 else f"by signal {-status}"
    text = f"worker {rank} ended {how}"
    if ended:
        who = f"worker {ended[0]}" if len(ended) == 1 else f"workers {', '.join(map(str, ended))}"
        text = f"{who} ended with status 0 while others were running. Then {text}"
    return f"{text}. The others were ended." if len(running) > 1 else f"{text}."


def _end(workers, asked):
    """Ends the workers and all processes that they started, at once if another signal comes."""
    before = len(asked)
    end([worker.pid for worker in workers], is_urgent=lambda: len(asked) > before)
    for worker in workers:
        worker.wait()
