"""DistributedOptimizer for Keras 3."""

import functools
from collections.abc import Sequence
from typing import Any, Literal

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from tf_onebit._framework_internals.keras_calls import find_fit
from tf_onebit._framework_internals.keras_optimizers import mix_in, trained_variables_of
from tf_onebit._framework_internals.tf_functions import drawn_tensors
from tf_onebit._framework_internals.tf_variables import plain_variables
from tf_onebit._training.adds_exchanged import AddsGradients
from tf_onebit._training.building import RequestedExchange
from tf_onebit._training.group_gradients import mean_over_members
from tf_onebit._training.group_optimizer import follow_group, mark_slots
from tf_onebit._training.local_updates import moments_of
from tf_onebit._training.model_optimizers import (
    flush_where_shown,
    inner_optimizer,
    model_in_training,
    require_no_xla,
)
from tf_onebit._training.optimizer import Distributed, GlobalLossScale, settings
from tf_onebit._training.passes import compare, follow_fit
from tf_onebit._training.update_exchange import ExchangesUpdates
from tf_onebit.exchanges.gradients import values_of
from tf_onebit.exchanges.schedule import delay_of
from tf_onebit.horovod.accumulation import accumulated_steps
from tf_onebit.horovod.compression import Compressor, requested_exchange
from tf_onebit.horovod.gradients import (
    horovod_exchange,
    requested_conversion,
    require_not_distributed,
    require_one_device,
)
from tf_onebit.horovod.local_variables import LocalVariables, variables_of
from tf_onebit.horovod.node_groups import resolved_groups


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    exchange: RequestedExchange = None,
    compression: Compressor | None = None,
    op: int = hvd.Average,
    on_nonfinite: Literal["error", "skip"] = "error",
    name: str | None = None,
    *,
    device_dense: str = "",
    device_sparse: str = "",
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    scale_local_gradients: bool = True,
    use_locking: bool = False,
) -> keras.optimizers.Optimizer:
    """Wraps a Keras optimizer so that workers exchange gradients before they apply them.

    The function returns the same optimizer, which keeps all its settings. Keras saves it as its
    original class. With an optimizer of Keras' own, a saved model loads without this package.

    Workers exchange gradients once per update, after gradient accumulation and before clipping.
    Clipping thus acts on the aggregate. A single worker exchanges nothing. With an exchange that
    compresses, and an optimizer with moments, workers exchange updates after a warm start, and clip
    their own gradients: see `moments` in `tf_onebit.Exchange`.

    The optimizer gets a method `register_local_var(variable)` for variables of TensorFlow or
    Keras. Each worker updates such a variable by its own gradients.

    Args:
        optimizer: `keras.optimizers.Optimizer`. With a `LossScaleOptimizer` all workers skip a
            step if the gradients of one are not finite.
        exchange: `tf_onebit.Exchange`, or "auto": see `tf_onebit.Auto`. Default: `FullPrecision()`.
        compression: one of `Compression`, or a compressor of Horovod's. Replaces `exchange`.
        op: `Average` or `Sum` over the workers.
        on_nonfinite: what a step does in which a gradient is not finite: "error" or "skip".
            "error": such a step ends in an error on all workers, before a weight changes and
            before `TerminateOnNaN` sees the loss. A single worker does as Keras does. With
            gradient accumulation the step that updates fails. A compiled step then drops the sum;
            an eager one keeps it, so that the next update fails, too.
            "skip": such a step leaves trainable weights, the optimizer's state and residuals
            unchanged on all workers. The exchange then begins only when all gradients are ready.
            Layers keep their own updates, such as the statistics of BatchNormalization.
        name: name of the optimizer. Default: unchanged. Horovod takes it as the second argument;
            here pass it by name.
        device_dense: name of the device that carries messages. Default: Horovod's choice.
        device_sparse: the same as `device_dense`, or empty.
        sparse_as_dense: whether gradients of embeddings become dense before the exchange.
        gradient_predivide_factor: divisor of gradients before the exchange, and their factor after
            it. It keeps sums in float16 from overflowing.
        backward_passes_per_step: number of steps whose gradients are added up before an exchange
            and an update: Keras' `gradient_accumulation_steps`.
        average_aggregated_gradients: whether an update uses the mean over these steps. Default:
            their sum, as in Horovod.
        groups: None, or "node": only nodes compress what they exchange, and the workers of a node
            share that work. Each of P workers has slice p of a gradient, a P-th of its rows. The
            slices of N nodes, g_nq of worker q of node n, become::

                slice p of the result = exchange of (sum_q g_1q, ..., sum_q g_Nq), each slice p

            Other values are Horovod's. They are ignored, because buckets group gradients.
        num_groups, use_locking: ignored.
        process_set: `ProcessSet` of the workers that exchange. Others train alone.
        scale_local_gradients: whether gradients of local variables are divided by the number of
            workers.

    Returns:
        `optimizer`.

    Raises:
        ValueError: for arguments of wrong type or value, for an optimizer that is wrapped already,
            and for a `MultiOptimizer`. With groups also for `Local`, `Auto` and transforms, and for
            nodes with different numbers of workers. Also in the first step, on all workers, if they
            do not train the same model in the same way.

    Example:
        >>> import tf_onebit
        >>> hvd.init()
        >>> optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1), tf_onebit.OneBit())
        >>> type(optimizer).__name__
        'SGD'
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            "DistributedOptimizer wraps a keras.optimizers.Optimizer. "
            f"Received: optimizer={optimizer!r} of type {type(optimizer).__name__}. "
            f"Pass for example {_suggested(optimizer)}."
        )
    if isinstance(inner_optimizer(optimizer), keras.optimizers.MultiOptimizer):
        raise ValueError(
            "DistributedOptimizer cannot wrap a MultiOptimizer: the optimizers within it change "
            f"the weights, and would exchange nothing. Received: optimizer={optimizer!r}. Use one "
            "optimizer for all variables, or a train_step of your own with several optimizers, "
            "each of which DistributedOptimizer wraps."
        )
    if on_nonfinite not in ("error", "skip"):
        raise ValueError(
            f'on_nonfinite must be "error" or "skip". Received: on_nonfinite={on_nonfinite!r}.'
        )
    require_not_distributed(optimizer)
    require_one_device(device_dense, device_sparse)
    template = requested_exchange(exchange, compression)
    template, by_node = resolved_groups(groups, template, process_set)
    inner = inner_optimizer(optimizer)
    if inner is optimizer:
        _require_unscaled_loss()
    steps = accumulated_steps(inner, backward_passes_per_step)
    summed = 1 if average_aggregated_gradients else backward_passes_per_step
    conversion = requested_conversion(op, sparse_as_dense, gradient_predivide_factor, summed)
    agreed = [
        *settings(optimizer),
        ("on_nonfinite", on_nonfinite),
        ("backward_passes_per_step", str(backward_passes_per_step)),
        ("conversion of gradients", str(conversion)),
    ]
    gradient_exchange = horovod_exchange(
        template, op, agreed, process_set, device_dense, moments_of(inner, template), by_node
    )
    inner.gradient_accumulation_steps = steps
    if inner is not optimizer:
        mix_in(optimizer, _ScaledOverHorovod)
        optimizer.gradient_exchange = gradient_exchange
        inner.loss_scaled = True
    mix_in(inner, _OverHorovod)
    inner.gradient_exchange = gradient_exchange
    inner.on_nonfinite = on_nonfinite
    inner.conversion = conversion
    inner.local_variables = LocalVariables(scale_local_gradients)
    if name is not None:
        optimizer.name = name
    return optimizer


def PartialDistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    *args: Any,
    local_layers: keras.layers.Layer | Sequence[keras.layers.Layer] | None = None,
    **arguments: Any,
) -> keras.optimizers.Optimizer:
    """Wraps an optimizer like `DistributedOptimizer`, but keeps some layers local.

    Args:
        optimizer, args, arguments: see `DistributedOptimizer`.
        local_layers: built Keras layer, or list of them. Each worker updates their variables by
            its own gradients.

    Returns:
        `optimizer`.

    Raises:
        ValueError: see `DistributedOptimizer`; also for layers that are not built.

    Example:
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> optimizer = PartialDistributedOptimizer(optimizer, local_layers=model.layers)
    """
    variables = variables_of(local_layers)
    optimizer = DistributedOptimizer(optimizer, *args, **arguments)
    for variable in variables:
        optimizer.register_local_var(variable)
    return optimizer


def _suggested(identifier):
    """Suggests an expression to pass in place of an optimizer's name, or of anything else."""
    try:
        return f"keras.optimizers.{type(keras.optimizers.get(identifier)).__name__}()"
    except (ValueError, TypeError):
        return "keras.optimizers.SGD(0.1)"


