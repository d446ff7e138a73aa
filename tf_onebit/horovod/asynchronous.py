"""AsynchronousOptimizer for Keras 3."""

import numbers

import horovod.tensorflow as hvd
import keras

from tf_onebit._framework_internals.keras_optimizers import mix_in, trained_variables_of
from tf_onebit._training.optimizer import settings
from tf_onebit.collectives.horovod import HorovodEngine
from tf_onebit.exchanges import Threshold
from tf_onebit.horovod.dead_reckoning import DeadReckoning
from tf_onebit.horovod.gradients import require_not_distributed, require_op

# The settings of keras.optimizers.SGD that must keep their defaults, and why.
_REFUSED = {
    "momentum": "deltas of other workers know nothing of it",
    "nesterov": "deltas of other workers know nothing of it",
    "weight_decay": "each worker would decay the weights on its own",
    "clipnorm": "there is no gradient of all workers to clip",
    "clipvalue": "there is no gradient of all workers to clip",
    "global_clipnorm": "there is no gradient of all workers to clip",
    "use_ema": "each worker would average other weights",
}


def AsynchronousOptimizer(
    optimizer: keras.optimizers.SGD,
    exchange: Threshold | None = None,
    op: int = hvd.Average,
    max_staleness: int | None = None,
    timeout_seconds: float = 600.0,
    name: str | None = None,
) -> keras.optimizers.SGD:
    """Wraps `keras.optimizers.SGD` so that workers exchange weight deltas without waiting.

    The method is dead reckoning (Strom 2015, sections 2.3 and 2.6). A worker encodes its own
    gradients as `Threshold` does. Where it sends +tau, it subtracts `learning_rate * tau` from its
    weights, and goes on. In the background all workers gather the messages that there are. At the
    end of its own next step every worker subtracts the deltas that have arrived::

        w <- w - sum over messages of learning_rate * tau * sent        (divided by N for the mean)

    A message carries its own `learning_rate * tau`, which may differ between workers. Every worker
    applies every delta exactly once, in any order. When all have arrived, all replicas are equal
    up to rounding. That holds at the end of `fit`, which waits for all workers, and in backups by
    `tf_onebit.callbacks.BackupAndRestore`. In between, evaluation and other callbacks see the
    weights of their own worker, which may lack deltas under way. End custom training loops with
    `optimizer.finalize_variable_values(variables)`, on all workers.

    Workers do not exchange statistics of layers (BatchNormalization). Gradients of embeddings
    become dense. Train with one such optimizer at a time. Do not call `hvd.grouped_allgather` in
    eager mode meanwhile, because the background thread uses it.

    Args:
        optimizer: `keras.optimizers.SGD` with a learning rate, and nothing else.
        exchange: `tf_onebit.Threshold`. Each worker finds its own tau for a `target_density`.
            Default: `Threshold()`.
        op: `Average` divides a worker's deltas by the number of workers, as `DistributedOptimizer`
            does. `Sum` does not, as in the paper.
        max_staleness: number of steps by which a worker may be ahead of the slowest one before it
            waits. Default: any number.
        timeout_seconds: time without any gathered message after which the other workers are given
            up. A slow step does not count: workers answer meanwhile, from their first step to the
            end of `fit`. At the end, at backups and for `max_staleness`, workers wait for a live
            worker without limit.
        name: name of the optimizer. Default: unchanged.

    Returns:
        `optimizer`, which exchanges deltas from now on. It is saved as `keras.optimizers.SGD`.

    Raises:
        ValueError: for other optimizers, exchanges and settings, with the reason. Also in the
            first step, on all workers, if they do not train the same model in the same way.
        UnknownError: in a step, if another worker has ended or does not answer. With
            `run_eagerly=True`, and at the end of `fit`, a RuntimeError.
        InvalidArgumentError: in a step, on all workers, if a gradient of one is not finite. Also
            if they wait for each other at different places, for example at the end of `fit` and
            at a backup (there a ValueError). After any of these, go on with a new optimizer.

    Example:
        >>> import tf_onebit
        >>> hvd.init()
        >>> exchange = tf_onebit.Threshold(target_density=0.01)
        >>> optimizer = AsynchronousOptimizer(keras.optimizers.SGD(0.1), exchange)
        >>> type(optimizer).__name__
        'SGD'
    """
    if type(optimizer) is not keras.optimizers.SGD:
        require_not_distributed(optimizer)
        raise ValueError(
            "AsynchronousOptimizer wraps only keras.optimizers.SGD, because workers exchange "
            f"steps of gradient descent. Received: optimizer={optimizer!r} of type "
            f"{type(optimizer).__name__}. Use DistributedOptimizer for others."
        )
    for setting, reason in _REFUSED.items():
        if value := getattr(optimizer, setting):
            raise ValueError(
                f"AsynchronousOptimizer needs plain SGD, because {reason}. Received: {setting}="
                f"{value}. Leave it out, or use DistributedOptimizer."
            )
    exchange = Threshold() if exchange is None else exchange
    if not isinstance(exchange, Threshold) or exchange.exclude:
        raise ValueError(
            "AsynchronousOptimizer exchanges all gradients with tf_onebit.Threshold, without "
            f"exclude. Received: exchange={exchange!r}"
            f"{' with an exclude' if isinstance(exchange, Threshold) else ''}. "
            "Use exchange=tf_onebit.Threshold(), or DistributedOptimizer."
        )
    if exchange.selection != "tau":
        raise ValueError(
            "AsynchronousOptimizer sends what exceeds a threshold. Received: "
            f"selection={exchange.selection!r} in its exchange. Leave it out."
        )
    if max_staleness is not None and (
        not isinstance(max_staleness, numbers.Integral) or max_staleness < 0
    ):
        raise ValueError(
            "max_staleness must be a number of steps, at least 0, or None. "
            f"Received: max_staleness={max_staleness}."
        )
    if not timeout_seconds > 0:
        raise ValueError(
            f"timeout_seconds must be positive. Received: timeout_seconds={timeout_seconds}."
        )
    require_op(op)
    _require_plain_variables(trained_variables_of(optimizer) if optimizer.built else [])
    mix_in(optimizer, _Asynchronous)
    optimizer.gradient_exchange = DeadReckoning(
        exchange,
        HorovodEngine(),
        op == hvd.Average,
        [*settings(optimizer), ("asynchronous", "True"), ("max_staleness", str(max_staleness))],
        max_staleness,
        timeout_seconds,
    )
    if name is not None:
        optimizer.name = name
    return optimizer


def _require_plain_variables(variables):
    for variable in variables:
        if variable.constraint is not None or variable.dtype != "float32":
            raise ValueError(
                "AsynchronousOptimizer needs float32 variables without constraints, because "
                f"workers only know which deltas the others subtract. Received: {variable.path}, "
                f"{variable.dtype}, constraint={variable.constraint!r}."
            )


class _Asynchronous:
    """Mixin for `keras.optimizers.SGD` that applies the deltas of all workers.

    Attributes:
        gradient_exchange: `DeadReckoning`.
    """

    def build(self, variables):
        if keras.config.dtype_policy().name == "mixed_float16":
            raise ValueError(
                "AsynchronousOptimizer does not work under the mixed_float16 policy, because its "
                "loss scale makes single workers skip steps. Use mixed_bfloat16."
            )
        _require_plain_variables(variables)
        super().build(variables)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        self.gradient_exchange.step(grads, trainable_variables, learning_rate)

    def finalize_variable_values(self, var_list):
        self.gradient_exchange.drain("the end of training", last=True)
        super().finalize_variable_values(var_list)
