"""Work and messages of an exchange, measured by running it without other workers."""

import dataclasses
import time

import numpy as np
import tensorflow as tf

from tf_onebit import ops
from tf_onebit.collectives import echo
from tf_onebit.collectives.requests import map_requests, tensors_of, with_tensors
from tf_onebit.collectives.requests import sent_bytes as sent_bytes_of
from tf_onebit.exchanges import Bucketed, GradientSpec, run_stages
from tf_onebit.exchanges.adding import Adding
from tf_onebit.exchanges.node_slices import DenseSlices
from tf_onebit.ops.variables import can_update
from tf_onebit.planner import Bucket, Collective

# The untimed runs allocate memory, and find a threshold.
_UNTIMED_RUNS, _RUNS = 2, 5
# Normal numbers take longer to generate than to encode. Beyond this number they are repeated.
_MOST_NUMBERS = 2**20
# Beyond this number of values, only a part is measured.
_MOST_VALUES = 8 * 2**20


def measure_exchange(exchange, specs, world_size, rows=None, runs=_RUNS, adds=False):
    """Measures the computing time of an exchange with random gradients.

    Args:
        exchange: `Exchange`, as a template. It is measured as `measured_as` says.
        specs: list of `GradientSpec` of a model.
        world_size: number of workers. Only this one runs, and receives its own messages.
        rows: list with the number of rows of each sparse gradient. Default: one row.
        runs: number of timed runs of each bucket; their median counts.
        adds: whether what is exchanged is added to weights, too, except in buckets with sparse
            gradients.

    Returns:
        List of `planner.Bucket`, in the order in which a backward pass computes their gradients.
    """
    rows = rows or [1] * len(specs)
    bucketed = Bucketed(measured_as(exchange))
    if exchange.takes_sparse and not bucketed.template.takes_sparse:
        specs = dense(specs)
    bucketed.build(specs, 0, world_size, "tf_onebit/_measurement")
    measured = {}  # equal layers have equal buckets, and each kind is measured once
    buckets = []
    for exchange, indices in ((bucket.exchange, bucket.indices) for bucket in bucketed.buckets):
        gradients = tuple((dataclasses.replace(specs[i], name=""), rows[i]) for i in indices)
        key = type(exchange), gradients
        if key not in measured:
            measured[key] = _measured(*zip(*gradients, strict=True), exchange, runs, adds)
        buckets.append(measured[key])
    return buckets


def measured_as(exchange):
    """Returns the exchange with its arguments for measurements."""
    return exchange.from_config(exchange.get_config() | exchange.measured_with)


def dense(specs):
    """Returns the specs as an exchange sees them that turns sparse gradients into dense ones."""
    return [dataclasses.replace(spec, sparse=False) for spec in specs]


def with_world_size(buckets, before, after):
    """Converts dense buckets in full precision to another number of workers.

    Their work stays the same.

    Args:
        buckets: list of `planner.Bucket`.
        before, after: the old and the new number of workers, at least 2.

    Returns:
        List of `planner.Bucket`.
    """
    factors = {
        "all_gather": (after - 1) / (before - 1),
        "all_reduce": (1 - 1 / after) / (1 - 1 / before),
    }

    def of_others(bucket):
        collectives = tuple(
            dataclasses.replace(c, sent_bytes=factors[c.kind] * c.sent_bytes)
            for c in bucket.collectives
        )
        return dataclasses.replace(bucket, collectives=collectives)

    return [of_others(bucket) for bucket in buckets]


def with_block_work(buckets, seconds_per_value):
    """Adds the work of `BlockMomentum` at the end of a block to the buckets of its exchange.

    Args:
        buckets: list of `planner.Bucket`, from `measure_exchange`.
        seconds_per_value: result of `measure_block`.

    Returns:
        List of `planner.Bucket`.
    """
    difference, update = seconds_per_value

    def of_block(bucket):
        first, *others = bucket.collectives
        before = first.work_seconds + difference * bucket.size
        return dataclasses.replace(
            bucket,
            collectives=(dataclasses.replace(first, work_seconds=before), *others),
            work_seconds=bucket.work_seconds + update * bucket.size,
        )

    return [of_block(bucket) for bucket in buckets]


