"""Runs a program as a worker under `horovodrun`, on a core of its own.

horovodrun -np 2 python benchmarks/pinned.py examples/speech/train.py --epochs 3
"""

import os
import sys


def pin():
    """Pins this worker of `horovodrun` to a core of its own, if there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["HOROVOD_LOCAL_RANK"]) % len(cores)]})


if __name__ == "__main__":
    pin()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
