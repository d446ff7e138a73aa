"""Links: latency, bandwidth, and the computing time that messages take from workers."""

import math
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
# Computation beside a collective lasts longer than the collective, by this factor.
_LONGER = 1.5
_MATRIX_SIZE, _TRIAL_PRODUCTS = 256, 20
_NUMBER = tf.TensorSpec([], tf.int32)

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
    """

    def __init__(self, engine):
        self.world_size = engine.world_size
        self.rank = engine.ranks[0]
        self._engine = engine
        self._functions = {}

    def divided(self, members):
        """Divides the workers of a Horovod job into groups of consecutive ranks.

        Args:
            members: number of workers in a group, which divides that of all.

        Returns:
            Two `Links`: of the group of this worker, and of the workers at its place in all groups.
        """
        return [Links(engine) for engine in self._engine.divided(members)]

    def measure_divided(self, members):
        """Measures links within groups and between them: two dictionaries, as from `measure`.

        Args:
            members: see `divided`.
        """
        within, between = (links.measure() for links in self.divided(members))
        self.wait_for_all()  # the first process that ends would end the job for other groups
        return within, between

    def are_on_nodes(self, workers_per_node):
        """Tells whether a Horovod job has several nodes, each with so many workers."""
        sizes = set(map(len, self._engine.nodes()))
        return sizes == {workers_per_node} and self.world_size > workers_per_node

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

    def measure(self):
        """Measures the collectives of this job. Returns a dictionary from kinds to `Link`."""
        product_seconds = self._median(lambda: _compute(_TRIAL_PRODUCTS), _RUNS) / _TRIAL_PRODUCTS
        return {kind: self._measure(kind, product_seconds) for kind in _REQUESTS}

    def _measure(self, kind, product_seconds):
        def seconds_of(sent_bytes, runs):
            collective = self._collective(kind, sent_bytes)
            return self._median(lambda: collective(0), runs)

        latency, least_bytes = seconds_of(0, _LATENCY_RUNS), 0
        sent_bytes, seconds = _FIRST_BYTES, 0.0
        while seconds < _LEAST_SECONDS and sent_bytes < _MOST_BYTES:
            sent_bytes *= 2 if seconds > _LEAST_SECONDS / 2 else 4
            seconds = seconds_of(sent_bytes, 1)
        # The rate comes from two sizes, because the first bytes after a pause pass at any rate.
        short_bytes = sent_bytes // 4
        short, long = seconds_of(short_bytes, _RUNS), seconds_of(sent_bytes, _RUNS)
        rate = (sent_bytes - short_bytes) / (long - short) if long > short else sent_bytes / long
        least = latency
        if kind == "all_reduce":
            least_bytes = all_reduce_bytes(FLOAT_BYTES * _LEAST_SUM, self.world_size)
            least = seconds_of(least_bytes, _LATENCY_RUNS)
            latency = max(latency, least - least_bytes / rate)

        def work_beside(sent_bytes, seconds, runs):
            products = math.ceil(_LONGER * seconds / product_seconds)
            return self._work(self._collective(kind, sent_bytes), products, runs)

        least_work = work_beside(least_bytes, least, _LATENCY_RUNS)
        work = work_beside(short_bytes, short, _RUNS)
        return Link(latency, rate, max(0.0, work - least_work) / short_bytes, least_work)

    def _work(self, collective, products, runs):
        """Returns the time by which a collective delays a computation: median of the runs.

        All workers compute at once. So where they share cores, each collective takes from the
        computation of all. Processor time would not tell: workers that wait use it, too.
        """
        delays = []
        for _ in range(1 + runs):
            alone = self._seconds(lambda: _compute(products))
            delays.append(self._seconds(lambda: collective(products)) - alone)
        (delay,) = self.slowest(np.median(delays[1:]))
        return max(0.0, delay)

    def _median(self, run, runs):
        """Returns the median time of a call on the slowest worker."""
        times = [self._seconds(run) for _ in range(1 + runs)]
        return self.slowest(np.median(times[1:]))[0]

    def _seconds(self, run):
        self.wait_for_all()
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def _collective(self, kind, sent_bytes):
        """Returns a function that sends `sent_bytes` bytes beside a number of matrix products."""
        # A name of a collective has one shape only.
        name = f"tf_onebit/_measurement/{kind}_{sent_bytes}"

        def run(products, *tensors):
            (answer,) = self._engine.run([one_request(_REQUESTS[kind](list(tensors), name))])
            return _product(products), *tf.nest.flatten(answer)

        tensors = [tf.zeros(shape) for shape in self._shapes(kind, sent_bytes)]
        if name not in self._functions:
            specs = [_NUMBER, *(tf.TensorSpec(tensor.shape) for tensor in tensors)]
            self._functions[name] = tf.function(run, autograph=False).get_concrete_function(*specs)
        function = self._functions[name]
        return lambda products: [
            answer[..., :1].numpy() for answer in function(tf.constant(products), *tensors)
        ]

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


@tf.function(input_signature=[_NUMBER], autograph=False)
def _product(factors):
    """Multiplies as many matrices, one after another."""
    matrix = tf.eye(_MATRIX_SIZE)

    def multiplied(number, product):
        return number + 1, tf.matmul(matrix, product)

    loop = [lambda number, _: number < factors, multiplied, [0, matrix]]
    return tf.while_loop(*loop, parallel_iterations=1)[1]


def _compute(products):
    _product(tf.constant(products))[:1, :1].numpy()
