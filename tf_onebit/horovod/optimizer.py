"""DistributedOptimizer for Keras 3."""

import functools

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from tf_onebit.collectives.variable_creation import plain_variables
from tf_onebit.exchanges.finite import values_of
from tf_onebit.exchanges.schedule import delay_of
from tf_onebit.horovod.accumulation import accumulated_steps
from tf_onebit.horovod.compression import requested_exchange
from tf_onebit.horovod.gradients import (
    horovod_exchange,
    requested_conversion,
    require_not_distributed,
    require_one_device,
)
from tf_onebit.horovod.local_variables import LocalVariables, variables_of
from tf_onebit.horovod.progress import compare
from tf_onebit.training.calls import drawn_tensors
from tf_onebit.training.frames import find_fit
from tf_onebit.training.model_optimizers import (
    flush_where_shown,
    inner_optimizer,
    model_in_training,
    require_no_xla,
)
from tf_onebit.training.optimizer import Distributed, GlobalLossScale, distribute, settings
from tf_onebit.training.passes import follow_fit


def DistributedOptimizer(
    optimizer,
    exchange=None,
    compression=None,
    op=hvd.Average,
    on_nonfinite="error",
    name=None,
    *,
    device_dense="",
    device_sparse="",
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    backward_passes_per_step=1,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=hvd.global_process_set,
    scale_local_gradients=True,
    use_locking=False,
):
    """Wraps a Keras optimizer: gradients are exchanged between workers before they are applied.

    The result is the optimizer itself, which from now on exchanges its gradients: all that it was
    given stays. It is saved as the class that it was: with one of Keras' own, a saved model loads
    without this package. Gradients are exchanged once
    per update, after gradient accumulation and before clipping, which thus acts on the aggregate.
    With one worker nothing is exchanged.

    It has a method `register_local_var(variable)`: each worker updates that variable, of TensorFlow
    or Keras, by its own gradients.

    Args:
        optimizer: `keras.optimizers.Optimizer`. Also a `LossScaleOptimizer`: all workers then
            skip a step if the gradients of one are not finite.
        exchange: `tf_onebit.Exchange`, or "auto": see `tf_onebit.Auto`. Default: `FullPrecision()`.
        compression: instead of `exchange`, one of `Compression`, or a compressor of Horovod's.
        op: `Average` or `Sum` over the workers.
        on_nonfinite: "error": a step in which a gradient is not finite ends in an error on all
            workers, before a weight is changed, and before `TerminateOnNaN` sees the loss. (One
            worker alone does as Keras does.) With gradient accumulation that is the step that
            updates: a compiled one drops the sum, an eager one keeps it, and the next update fails,
            too. "skip": such a step leaves trainable weights, the optimizer's state and residuals
            as they were on all workers; gradients are then exchanged only when all of them are
            there. What layers update by themselves, such as the statistics of
            BatchNormalization, is not undone.
        name: of the optimizer. Default: that of `optimizer`. It stands second in Horovod; here
            pass it by name.
        device_dense: name of the device that carries messages. Default: Horovod's choice.
        device_sparse: the same as `device_dense`, or nothing.
        sparse_as_dense: whether gradients of embeddings become tensors before the exchange.
        gradient_predivide_factor: what gradients are divided by before the exchange, and multiplied
            with after it. It keeps sums in float16 from overflowing.
        backward_passes_per_step: number of steps whose gradients are added up before an exchange
            and an update: Keras' `gradient_accumulation_steps`.
        average_aggregated_gradients: whether an update is by the mean over these steps. Default:
            by their sum, as in Horovod.
        num_groups, groups, use_locking: without effect: buckets group gradients.
        process_set: `ProcessSet` of the workers that exchange. Others train alone.
        scale_local_gradients: whether gradients of local variables are divided by the number of
            workers.

    Returns:
        `optimizer`.

    Raises:
        ValueError: for arguments of other types or values, and an optimizer that is wrapped
            already; in the first step, on all workers,
            if these do not train the same model in the same way.

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
    if on_nonfinite not in ("error", "skip"):
        raise ValueError(
            f'on_nonfinite must be "error" or "skip". Received: on_nonfinite={on_nonfinite!r}.'
        )
    require_not_distributed(optimizer)
    require_one_device(device_dense, device_sparse)
    template = requested_exchange(exchange, compression)
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
    gradient_exchange = horovod_exchange(template, op, agreed, process_set, device_dense)
    inner.gradient_accumulation_steps = steps
    if inner is not optimizer:
        distribute(optimizer, _ScaledOverHorovod)
        optimizer.gradient_exchange = gradient_exchange
        inner.loss_scaled = True
    distribute(inner, _OverHorovod)
    inner.gradient_exchange = gradient_exchange
    inner.on_nonfinite = on_nonfinite
    inner.conversion = conversion
    inner.local_variables = LocalVariables(scale_local_gradients)
    if name is not None:
        optimizer.name = name
    return optimizer


def PartialDistributedOptimizer(optimizer, *args, local_layers=None, **arguments):
    """Wraps an optimizer as `DistributedOptimizer`, but for layers that stay local.

    Args:
        optimizer, args, arguments: those of `DistributedOptimizer`.
        local_layers: Keras layer, or list of them. Each worker updates their variables by its own
            gradients. They must be built.

    Returns:
        `optimizer`.

    Raises:
        ValueError: as `DistributedOptimizer`, and for layers that are not built.

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
    """Suggests what to write in place of a name that `compile` would know, or of anything else."""
    try:
        return f"keras.optimizers.{type(keras.optimizers.get(identifier)).__name__}()"
    except (ValueError, TypeError):
        return "keras.optimizers.SGD(0.1)"


