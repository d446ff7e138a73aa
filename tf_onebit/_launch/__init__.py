"""`tf-onebit launch`: the workers of a job, as a TensorFlow cluster."""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time

from tf_onebit._launch.groups import GRACE_SECONDS, POLL_SECONDS, Watchdog, adopt_orphans, end
from tf_onebit._launch.hosts import hosts_argument, is_here, places, reserved_ports
from tf_onebit._launch.output import Output
from tf_onebit._launch.ssh import ConnectionFailed, RemoteWorker, without_login

_THIS_MACHINE = "127.0.0.1"
_STATUS_OF_SSH = 255
# Without this, Python buffers many lines before it writes them to a pipe.
_UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
# Signals that end the launcher: Ctrl-C, `kill`, and a closed terminal.
_ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


def add_command(commands):
    """Adds `launch` to the commands of an `argparse` parser."""
    parser = commands.add_parser(
        "launch",
        help="start the workers of a job on this machine, or on several by SSH",
        description="Starts a program in several processes. Sets TF_CONFIG in each so that they "
        "form a TensorFlow cluster. Marks their output by rank. If one process fails, ends all of "
        "them.",
        usage="tf-onebit launch [-np 4] [-H host0:2,host1:2] -- python train.py",
    )
    parser.add_argument(
        "-np",
        "--num-proc",
        type=_number,
        help="number of processes (default: as many as the hosts have)",
    )
    parser.add_argument(
        "-H",
        "--hosts",
        type=hosts_argument,
        help="names of hosts, each with its number of processes, such as host0:2,host1:2 (default: "
        "this machine)",
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="show all log messages of TensorFlow's libraries (default: errors of all workers and "
        "warnings of the first, unless TF_CPP_MIN_LOG_LEVEL is set)",
    )
    parser.add_argument("program", nargs="+", help="program and its arguments, after --")
    parser.set_defaults(run=lambda options: _run(parser, options))


def _run(parser, options):
    if options.hosts is None and options.num_proc is None:
        parser.error("the following arguments are required: -np/--num-proc, or -H/--hosts")
    try:
        if options.hosts is None:
            names = [_THIS_MACHINE] * options.num_proc
        else:
            names = places(options.hosts, options.num_proc)
        return launch(names, options.program, options.verbose)
    except ValueError as error:
        parser.error(str(error))


def _number(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"The number of processes must be at least 1. Received: {text}"
        )
    return int(text)


def launch(names, program, verbose=False):
    """Runs `program` in several processes, until all have ended or one has failed.

    Args:
        names: list with the name or address of each process' host. Processes on other hosts are
            started by SSH.
        program: list of strings, the program and its arguments.
        verbose: whether to show all log messages of TensorFlow's libraries.

    Returns:
        0, or the exit status of the first process that failed, as a shell reports it.

    Raises:
        ValueError: for a host that has no address.
    """
    here = {name: is_here(name) for name in dict.fromkeys(names)}
    workers, output = [], Output(verbose)
    watchdog = Watchdog()
    adopt_orphans()
    # Signals that this process was started to ignore, as with nohup, stay ignored.
    previous = {s: h for s in _ENDING if (h := signal.getsignal(s)) != signal.SIG_IGN}
    asked, failure = [], None  # signals received
    for signum in previous:
        signal.signal(signum, lambda signum, _: asked.append(signum))
    try:
        for name in names:
            workers.append(None if here[name] else RemoteWorker(name, watchdog))
        addresses = _addresses(names, workers, asked)
        if not asked:
            for rank, worker in enumerate(workers):
                settings = _UNBUFFERED | ({} if verbose else _log_level(rank))
                environment = settings | os.environ | tf_config(addresses, rank)
                if worker is None:
                    workers[rank] = _start(program, environment, watchdog)
                else:
                    worker.start(program, without_login(environment))
            output.copy(workers)
        status, failure = _first_failure(workers, names, output, asked)
    except ConnectionFailed as error:
        status, failure = 1, str(error)
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


def _addresses(names, workers, asked):
    """Returns the address of each worker, `host:port`: list. It is of no use if a signal comes.

    Args:
        names: list with the name of each worker's host.
        workers: list with the connection to each worker, None for those on this machine.
        asked: list of signals that have come.
    """
    with reserved_ports(workers.count(None)) as ports:
        own = iter(ports)
        return [
            f"{name}:{next(own) if worker is None else worker.port(asked)}"
            for name, worker in zip(names, workers, strict=True)
        ]


def _start(program, environment, watchdog):
    return subprocess.Popen(
        program,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that processes of a worker end with it
        preexec_fn=watchdog.watch_this_group,  # safe: this process has no threads yet
    )


def _first_failure(workers, names, output, asked):
    """Waits until all workers have ended, one has failed, or a signal has come.

    Returns:
        Status of the job, and a sentence on the failure, or None if no worker failed.
    """
    running, ended = dict(enumerate(workers)), []
    while running and output.error is None and not asked:
        for rank, worker in list(running.items()):
            status = _status(worker)
            if status:
                failure = _failure(rank, names, status, ended, running)
                return status if status > 0 else 128 - status, failure
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


def _failure(rank, names, status, ended, running):
    """Describes how a worker failed.

    It names the workers that had ended before, because the failed worker may have needed them.
    """
    how = f"with status {status}" if status > 0 else f"by signal {-status}"
    where = f" on {names[rank]}" if len(set(names)) > 1 else ""
    text = f"worker {rank}{where} ended {how}"
    if where and status == _STATUS_OF_SSH:
        text += ", as SSH does if a connection is lost"
    if ended:
        who = f"worker {ended[0]}" if len(ended) == 1 else f"workers {', '.join(map(str, ended))}"
        text = f"{who} ended with status 0 while others were running. Then {text}"
    return f"{text}. The others were ended." if len(running) > 1 else f"{text}."


def _end(workers, asked):
    """Ends the workers and all processes that they started, at once if another signal comes."""
    before = len(asked)

    def is_urgent():
        return len(asked) > before

    started = [worker for worker in workers if worker is not None]
    distant = [worker for worker in started if isinstance(worker, RemoteWorker)]
    for worker in distant:
        worker.ask_to_end()
    end([worker.pid for worker in started if worker not in distant], is_urgent)
    deadline = time.monotonic() + 2 * GRACE_SECONDS
    while not is_urgent() and time.monotonic() < deadline and None in map(_status, distant):
        time.sleep(POLL_SECONDS)
    end([worker.pid for worker in distant], is_urgent)
    for worker in started:
        worker.wait()
