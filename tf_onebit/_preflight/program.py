"""Lines of Python for a program that uses a recommended method."""

from tf_onebit._configurable import as_python, serialize
from tf_onebit._training.building import resolve_exchange
from tf_onebit.exchanges import Delayed, Local, WarmStart


def lines_for(method, bucket_bytes):
    """Returns the lines of Python that make the exchange and use it: list of strings.

    Args:
        method: the recommended `planner.Method`.
        bucket_bytes: of the exchange, or None to keep its own.
    """
    exchange, callbacks = _exchange_and_callbacks(method, bucket_bytes)
    if method.workers_per_node > 1:
        return [
            f"exchange = {_python(exchange)}",
            'hvd.init(process_sets="dynamic")',
            'optimizer = hvd.DistributedOptimizer(optimizer, exchange, groups="node")',
        ]
    return [
        f"exchange = {_python(exchange)}",
        "strategy = tf_onebit.distribute.MultiWorkerMirroredStrategy(exchange)",
        "optimizer = hvd.DistributedOptimizer(optimizer, exchange)  # over Horovod",
        *callbacks,
    ]


def lines_for_groups(method, members, per_replica_batch_size):
    """Returns the lines of Python that split the model among the members of groups: list.

    Args:
        method: `planner.Method` of exchange between groups.
        members: number of members of a group.
        per_replica_batch_size: number of samples for each worker, of which a group takes those of
            all its members.
    """
    exchange, callbacks = _exchange_and_callbacks(method, None)
    return [
        f"exchange = {_python(exchange)}",
        'hvd.init(process_sets="dynamic")',
        f"groups = tf_onebit.model_parallel.Groups({members})",
        "model = tf_onebit.model_parallel.split(model, groups)",
        "optimizer = hvd.DistributedOptimizer(optimizer, exchange)",
        f"batch_size = {members * per_replica_batch_size}  # of model.fit: samples of a group",
        *callbacks,
        f"# For devices: MultiWorkerMirroredStrategy(exchange, model_parallel={members})",
    ]


def _exchange_and_callbacks(method, bucket_bytes):
    """Returns the exchange of a method, and a list of the line that makes its callbacks, if any."""
    exchange = method.template
    if method.sync_period is None:
        return _scheduled(exchange, method.delay, bucket_bytes), []
    arguments = [f"sync_period={method.sync_period}"]
    fragments = len(method.fragments)
    arguments += [f"fragments={fragments}"] if fragments > 1 else []
    arguments += [f"overlap={method.overlap}"] if method.overlap else []
    if serialize(exchange) != serialize(resolve_exchange(None)):
        arguments.append(f"exchange={_python(exchange)}")
    callback = f"tf_onebit.callbacks.BlockMomentum({', '.join(arguments)})"
    return Local(), [f"callbacks = [{callback}]  # of model.fit"]


def _scheduled(exchange, delay, bucket_bytes):
    scheduled = exchange
    if bucket_bytes is not None:
        config = exchange.get_config() | {"bucket_bytes": bucket_bytes}
        scheduled = exchange.from_config(config)
    if delay:
        scheduled = Delayed(scheduled, steps=delay)
    if exchange.advised_warm_up:
        scheduled = WarmStart(scheduled, steps=exchange.advised_warm_up)
    return scheduled


def _python(exchange):
    return as_python(serialize(exchange), "tf_onebit.")
