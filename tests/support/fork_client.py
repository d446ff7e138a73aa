"""Lets a `ForkServer` run a program, and ends as that program does: see fork_server.py.

python -S -E fork_client.py address program arguments
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time

SECONDS_TO_START = 120
PASSED_ON = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT


def pass_on(signum, _):
    with contextlib.suppress(ProcessLookupError):
        os.kill(fork, signum)


signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until there is a fork
address, *arguments = sys.argv[1:]
rank = int(os.environ.get("HOROVOD_RANK", 0))
if "TF_CONFIG" in os.environ:
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
address += str(rank % 2)
deadline = time.monotonic() + SECONDS_TO_START
while not os.path.exists(address):
    assert time.monotonic() < deadline, f"no server at {address} after {SECONDS_TO_START} seconds"
    time.sleep(0.05)
server = socket.socket(socket.AF_UNIX)
server.connect(address)
request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
socket.send_fds(server, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
answers = server.makefile()
fork = int(answers.readline())
for signum in PASSED_ON:
    signal.signal(signum, pass_on)
signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
status = int(answers.readline())
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
