"""TensorFlow's server in a worker leaves signals alone, waits for links, and is local."""

import ctypes
import json
import os
import signal
import time

from tests.support.launch import free_addresses
from tests.support.programs import start_python
from tf_onebit._launch import tf_config
from tf_onebit.distribute.server import sigterm_as_it_was

WORKER = """
import json, os, socket, time
import tf_onebit
from tensorflow.python.eager import context

tf_onebit.distribute.MultiWorkerMirroredStrategy()
port = int(os.environ["PORT"])
connection = socket.create_connection(("127.0.0.1", port))

def sockets():
    for fd in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(fd))
        except OSError:
            continue
        try:
            one = socket.socket(fileno=copy)
            if one.type == socket.SOCK_STREAM and one.getsockname()[1] == port:
                yield one
        except OSError:
            os.close(copy)

def facts():
    accepted, devices = [], []
    for one in sockets():
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            device = one.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
            devices.append(device.strip(b"\\0").decode())
        else:
            accepted.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    return {"accepted": accepted, "devices": devices}

# What was seen is told, and not looked at again: TensorFlow may connect at any time, and what it
# connects is tended within a second.
deadline = time.monotonic() + 10
seen = facts()
while (any(seen["accepted"]) or seen["devices"] != ["lo"]) and time.monotonic() < deadline:
    time.sleep(0.1)
    seen = facts()
heartbeat = context.context().coordination_service.heartbeat_timeout_in_ms
print(json.dumps(seen | {"heartbeat": heartbeat}), flush=True)
time.sleep(100)
"""


def test_a_worker_ends_when_it_is_asked_to_and_its_server_waits_and_is_local():
    addresses = free_addresses(1)
    environment = tf_config(addresses, 0) | {"PORT": addresses[0].rpartition(":")[2]}
    with start_python(WORKER, in_fork=True, **environment) as worker:
        try:
            facts = json.loads(worker.stdout.readline())
            assert facts["devices"] == ["lo"]
            assert facts["accepted"] and not any(facts["accepted"])
            assert facts["heartbeat"] == 120_000
            start = time.monotonic()
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(20) == -signal.SIGTERM
            assert time.monotonic() - start < 5
        finally:
            worker.kill()


def test_a_handler_of_the_program_stays():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("SIGTERM"))
    try:
        with sigterm_as_it_was():
            ctypes.CDLL(None).signal(signal.SIGTERM, int(signal.SIG_IGN))
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == ["SIGTERM"]
    finally:
        signal.signal(signal.SIGTERM, before)