def _require_unscaled_loss():
    if keras.config.dtype_policy().name == "mixed_float16":
        raise ValueError(
            "Under the mixed_float16 policy Keras scales the loss, and each worker decides alone "
            "whether to skip a step. Wrap the optimizer in this order: "
            "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer), ...)."
        )


class _ScaledOverHorovod(GlobalLossScale):
    """Mixin for a `LossScaleOptimizer`, with the method that Horovod's users call."""

    def register_local_var(self, variable):
        """Registers a variable that each worker updates by its own gradients.

        See `_OverHorovod`.
        """
        self.inner_optimizer.register_local_var(variable)


class _UpdatesOverHorovod(ExchangesUpdates):
    """Mixin on top of `_OverHorovod`. Local variables have the whole update of their worker."""

    def _exchange_updates(self, updates, variables, exchanging):
        exchange = functools.partial(super(_OverHorovod, self)._exchange, exchanging=exchanging)
        return self.local_variables.exchange_others(exchange, updates, variables, world_size=1)

    def _noise_of(self, variable):
        return 0.0 if variable in self.local_variables else super()._noise_of(variable)


class _OverHorovod(Distributed):
    """Mixin that can skip steps, and that refuses a loss scaled by Keras."""

    loss_scaled = False
    of_updates, of_gradients = _UpdatesOverHorovod, AddsGradients

    def _adds_gradients(self):
        return super()._adds_gradients() and self.conversion.keeps_exchanged()

    def register_local_var(self, variable):
        """Registers a variable that each worker updates by its own, unchecked gradients.

        Raises:
            ValueError: for anything but a variable, with an exchange that is `Delayed`, and with
                `global_clipnorm`.
        """
        if self.global_clipnorm is not None:
            raise ValueError(
                "Local variables do not work with global_clipnorm: the norm of all gradients would "
                "differ between workers, and so would their updates of shared variables. Received: "
                f"global_clipnorm={self.global_clipnorm}. Use clipnorm, which is of each variable."
            )
        if delay_of(self.gradient_exchange.template):
            raise ValueError(
                "Local variables do not work with Delayed: their gradients are lost in steps "
                f"that apply no others. Received: exchange={self.gradient_exchange.template!r}. "
                "Leave Delayed out."
            )
        self.local_variables.add(variable)

    def _exchanged_of(self, gradients, variables):
        pairs = super()._exchanged_of(gradients, variables)
        return [pair for pair in pairs if pair[1] not in self.local_variables]

    def _exchange(self, gradients, variables, exchanging=None):
        exchange = functools.partial(super()._exchange, exchanging=exchanging)
        world_size = self.gradient_exchange.workers.count
        exchanged = self.local_variables.exchange_others(exchange, gradients, variables, world_size)
        return self.conversion.after(exchanged)

    def build(self, variables):
        if not self.loss_scaled:
            _require_unscaled_loss()
        # The variables of a LossScaleOptimizer are not plain, and so cause a second trace. Keras
        # needs that trace, because the first one has the initial scale as a constant.
        # In a graph, the initial value that Nadam passes would be a tensor of that graph.
        with tf.init_scope(), plain_variables():
            super().build(variables)
        follow_group(self.gradient_exchange, variables, self)
        mark_slots(self)

    def apply(self, grads, trainable_variables=None):
        model = model_in_training(self)
        if model is not None:
            self._prepare(model)
        given = trainable_variables is not None
        variables = list(trainable_variables if given else trained_variables_of(self))
        group = follow_group(self.gradient_exchange, variables, self)
        grads = self.conversion.before(list(grads))
        if group is not None:
            grads = mean_over_members(grads, variables, group)
        trainable_variables = variables if given else None
        with tf.control_dependencies(self._data_of_step(grads)):
            self._apply(grads, trainable_variables)

    def _prepare(self, model):
        """Prepares for the steps of a model that are being traced, or run in eager mode."""
        if self.gradient_exchange.changes_gradients:
            require_no_xla(model)
            fit = find_fit(model)
            if fit is not None and not self.gradient_exchange.built:
                follow_fit(fit, under_way=True)
                compare(fit, self.gradient_exchange.workers.in_step)
        if self.gradient_exchange.steps_of_delay:
            flush_where_shown(model)

    def _data_of_step(self, gradients):
        """Returns tensors that a step without data lacks: such a step must count nothing."""
        if self.gradient_exchange.steps_of_delay:
            return drawn_tensors()  # delayed messages do not wait for this step's gradients
        # A backward pass computes the last gradient first: waiting for it delays no exchange.
        return [values_of(gradient) for gradient in gradients if gradient is not None][-1:]

    def _apply(self, grads, trainable_variables):
        if self.on_nonfinite == "error":
            super().apply(grads, trainable_variables)
            return
        self._build_first(trainable_variables)

        def update():
            super(_OverHorovod, self).apply(grads, trainable_variables)
            return True

        (finite,) = self.gradient_exchange.all_finite([grads])
        tf.cond(finite, update, lambda: False)
