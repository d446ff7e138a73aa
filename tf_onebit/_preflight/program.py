"""Lines of Python for a program that uses a recommended method."""

from tf_onebit._configurable import as_python, serialize
from tf_onebit.exchanges import Delayed, FullPrecision, Local, WarmStart


def lines_for(method, bucket_bytes):
    """Returns the lines of Python that make the exchange and use it: list of strings.

    Args:
        method: the recommended `planner.Method`.
        bucket_bytes: of the exchange, or None to keep its own.
    """
    exchange, last = method.template, []
    if method.sync_period is not None:
        arguments = [f"sync_period={method.sync_period}"]
        if not isinstance(exchange, FullPrecision):  # the default
            arguments.append(f"exchange={_python(exchange)}")
        callback = f"tf_onebit.callbacks.BlockMomentum({', '.join(arguments)})"
        exchange, last = Local(), [f"callbacks = [{callback}]  # of model.fit"]
    else:
        exchange = _scheduled(exchange, method.delay, bucket_bytes)
    return [
        f"exchange = {_python(exchange)}",
        "strategy = tf_onebit.distribute.MultiWorkerMirroredStrategy(exchange)",
        "optimizer = hvd.DistributedOptimizer(optimizer, exchange)  # over Horovod",
        *last,
    ]


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