def _measured(specs, rows, exchange, runs, adds):
    kinds, beside = [], []
    # An update by a sparse gradient is not an addition. A user's exchange may take both kinds.
    adds = adds and not any(spec.sparse for spec in specs)
    weights = [tf.Variable(tf.zeros(spec.shape, spec.dtype)) for spec in specs if adds]

    def gradients(sign):
        return [_random_gradient(*pair, sign) for pair in zip(specs, rows, strict=True)]

    @tf.function(autograph=False)
    def run(sign):
        seconds, sent, kinds[:], beside[:], exchanged = _timed(exchange, gradients(sign), weights)
        return seconds, sent, exchanged

    _warm_up(exchange, gradients)
    # Signs alternate, because the residual of a steady gradient would exceed any threshold.
    signs = [tf.constant((-1.0) ** i) for i in range(_UNTIMED_RUNS + runs)]
    results = [run(sign) for sign in signs]
    times = np.array([seconds.numpy() for seconds, *_ in results[_UNTIMED_RUNS:]])
    *before, after = np.median(times, axis=0).clip(0).tolist()
    sent_bytes = results[-1][1].numpy().tolist()
    if tf.config.list_logical_devices("GPU"):
        # GPU kernels run asynchronously, so times in the graph mean nothing. Only the total is
        # known.
        making = tf.function(gradients, autograph=False)
        work = _seconds(lambda sign: run(sign)[-1], signs) - _seconds(making, signs)
        *before, after = [max(0.0, work) / (len(before) + 1)] * (len(before) + 1)
    collectives = _one_after_another(map(Collective, before, kinds, sent_bytes), beside)
    return Bucket(sum(spec.size for spec in specs), collectives, after)


def _warm_up(exchange, gradients):
    """Lets an exchange learn from a step of a warm-up.

    Args:
        exchange: built `Exchange`.
        gradients: function from a sign to a list of tensors.
    """

    @tf.function(autograph=False)
    def learn():
        exchange.learn(gradients(1.0))

    learn()


def _one_after_another(collectives, beside):
    """Merges each collective that runs beside the one before into it, with one latency."""
    joined = []
    for collective, is_beside in zip(collectives, beside, strict=True):
        if is_beside:
            first = joined.pop()
            larger = max(first, collective, key=lambda one: one.sent_bytes)
            collective = Collective(
                first.work_seconds + collective.work_seconds,
                larger.kind,
                first.sent_bytes + collective.sent_bytes,
            )
        joined.append(collective)
    return tuple(joined)


def _seconds(function, signs):
    """Returns the median time of calls, until their results are computed."""
    times = []
    for sign in signs:
        start = time.perf_counter()
        first, *_ = tf.nest.flatten(function(sign), expand_composites=True)
        tf.reshape(first, [-1])[:1].numpy()  # waits for all earlier work of a GPU
        times.append(time.perf_counter() - start)
    return float(np.median(times[_UNTIMED_RUNS:]))


def _random_gradient(spec, rows, sign):
    dtype = tf.as_dtype(spec.dtype)
    with tf.init_scope():
        if spec.sparse:
            values = tf.ones([rows, *spec.shape[1:]], dtype)
        else:
            values = _random_values(spec.size, dtype)
    values *= tf.cast(sign, dtype)  # made in the graph, as in a step, so its memory can be reused
    if not spec.sparse:
        return tf.reshape(values, spec.shape)
    indices = tf.range(rows) % spec.shape[0]
    return tf.IndexedSlices(values, indices, tf.constant(spec.shape))


