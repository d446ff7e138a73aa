"""Lines to write into a program, for a method that is recommended."""

_STEPS_OF_WARM_START = 1000


def lines_for(advice, sync_period, target_density):
    """The lines of Python that make the exchange, and where it goes: list of strings.

    Args:
        advice: `planner.Advice`.
        sync_period: of blocks, in steps.
        target_density: of threshold-sparse updates.
    """
    method = advice.method
    if method.startswith("blocks"):
        one_bit = "exchange=tf_onebit.OneBit()" if method.endswith("1-bit") else None
        arguments = ", ".join(filter(None, [f"sync_period={sync_period}", one_bit]))
        exchange = "tf_onebit.Local()"
        last = [f"callbacks = [tf_onebit.callbacks.BlockMomentum({arguments})]  # of model.fit"]
    else:
        exchange, last = _exchange(method, advice.bucket_bytes, target_density), []
    return [
        f"exchange = {exchange}",
        "strategy = tf_onebit.distribute.MultiWorkerMirroredStrategy(exchange)",
        "optimizer = hvd.DistributedOptimizer(optimizer, exchange)  # over Horovod",
        *last,
    ]


def _exchange(method, bucket_bytes, target_density):
    kind, _, delayed = method.partition(", ")
    arguments = [f"target_density={target_density:g}"] if kind == "threshold" else []
    if bucket_bytes is not None:
        arguments.append(f"bucket_bytes={bucket_bytes // 2**20} * 2**20")
    classes = {"full precision": "FullPrecision", "1-bit": "OneBit", "threshold": "Threshold"}
    exchange = f"tf_onebit.{classes[kind]}({', '.join(arguments)})"
    if delayed:
        exchange = f"tf_onebit.Delayed({exchange})"
    if kind == "1-bit":  # gradients of a model that is not yet trained are uneven
        exchange = f"tf_onebit.WarmStart({exchange}, steps={_STEPS_OF_WARM_START})"
    return exchange
