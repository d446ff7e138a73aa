"""DistributedGradientTape for custom training loops."""

import functools
import weakref
from collections.abc import Sequence
from typing import Any, Self

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from tf_onebit._training.building import RequestedExchange, require_no_local_moments
from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit._training.group_gradients import mean_over_members
from tf_onebit._training.group_optimizer import follow_group
from tf_onebit.exchanges.schedule import AnyExchange, delay_of
from tf_onebit.horovod.compression import Compressor, requested_exchange
from tf_onebit.horovod.gradients import (
    horovod_exchange,
    requested_conversion,
    require_known,
    require_one_device,
)
from tf_onebit.horovod.local_variables import LocalVariables, variables_of
from tf_onebit.horovod.node_groups import resolved_groups

# Programs make a tape in every step. The state of an exchange lives as long as its template.
_exchanges: weakref.WeakKeyDictionary[AnyExchange, dict[Any, GradientExchange]]
_exchanges = weakref.WeakKeyDictionary()
# Gives every tape that is made without an `Exchange` object the same template.
_resolve = functools.cache(requested_exchange)


class DistributedGradientTape:
    """Gradient tape whose `gradient` returns the mean over the workers.

    Args:
        gradtape: `tf.GradientTape` to wrap.
        exchange: `tf_onebit.Exchange`, or "auto". Make it once, outside of the training step,
            because it holds the residuals. Default: `FullPrecision()`.
        compression: one of `Compression`, or a compressor of Horovod's. Replaces `exchange`.
        op: `Average` or `Sum` over the workers.
        device_dense, device_sparse, sparse_as_dense, gradient_predivide_factor: see
            `DistributedOptimizer`. Pass them by name: in Horovod `device_dense` is the second
            argument.
        num_groups, groups, process_set, scale_local_gradients: see `DistributedOptimizer`.

    Raises:
        ValueError: see `DistributedOptimizer`.
        InvalidArgumentError: on all workers, in a step in which a gradient is not finite.

    Example:
        >>> import tf_onebit
        >>> hvd.init()
        >>> exchange = tf_onebit.OneBit()
        >>> x = tf.Variable(3.0)
        >>> with tf.GradientTape() as tape:
        ...     y = x * x
        >>> tape = DistributedGradientTape(tape, exchange)
        >>> float(tape.gradient(y, x))
        6.0
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        exchange: RequestedExchange = None,
        compression: Compressor | None = None,
        op: int = hvd.Average,
        *,
        device_dense: str = "",
        device_sparse: str = "",
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: hvd.ProcessSet = hvd.global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        require_one_device(device_dense, device_sparse)
        require_known(process_set)
        if exchange is None or isinstance(exchange, str):
            # A compressor is a class, and so hashable.
            template = _resolve(exchange, compression)  # type: ignore[arg-type]
        else:
            template = requested_exchange(exchange, compression)
        if delay_of(template):
            raise ValueError(
                "A tape returns the gradients of its own step, but Delayed makes them arrive "
                f"later. Received: exchange={template!r}. Leave Delayed out, or use "
                "tf_onebit.horovod.DistributedOptimizer, which skips the update while no "
                "gradients are there."
            )
        require_no_local_moments(
            template,
            "A tape returns gradients, and has no moments. To exchange updates, use "
            "tf_onebit.horovod.DistributedOptimizer.",
        )
        made = _exchanges.setdefault(template, {})
        key = op, process_set, device_dense, groups == "node"
        if key not in made:
            # The template's clone, because a value that holds its weak key would never be freed.
            exchange, by_node = resolved_groups(groups, template, process_set)
            made[key] = horovod_exchange(
                exchange.clone(), op, (), process_set, device_dense, by_node=by_node
            )
        self._tape = gradtape
        self._exchange = made[key]
        self._conversion = requested_conversion(op, sparse_as_dense, gradient_predivide_factor)
        self._local = LocalVariables(scale_local_gradients)

    @tf.autograph.experimental.do_not_convert
    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the gradients of `tf.GradientTape.gradient`, exchanged between the workers.

        Raises:
            ValueError: if a source is not a variable: residuals belong to variables.
        """
        for source in tf.nest.flatten(sources):
            if not isinstance(source, (tf.Variable, keras.Variable)):
                raise ValueError(
                    "DistributedGradientTape exchanges only gradients of variables. Received: a "
                    f"source of type {type(source).__name__} in {sources!r}. Take gradients with "
                    "respect to other tensors from the tf.GradientTape."
                )
        gradients = self._tape.gradient(target, sources, *args, **kwargs)
        variables = tf.nest.flatten(sources)
        group = follow_group(self._exchange, variables, self)
        flat = self._conversion.before(tf.nest.flatten(gradients))
        if group is not None:
            flat = mean_over_members(flat, variables, group)
        exchanged = self._local.exchange_others(
            lambda gradients, variables: self._exchange([gradients], variables)[0],
            flat,
            variables,
            self._exchange.workers.count,
        )
        return tf.nest.pack_sequence_as(sources, self._conversion.after(exchanged))

    def register_local_source(self, source: tf.Variable | keras.Variable) -> None:
        """Registers a variable whose gradient stays this worker's own, unchecked.

        Args:
            source: `tf.Variable` or `keras.Variable`.
        """
        self._local.add(source)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Sequence[tf.Variable | keras.Variable],
        *args: Any,
        **kwargs: Any,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Computes gradients, and divides them into local and exchanged ones.

        Args:
            target, sources, args, kwargs: see `gradient`; `sources` is a list.

        Returns:
            Two lists of pairs (source, gradient): local ones, and exchanged ones.
        """
        pairs = list(zip(sources, self.gradient(target, sources, *args, **kwargs), strict=True))
        local = [pair for pair in pairs if pair[0] in self._local]
        return local, [pair for pair in pairs if pair[0] not in self._local]

    def __enter__(self) -> Self:
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        return self._tape.__exit__(*exception)

    def __getattr__(self, name):
        return getattr(self._tape, name)


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    *args: Any,
    local_layers: keras.layers.Layer | Sequence[keras.layers.Layer] | None = None,
    **arguments: Any,
) -> DistributedGradientTape:
    """Wraps a tape in a `DistributedGradientTape` that keeps some layers local.

    Args:
        gradtape, args, arguments: see `DistributedGradientTape`.
        local_layers: built Keras layer, or list of them. Their gradients stay this worker's own.

    Returns:
        `DistributedGradientTape`.

    Raises:
        ValueError: see `DistributedGradientTape`; also for layers that are not built.

    Example:
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        >>> with tf.GradientTape() as tape:
        ...     loss = tf.reduce_sum(model(tf.ones([2, 8])))
        >>> tape = PartialDistributedGradientTape(tape, local_layers=model.layers)
        >>> len(tape.gradient(loss, model.trainable_variables))
        2
    """
    variables = variables_of(local_layers)
    tape = DistributedGradientTape(gradtape, *args, **arguments)
    for variable in variables:
        tape.register_local_source(variable)
    return tape
