"""AsynchronousOptimizer for Keras 3."""

import numbers

import horovod.tensorflow as hvd
import keras

from tf_onebit.collectives.horovod import HorovodEngine
from tf_onebit.exchanges import Threshold
from tf_onebit.framework_internals.keras_optimizers import mix_in, trained_variables_of
from tf_onebit.horovod.dead_reckoning import DeadReckoning
from tf_onebit.horovod.gradients import require_not_distributed, require_op
from tf_onebit.training.optimizer import settings

# What keras.optimizers.SGD must leave at its default, and why.
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
    optimizer,
    exchange=None,
    op=hvd.Average,
    max_staleness=None,
    timeout_seconds=600.0,
    name=None,
):
    """Wraps `keras.optimizers.SGD`: workers exchange weight deltas and do not wait for each other.

    Dead reckoning (Strom 2015, sections 2.3 and 2.6). A worker encodes its own gradients as
    `Threshold` does, subtracts `learning_rate * tau` from its weights where it sends +tau, and goes
    on. In the background all workers gather whatever messages there are, and every worker subtracts
    what has arrived at the end of its own next step::

        w <- w - sum over messages of learning_rate * tau * sent        (divided by N for the mean)

    A message carries its own `learning_rate * tau`, so that workers with different ones agree on
    what it means. Every delta is applied exactly once on every worker, in any order: when all have
    arrived, all replicas are equal to rounding. That is so at the end of `fit`, which waits for all
    workers, and in backups by `tf_onebit.callbacks.BackupAndRestore`. In between, evaluation and
    other callbacks see the weights of their own worker, which may lack what is under way. Loops of
    your own end with `optimizer.finalize_variable_values(variables)`, on all workers.

    Statistics that layers keep themselves (BatchNormalization) are not exchanged; gradients of
    embeddings are made dense. A program trains with one such optimizer at a time, and does not call
    `hvd.grouped_allgather` in eager mode meanwhile, which is the pump's.

    Args:
        optimizer: `keras.optimizers.SGD` with a learning rate, and nothing else.
        exchange: `tf_onebit.Threshold`. Each worker finds a tau of its own for a `target_density`.
            Default: `Threshold()`.
        op: `Average`: a worker's deltas are divided by the number of workers, as those of
            `DistributedOptimizer`. `Sum`: they are not, as in the paper.
        max_staleness: by how many steps a worker may be ahead of the slowest one, before it waits.
            Default: any number.
        timeout_seconds: after so many seconds in which nothing could be gathered, the other
            workers are given up. A slow step of theirs is no reason: they answer meanwhile, from
            their first step to the end of `fit`. So where all must meet (the end, backups,
            `max_staleness`) a worker that lives is waited for, however long it stands still.
        name: of the optimizer. Default: that of `optimizer`.

    Returns:
        `optimizer`, which from now on exchanges deltas. It is saved as `keras.optimizers.SGD`.

    Raises:
        ValueError: for other optimizers, exchanges and settings, with the reason; in the first
            step, on all workers, if these do not train the same model in the same way.
        UnknownError: in a step, if another worker has ended or does not answer (RuntimeError with
            `run_eagerly=True` and at the end of `fit`).
        InvalidArgumentError: in a step, on all workers, if a gradient of one is not finite, or if
            they wait for each other at different places, one of them at the end of `fit` and
            another at a backup (ValueError there). After any of these, go on with a new optimizer.

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
            "AsynchronousOptimizer wraps keras.optimizers.SGD: workers exchange steps of gradient "
            f"descent. Received: optimizer={optimizer!r} of type "
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
            "AsynchronousOptimizer exchanges all gradients by tf_onebit.Threshold: no sum over the "
            f"workers is ever known. Received: exchange={exchange!r}"
            f"{' with an exclude' if isinstance(exchange, Threshold) else ''}."
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
                "AsynchronousOptimizer needs float32 variables without constraints: all that "
                "workers know of each other is what they subtract. "
                f"Received: {variable.path}, {variable.dtype}, "
                f"constraint={variable.constraint!r}."
            )


class _Asynchronous:
    """Applies deltas of all workers in place of gradients.

    A mixin for `keras.optimizers.SGD`.

    Attributes:
        gradient_exchange: `DeadReckoning`.
    """

    def build(self, variables):
        if keras.config.dtype_policy().name == "mixed_float16":
            raise ValueError(
                "AsynchronousOptimizer does not work under the mixed_float16 policy, whose loss "
                "scale would have workers skip steps. Use mixed_bfloat16."
            )
        _require_plain_variables(variables)
        super().build(variables)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        self.gradient_exchange.step(grads, trainable_variables, learning_rate)

    def finalize_variable_values(self, var_list):
        self.gradient_exchange.drain("the end of training", last=True)
        super().finalize_variable_values(var_list)
