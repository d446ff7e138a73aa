"""Links: latency, bandwidth and processor time of messages between workers."""

import hashlib
import os
import socket
import time

import numpy as np
import tensorflow as tf

from tf_onebit.collectives.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    all_reduce_bytes,
    one_request,
)
from tf_onebit.exchanges.base import FLOAT_BYTES
from tf_onebit.planner import Link

_FIRST_BYTES = 16 * 1024
# Smaller sums may be computed in a shorter way than gradients (`collectives/ordered_sum.py`).
_LEAST_SUM = 2048
_MOST_BYTES = 64 * 2**20
# Shorter messages say little, because links let a burst pass at once after a pause.
_LEAST_SECONDS = 0.15
# A lost packet costs a message of 0.15 s half of its time. Enough runs keep it out of the median.
_LATENCY_RUNS, _RUNS = 20, 5
# One bit per core, and 32 bits in each number, which a float64 holds exactly.
_CORE_WORDS = 64

_REQUESTS = {
    "all_to_all": lambda tensors, name: AllToAll(tensors[0], name),
    "all_gather": lambda tensors, name: AllGather(tensors[0], name),
    "all_reduce": AllReduce,
}


class Alone:
    """Single worker, without others to exchange messages with."""

    world_size, rank = 1, 0

    def slowest(self, *values):
        return list(values)

    def wait_for_all(self):
        pass


class Links:
    """Workers of a job, and the links between them.

    Args:
        engine: `Engine` of one worker in this process.
        crowding: what `workers_per_core` returns. Default: as these workers tell.
    """

    def __init__(self, engine, crowding=None):
        self.world_size = engine.world_size
        self.rank = engine.ranks[0]
        self._engine = engine
        self._crowding = crowding
        self._functions = {}

    def divided(self, members):
        """Divides the workers of a Horovod job into groups of consecutive ranks.

        Args:
            members: number of workers in a group, which divides that of all.

        Returns:
            Two `Links`: of the group of this worker, and of the workers at its place in all groups.
        """
        crowding = self.workers_per_core()  # workers of other groups share cores, too
        return [Links(engine, crowding) for engine in self._engine.divided(members)]

    def all(self, values):
        """Gathers numbers of all workers: array `[world_size, len(values)]`."""
        row = tf.constant([list(map(float, values))], tf.float64)
        request = AllGather(row, f"tf_onebit/_measurement/numbers_{len(values)}")
        (rows,) = self._engine.run([one_request(request)])
        return rows.numpy()

    def slowest(self, *values):
        """Returns the maximum of each number over the workers: list."""
        return self.all(values).max(axis=0).tolist()

    def wait_for_all(self):
        """Returns at about the same time on all workers."""
        self.all([0])

    def workers_per_core(self):
        """Returns the number of workers per core that this one may use: 1 / n for n own cores."""
        mine = os.sched_getaffinity(0)
        # A hash of the whole name, with as many bits as a float64 holds exactly.
        host = int.from_bytes(hashlib.sha256(socket.gethostname().encode()).digest()[:6], "big")
        sets = self.all([host, *_as_words(mine)])
        shares = [
            len(mine & (cores := _from_words(row[1:]))) / len(cores)
            for row in sets
            if row[0] == host
        ]
        return sum(shares) / len(mine)

    def measure(self):
        """Measures the collectives of this job. Returns a dictionary from kinds to `Link`."""
        crowding = self.workers_per_core() if self._crowding is None else self._crowding
        return {kind: self._measure(kind, crowding) for kind in _REQUESTS}

    def _measure(self, kind, crowding):
        latency, least_work = self._seconds(kind, 0, _LATENCY_RUNS)
        sent_bytes, seconds = _FIRST_BYTES, 0.0
        while seconds < _LEAST_SECONDS and sent_bytes < _MOST_BYTES:
            sent_bytes *= 2 if seconds > _LEAST_SECONDS / 2 else 4
            seconds, _ = self._seconds(kind, sent_bytes, 1)
        # The rate comes from two sizes, because the first bytes after a pause pass at any rate.
        short, _ = self._seconds(kind, sent_bytes // 4, _RUNS)
        long, work = self._seconds(kind, sent_bytes, _RUNS)
        rate = (
            (sent_bytes - sent_bytes // 4) / (long - short) if long > short else sent_bytes / long
        )
        if kind == "all_reduce":
            least_bytes = all_reduce_bytes(FLOAT_BYTES * _LEAST_SUM, self.world_size)
            seconds, least_work = self._seconds(kind, least_bytes, _LATENCY_RUNS)
            latency = max(latency, seconds - least_bytes / rate)
        work_per_byte = max(0.0, work - least_work) / sent_bytes
        return Link(latency, rate, crowding * work_per_byte, crowding * least_work)

    def _seconds(self, kind, sent_bytes, runs):
        """Returns the median time of a collective, and the median processor time of a worker."""
        function = self._function(kind, sent_bytes)
        times = []
        for _ in range(1 + runs):
            self.wait_for_all()
            start, work = time.perf_counter(), time.process_time()
            function()
            times.append((time.perf_counter() - start, time.process_time() - work))
        return self.slowest(*np.median(times[1:], axis=0))

    def _function(self, kind, sent_bytes):
        # A name of a collective has one shape only.
        name = f"tf_onebit/_measurement/{kind}_{sent_bytes}"

        def run(*tensors):
            (answer,) = self._engine.run([one_request(_REQUESTS[kind](list(tensors), name))])
            return tf.nest.flatten(answer)

        tensors = [tf.zeros(shape) for shape in self._shapes(kind, sent_bytes)]
        if name not in self._functions:
            specs = [tf.TensorSpec(tensor.shape) for tensor in tensors]
            self._functions[name] = tf.function(run, autograph=False).get_concrete_function(*specs)
        function = self._functions[name]
        return lambda: [answer[..., :1].numpy() for answer in function(*tensors)]

    def _shapes(self, kind, sent_bytes):
        """Returns the shapes of tensors with which a worker sends `sent_bytes` bytes: list."""
        size = sent_bytes / FLOAT_BYTES
        others = self.world_size - 1
        if kind == "all_to_all":
            return [[self.world_size, max(1, int(size / others))]]
        if kind == "all_gather":
            return [[1, max(1, int(size / others))]]
        # Two tensors, because a bucket has several: to join and split them takes time, too.
        return 2 * [[max(1, int(size * self.world_size / (4 * others)))]]


def _as_words(cores):
    words = [0] * _CORE_WORDS
    for core in cores:
        if core < 32 * _CORE_WORDS:  # further cores are ignored on all workers
            words[core // 32] |= 1 << core % 32
    return words


def _from_words(words):
    return {
        32 * i + bit for i, word in enumerate(words) for bit in range(32) if int(word) >> bit & 1
    }