def _require_unscaled_loss():
    if keras.config.dtype_policy().name == "mixed_float16":
        raise ValueError(
            "Under the mixed_float16 policy Keras scales the loss, and would decide on each "
            "worker alone whether to skip a step. Wrap the optimizer in this order: "
            "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer), ...)."
        )


class _ScaledOverHorovod(GlobalLossScale):
    """Has what Horovod's users call."""

    def register_local_var(self, variable):
        """Has each worker update a variable by its own gradients: see `_OverHorovod`."""
        self.inner_optimizer.register_local_var(variable)


class _OverHorovod(Distributed):
    """May leave out steps, and refuses to have its loss scaled by Keras."""

    loss_scaled = False

    def register_local_var(self, variable):
        """Has each worker update a variable by its own gradients, which nothing checks.

        Raises:
            ValueError: for what is no variable, and with an exchange that is `Delayed`.
        """
        if delay_of(self.gradient_exchange.template):
            raise ValueError(
                "With Delayed a step may apply no gradient, and would lose those of local "
                f"variables. Received: exchange={self.gradient_exchange.template!r}. Leave Delayed "
                "out."
            )
        self.local_variables.add(variable)

    def _exchange(self, gradients, variables, exchanging=None):
        exchange = functools.partial(super()._exchange, exchanging=exchanging)
        world_size = self.gradient_exchange.group.world_size
        exchanged = self.local_variables.exchange_others(exchange, gradients, variables, world_size)
        return self.conversion.after(exchanged)

    def build(self, variables):
        if not self.loss_scaled:
            _require_unscaled_loss()
        # Not so the variables of a LossScaleOptimizer: Keras needs the second trace that they
        # cause, because the first has the initial scale as a constant.
        with plain_variables():
            super().build(variables)

    def apply(self, grads, trainable_variables=None):
        grads = self.conversion.before(list(grads))
        model = model_in_training(self)
        if model is not None and self.gradient_exchange.changes_gradients:
            require_no_xla(model)
            fit = find_fit(model)
            if fit is not None and not self.gradient_exchange.built:
                follow_fit(fit, under_way=True)
                compare(fit, self.gradient_exchange)
        # In the step that finds that the data have ended nothing may be counted. The last gradient
        # is the first that a backward pass makes: to wait for it delays no exchange.
        awaited = [values_of(gradient) for gradient in grads if gradient is not None][-1:]
        if self.gradient_exchange.steps_of_delay:
            awaited = drawn_tensors()  # what has been under way does not wait for gradients
            if model is not None:
                flush_where_shown(model)
        with tf.control_dependencies(awaited):
            self._apply(grads, trainable_variables)

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
