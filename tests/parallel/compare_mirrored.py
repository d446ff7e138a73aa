"""Runs the same in a MirroredStrategy of tf.distribute and in ours, and prints both results.

Also in a MultiWorkerMirroredStrategy of one worker with as many devices.

python -m tests.parallel.compare_mirrored
"""

import functools
import gc
import json
import weakref

import numpy as np
import tensorflow as tf

import tf_onebit

DEVICES = ["CPU:0", "CPU:1"]
MODES = {"eager": lambda function: function, "graph": tf.function}
# The values to reduce: a list with the part of each replica, or one value for all.
REDUCED = {
    "a number": 5.0,
    "an array": np.float32(3.0),
    "an array of zero": np.float32(0.0),
    "one tensor": lambda: tf.constant(3.0),
    "nothing": None,
    "int64": [np.int64(1), np.int64(2)],
    "int32": [np.int32(1), np.int32(2)],
    "float16": [np.float16(1.0), np.float16(2.0)],
    "shapes that differ": [np.ones([1]), np.ones([2])],
    "shapes that broadcast": [np.ones([2, 1]), np.ones([1, 2])],
    "types that differ": [np.float32(1.0), np.int32(2)],
}
ASSIGNED = {
    "a number": lambda: 5.0,
    "an array": lambda: np.float32(5.0),
    "another tensor on each": lambda: tf.cast(of_replica().replica_id_in_sync_group, tf.float32),
}
AGGREGATIONS = {
    "mean": {"aggregation": tf.VariableAggregation.MEAN},
    "sum": {"aggregation": tf.VariableAggregation.SUM},
    "of the first replica": {"aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA},
    "mean when read": {
        "aggregation": tf.VariableAggregation.MEAN,
        "synchronization": tf.VariableSynchronization.ON_READ,
    },
}


def of_replica():
    return tf.distribute.get_replica_context()


def distributed(strategy, parts):
    if not isinstance(parts, list):
        return parts() if callable(parts) else parts
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group])
    )


def reduced(reduce_op, value, axis, in_mode, strategy):
    value = distributed(strategy, value)
    return in_mode(lambda: strategy.reduce(reduce_op, value, axis=axis))()


def reduced_variable(reduce_op, in_mode, strategy):
    with strategy.scope():
        variable = tf.Variable(2.0)
    return in_mode(lambda: strategy.reduce(reduce_op, variable, axis=None))()


def assigned(operation, arguments, make_value, in_mode, strategy):
    with strategy.scope():
        variable = tf.Variable(1.0, **arguments)
    strategy.run(in_mode(lambda: getattr(variable, operation)(make_value())))
    return [part.numpy() for part in variable.values]


def met_in_a_function(strategy):
    @tf.function
    def step(x, *, scale):
        if scale > 1.0:  # which AutoGraph makes part of the graph
            x = scale * x
        return of_replica().all_reduce("SUM", x), of_replica().all_gather(x[tf.newaxis], axis=0)

    x = distributed(strategy, [1.0, 2.0])
    within = tf.function(lambda x: strategy.run(step, (x,), {"scale": tf.constant(3.0)}))
    return strategy.run(step, [x], {"scale": tf.constant(2.0)}), within(x)


def run_with_arguments_in_no_list(strategy):
    return strategy.run(tf.function(lambda x: x), tf.constant([1.0]))


def slices():
    return tf.IndexedSlices([[1.0]], [1], [3, 1])


def slices_as_argument(in_mode, strategy):
    return in_mode(lambda: strategy.run(lambda x: tf.convert_to_tensor(x), (slices(),)))()


def slices_as_result(strategy):
    result = strategy.run(slices)
    return [[part.values, part.indices] for part in strategy.experimental_local_results(result)]


def mean_of_all(strategy):
    value = distributed(strategy, [np.int64(1), np.int64(2)])
    return strategy.run(lambda x: of_replica().all_reduce("MEAN", x), (value,))


def sum_of_one(strategy):
    one = tf.constant(1.0)
    return strategy.run(lambda: of_replica().all_reduce("SUM", one))


def cases():
    """Returns functions of a strategy, by name."""
    found = {
        "replicas meet in a tf.function": met_in_a_function,
        "arguments in no list": run_with_arguments_in_no_list,
        "slices as result": slices_as_result,
        "mean of all": mean_of_all,
    }
    for mode, in_mode in MODES.items():
        found[f"slices as argument, {mode}"] = functools.partial(slices_as_argument, in_mode)
        for op in ("SUM", "MEAN"):
            for name, value in REDUCED.items():
                case = functools.partial(reduced, op, value, None, in_mode)
                found[f"{op} of {name}, {mode}"] = case
            for name, axis, value in [
                ("numbers along no axis", 0, [1.0, 2.0]),
                ("batches that differ", 0, [np.ones([1]), np.ones([3])]),
                ("one batch", 0, lambda: tf.constant([1.0, 2.0])),
            ]:
                case = functools.partial(reduced, op, value, axis, in_mode)
                found[f"{op} of {name}, {mode}"] = case
            case = functools.partial(reduced_variable, op, in_mode)
            found[f"{op} of a variable, {mode}"] = case
        for aggregation, arguments in AGGREGATIONS.items():
            for operation in ("assign", "assign_sub"):
                for name, make_value in ASSIGNED.items():
                    case = functools.partial(assigned, operation, arguments, make_value, in_mode)
                    found[f"{operation} {name} to the {aggregation}, {mode}"] = case
    return found


def outcome(case, strategy):
    """Returns the result of a case as text."""
    try:
        result = case(strategy)
    except Exception:  # each strategy has a type and words of its own
        return "an error"
    parts = [p for r in tf.nest.flatten(result) for p in strategy.experimental_local_results(r)]
    return str([(np.array(part).dtype.name, np.array(part).tolist()) for part in parts])


def life_of_a_function(strategy):
    """Counts the traces of a function that runs three times, and tells whether it is freed."""
    traces = []

    def run():
        @tf.function
        def step(x):
            traces.append(None)
            return of_replica().all_reduce("SUM", x)

        for i in range(3):
            strategy.run(step, (tf.constant(float(i)),))
        return weakref.ref(step)

    step = run()
    gc.collect()
    return [len(traces) // len(DEVICES), int(step() is None)]


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * len(DEVICES)
    tf.config.set_logical_device_configuration(cpu, parts)
    stock = tf.distribute.MirroredStrategy(DEVICES)
    ours = tf_onebit.distribute.MirroredStrategy(devices=DEVICES)
    strategies = [stock, ours, tf_onebit.distribute.MultiWorkerMirroredStrategy()]
    result = {name: [outcome(case, s) for s in strategies] for name, case in cases().items()}
    print(json.dumps([result, outcome(life_of_a_function, ours), outcome(sum_of_one, ours)]))


if __name__ == "__main__":
    main()