def _random_values(size, dtype):
    some = tf.random.stateless_normal([min(size, _MOST_NUMBERS)], seed=[1, size], dtype=dtype)
    return some if size <= _MOST_NUMBERS else tf.tile(some, [-(-size // _MOST_NUMBERS)])[:size]


def _timed(exchange, gradients, weights):
    """Runs an exchange, adds its results to weights, if any, and answers its requests at once.

    Returns:
        A tuple of five. The seconds of work before each request and after the last answer,
        float64 `[requests + 1]`. The bytes that each worker sends for each request, int64
        `[requests]`. The list of the requests' kinds. The list of booleans: whether a request can
        be made before the previous one is answered. The results of the exchange or a value of each
        weight, because TensorFlow does not compute unused results.
    """
    seconds, sent_bytes, kinds, beside, answers = [], [], [], [], set()
    last, gradients = _at(gradients)

    def answered(request):
        nonlocal last
        yield from ()  # makes this a generator; it requests nothing
        tensors = tensors_of(request)
        beside.append(bool(answers) and answers.isdisjoint(ops_before(t.op for t in tensors)))
        if not beside[-1]:
            answers.clear()
        now, tensors = _at(tensors)
        seconds.append(now - last)
        size_bytes = sum(tensor.dtype.size * tf.size(tensor, tf.int64) for tensor in tensors)
        kind, sent = sent_bytes_of(request, size_bytes, exchange.world_size)
        kinds.append(kind)
        sent_bytes.append(sent)
        last, answer = _at(echo.answer_to(with_tensors(request, tensors), exchange.world_size))
        answers.update(tensor.op for tensor in tf.nest.flatten(answer))
        return answer

    generator = map_requests(_run(exchange, gradients, weights), answered)
    try:
        request = next(generator)
    except StopIteration as stop:
        now, results = _at(stop.value)
        return tf.stack([*seconds, now - last]), tf.stack(sent_bytes), kinds, beside, results
    raise TypeError(f"Only exchanges without branches can be measured. Received: {request!r}.")


def _run(exchange, gradients, weights):
    """Generator: runs an exchange, and adds its results to weights as an optimizer of a job does.

    Returns:
        The results of `run_stages`. With weights: a tensor for each that is ready when it is.
    """
    scale = 1.0 / exchange.world_size
    adds = bool(weights) and isinstance(exchange, Adding) and can_update(weights)
    results = yield from run_stages(exchange, gradients, scale, decodes=not adds)
    if not weights:
        return results
    exchanged, _ = results
    if adds:
        exchange.add_to(weights, exchanged, scale, tf.constant(1.0))
    else:
        for weight, gradient in zip(weights, exchanged, strict=True):
            weight.assign_add(gradient)
    # Copies: the next run would have to copy a weight whose own memory is still in use.
    return [tf.cast(tf.reshape(weight, [-1])[:1], tf.float64) for weight in weights]


def _at(tensors):
    """Returns the time at which all tensors were ready, float64 scalar, and the tensors.

    The returned tensors are ready only after that time is taken.
    """
    parts = tf.nest.flatten(tensors, expand_composites=True)
    with tf.control_dependencies(parts):
        time = tf.timestamp()
    with tf.control_dependencies([time]):
        return time, tf.nest.map_structure(tf.identity, tensors, expand_composites=True)


def ops_before(ops):
    """Returns the set of the given operations of a graph, and of all that they wait for."""
    found, left = set(), list(ops)
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            left += [*op.control_inputs, *(source.op for source in op.inputs)]
    return found


def measure_block(size):
    """Measures the end of a block without its exchange, in seconds per value.

    Args:
        size: number of values of the model. If there are more than 8 million, a part is measured.

    Returns:
        Two floats: the time to compute the change in a block, and the time to update the model.
    """
    size = min(size, _MOST_VALUES)
    weight, begin, delta = (tf.Variable(tf.zeros([size])) for _ in range(3))
    one = tf.constant(1.0, tf.float64)

    @tf.function(autograph=False)
    def run():
        start, _ = _at([weight.read_value()])
        changes = ops.block_difference([weight], [begin], [delta], one, one)
        middle, changes = _at(changes)
        ops.block_update(changes, [weight], [begin], [delta], one, one, one, True, True)
        with tf.control_dependencies([weight.read_value()]):
            end = tf.timestamp()
        return tf.stack([middle - start, end - middle])

    return _seconds_per_value(run, size)


def measure_slices(size, per_node):
    """Measures the work of a worker that shares the exchange of its node, in seconds per value.

    Args:
        size: number of values of the model. If there are more than 8 million, a part is measured.
        per_node: number of workers on the node.

    Returns:
        Two floats: the time to add up slices of gradients, and the time to join exchanged slices.
    """
    size = min(size, _MOST_VALUES)
    slices = DenseSlices([GradientSpec("", (size,), "float32")], 0, per_node, "tf_onebit/slices")
    weight = tf.Variable(tf.zeros([size]))

    @tf.function(autograph=False)
    def run():
        begin, gradients = _at([weight.read_value()])
        middle, own = _at(echo.run(slices.averaged(gradients), per_node))
        end, whole = _at(echo.run(slices.joined(own), per_node))
        # TensorFlow would not compute a result that nobody uses.
        return tf.stack([middle - begin, end - middle]), whole[0][:1]

    return _seconds_per_value(lambda: run()[0], size)


def _seconds_per_value(run, size):
    """Returns medians of the times that calls of a function return, divided by a number of values.

    Args:
        run: function that returns a tensor of seconds.
        size: the number of values.
    """
    times = [run().numpy() for _ in range(_UNTIMED_RUNS + _RUNS)][_UNTIMED_RUNS:]
    return (np.median(times, axis=0) / size).tolist()
