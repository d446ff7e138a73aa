"""BlockMomentum: workers train on their own, and synchronize once per block."""

import contextlib
import json

import keras
import tensorflow as tf

from tf_onebit.bmuf.arguments import (
    check_arguments,
    check_exchange,
    momentum_of_time_constant,
)
from tf_onebit.bmuf.connections import connect, synchronization_of, take_states
from tf_onebit.bmuf.equations import BlockFilter
from tf_onebit.bmuf.synchronization import BlockSynchronization, End
from tf_onebit.bmuf.training_optimizers import (
    Bystanders,
    named,
    require_trains_apart,
    training_optimizers,
)
from tf_onebit.bmuf.variables import block_variables
from tf_onebit.collectives.requests import AllGather, one_request
from tf_onebit.configurable import serialize
from tf_onebit.exchanges import FullPrecision
from tf_onebit.exchanges.handshake import handshake
from tf_onebit.framework_internals.keras_models import SHOWING, unwrap_methods, wrap_methods
from tf_onebit.training import fit
from tf_onebit.training.building import resolve_exchange
from tf_onebit.training.model_optimizers import gradient_exchanges_of, optimizers_of

# Whoever trains on after an interruption means the global model, too.
_SHOWING = (*SHOWING, "fit", "train_on_batch")


class BlockMomentum(keras.callbacks.Callback):
    """Trains by blockwise model-update filtering (BMUF; Chen, Ding, Huo 2020).

    Every worker trains on its own for `sync_period` steps. Then the workers' models are averaged,
    and the average is moved on by a part of the updates of the blocks before it, which makes up for
    what each minibatch loses in the average::

        Delta_n = eta Delta_(n-1) + zeta (theta_bar - theta_init)
        theta = theta_init + zeta (theta_bar - theta_init)
        theta_init' = theta + eta Delta_n

    for a block that began with theta_init, which the workers have made theta_bar of, on average.
    theta is the global model. With classical momentum (`nesterov=False`) global model and next
    beginning are both theta_init + Delta_n.

    The moments of Adam and its kin (`tf_onebit.optimizers`) are brought to where theta_init' is,
    and with them the number of steps that they are corrected for, `k <- k + eta rho_n` with
    `rho_n = eta rho_(n-1) + zeta tau` for blocks of tau steps (BMUF-Adam, Eq. 16 to 18,
    Algorithm 1). With such optimizers the paper recommends `beta_1=0.5`.

    The global model is what is evaluated, saved and returned: whenever validation, another callback
    or the program calls `evaluate`, `predict`, `save`, `save_weights`, `export` or `get_weights` of
    the model that is trained, and from the end of an epoch to the first step of the next. Put this
    callback first in the list, so that at the end of an epoch the others find its last block in the
    model. Training goes on from the look-ahead. Whoever assigns other weights between two epochs,
    on all workers, makes training begin anew from these.

    Workers may have different numbers of batches: averages are weighted by the steps of a block,
    and a worker whose data have ended waits, and takes part with weight zero. Statistics, as of
    BatchNormalization, are averaged, and so is other state of the optimizer. Learning rate
    schedules follow the worker that has made the most steps.

    A model with several optimizers, as a GAN, is one model all the same: all its weights are
    filtered together, and each optimizer has its own moments, number of steps and rho_n. Those
    count that its `train_step` uses and the model holds: as attributes, or in lists or dictionaries
    of it. A worker counts by the optimizer that has made the most steps.

    The workers are those of the model's optimizers, which must leave them their own gradients::

        tf_onebit.horovod.DistributedOptimizer(optimizer, exchange=tf_onebit.Local())
        tf_onebit.distribute.MultiWorkerMirroredStrategy(exchange=tf_onebit.Local())

    Args:
        sync_period: number of steps in a block, for each worker: of `train_step`, or with
            accumulation of gradients of the optimizer that accumulates longest.
        block_momentum: eta, at least 0 and below 1; or "auto": 1 - 1 / N for N workers.
        block_learning_rate: zeta, positive.
        nesterov: whether workers go on from where the momentum will lead.
        warmup_steps: number of steps, at first, in which worker 0 trains alone, as the paper
            does for a tenth of an epoch: the others' steps do not count. Of several optimizers the
            one counts that makes the most.
        moment_correction: "bmuf_adam"; "average": moments are averaged as they are; "reset": each
            block begins with moments of zero. Optimizers other than Adam's kin have nothing to
            correct: with "bmuf_adam" SGD's momentum begins anew where block momentum moves the
            model on, as it would do the same twice, and other state is averaged.
        groups: None, or "node" (with Horovod): the processes of a node are one worker. They
            exchange gradients with each other in every step, through any exchange of their
            optimizer, and only nodes synchronize by blocks. Needs
            `hvd.init(process_sets="dynamic")`. Devices of one process of a strategy are a group
            without this.
        exchange: `tf_onebit.Exchange`, for what a block changes. Default: `FullPrecision()`. With
            another, the weights go through it, with error feedback. Moments that
            `moment_correction="bmuf_adam"` would have to correct then stay with their workers as
            they are; what else is averaged travels in full precision.

    Raises:
        ValueError: for arguments of other types or values; in `fit`, for an optimizer whose state
            it does not know, or that exchanges gradients, and for one that begins to train in the
            midst of it; on all workers if they do not train the same model in the same way.

    Example:
        >>> import tf_onebit, tf_onebit.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> adam = tf_onebit.optimizers.Adam(0.001, beta_1=0.5)
        >>> model.compile(hvd.DistributedOptimizer(adam, exchange=tf_onebit.Local()), loss="mse")
        >>> data = keras.ops.ones([32, 8]), keras.ops.ones([32, 1])
        >>> history = model.fit(*data, verbose=0, callbacks=[BlockMomentum(sync_period=8)])
    """

    def __init__(
        self,
        sync_period=16,
        block_momentum="auto",
        block_learning_rate=1.0,
        nesterov=True,
        warmup_steps=0,
        moment_correction="bmuf_adam",
        groups=None,
        exchange=None,
    ):
        super().__init__()
        check_arguments(
            sync_period,
            block_momentum,
            block_learning_rate,
            nesterov,
            warmup_steps,
            moment_correction,
            groups,
        )
        self.sync_period = int(sync_period)
        self.block_momentum = block_momentum if block_momentum == "auto" else float(block_momentum)
        self.block_learning_rate = float(block_learning_rate)
        self.nesterov = nesterov
        self.warmup_steps = int(warmup_steps)
        self.moment_correction = moment_correction
        self.groups = groups
        self.exchange = resolve_exchange(exchange)
        check_exchange(self.exchange)
        self._blocks = None
        self._is_training = False

    @classmethod
    def from_time_constant(cls, time_constant, sync_period=16, **arguments):
        """A `BlockMomentum` with eta = exp(-sync_period / time_constant).

        A block's update then counts for 1 / e of what it did at first after `time_constant` steps,
        whatever the period.

        Args:
            time_constant: number of steps of a worker; positive.
            sync_period, arguments: as of `BlockMomentum`.

        Raises:
            ValueError: for another time constant, and as `BlockMomentum`.

        Example:
            >>> round(BlockMomentum.from_time_constant(100, sync_period=16).block_momentum, 3)
            0.852
        """
        block_momentum = momentum_of_time_constant(time_constant, sync_period)
        return cls(sync_period, block_momentum, **arguments)

    def on_train_begin(self, logs=None):
        self._fit = fit.calling_fit(self.model)
        self._require_alone(self._fit.callbacks)
        fit.build_model(self.model, "is trained in blocks")
        if self.groups is not None:
            self._group_by_node()
        self._optimizers, self._is_training = None, True
        wrap_methods(self.model, self._view, _SHOWING)

    def _get_ready(self):
        """Finds what is trained: when all callbacks have begun, which a step may depend on."""
        if self._optimizers is not None:
            return
        self._optimizers = training_optimizers(self.model)
        exchanges = [
            require_trains_apart(optimizer, self.model, self.groups)
            for optimizer in self._optimizers or [None]
        ]
        # Of one of them, for whoever asks.
        self._gradient_exchange = exchanges[0]
        variables = block_variables(
            self.model,
            self.moment_correction,
            self._looks_ahead,
            compresses=type(self.exchange) is not FullPrecision,
            optimizers=self._optimizers,
        )
        self._batches_per_step = variables.batches_per_step
        self._bystanders = Bystanders(self.model, self._optimizers)
        job = self._gradient_exchange.engine
        job.run([handshake("block momentum", self._description(variables)) for _ in job.ranks])
        is_known = synchronization_of(self._gradient_exchange) is self._blocks is not None
        if not is_known or self._blocks.trained_by != variables.trained_by:
            for exchange in gradient_exchanges_of(self.model):
                connect(exchange, None)
            self._blocks = self._synchronization(variables)
            connect(self._gradient_exchange, self._blocks)
        self._blocks.begin()
        self._blocks.batches = 0

    def on_epoch_begin(self, epoch, logs=None):
        if self._blocks is not None:
            self._blocks.begin_epoch()

    def on_train_batch_begin(self, batch, logs=None):
        self._replays = fit.is_replaying(self.model)
        if not self._replays:
            self._get_ready()
            self._resume()
            self._blocks.train()
            self._first_batch = batch

    def on_train_batch_end(self, batch, logs=None):
        if self._replays:
            return
        self._blocks.batches += batch - self._first_batch + 1
        self._synchronize_if_due()

    def on_test_begin(self, logs=None):
        # Keras evaluates before it tells that an epoch has ended.
        if self._is_training:
            self._end(End.EPOCH)

    def on_epoch_end(self, epoch, logs=None):
        self._end(End.EPOCH)

    def on_train_end(self, logs=None):
        self._end(End.TRAINING)
        self._is_training = False
        if self.groups is not None:
            # One that leaves takes the job along, and others may still be telling their group.
            job = self._gradient_exchange.engine
            job.run([one_request(AllGather(tf.constant([0]), "tf_onebit_blocks/end"))])
        self._unwrap()

    def _unwrap(self):
        self._fit = None
        unwrap_methods(self.model, _SHOWING)

    def _synchronize_if_due(self):
        if self._blocks.batches >= self.sync_period * self._batches_per_step:
            self._bystanders.require_idle()
            self._blocks.synchronize()
            self._blocks.batches = 0

    def _end(self, end):
        self._get_ready()
        self._resume()
        self._bystanders.require_idle()
        self._blocks.end(end)
        self._blocks.batches = 0

    def _resume(self):
        """Goes on from a backup, if there is one that nobody has gone on from yet."""
        states = take_states(self._gradient_exchange)
        if states is not None:
            job = self._gradient_exchange.engine
            self._blocks.load_states(states, job.ranks, as_many=len(states) == job.world_size)
            # The backup may have been made after the block's last step, just before its end.
            self._synchronize_if_due()

    @contextlib.contextmanager
    def _view(self):
        """Context in which the model is the global one."""
        if not self._fit.is_running():  # any more: it was interrupted
            if self._blocks is not None:
                self._blocks.show()
            self._unwrap()
            yield
            return
        with self._blocks.view() if self._blocks is not None else contextlib.nullcontext():
            yield

    def _require_alone(self, callbacks):
        if sum(isinstance(callback, BlockMomentum) for callback in callbacks) > 1:
            raise ValueError(
                "Workers synchronize by the blocks of one callback. Received: several "
                "BlockMomentum callbacks. Leave one of them in the list."
            )

    @property
    def _looks_ahead(self):
        """Whether there is a block momentum."""
        if self.block_momentum == "auto":
            return self._gradient_exchange.engine.world_size > 1
        return self.block_momentum > 0

    def _description(self, variables):
        """What workers must agree on."""
        own = {
            "sync_period": self.sync_period,
            "block_momentum": self.block_momentum,
            "block_learning_rate": self.block_learning_rate,
            "nesterov": self.nesterov,
            "warmup_steps": self.warmup_steps,
            "moment_correction": self.moment_correction,
            "groups": self.groups,
            "exchange": serialize(self.exchange),
        }
        return [
            *((f"{name} of BlockMomentum", json.dumps(value)) for name, value in own.items()),
            *variables.description(),
        ]

    def _group_by_node(self):
        """Has workers exchange gradients within their node, from the first trace on."""
        for optimizer in optimizers_of(self.model):
            if not hasattr(optimizer, "gradient_exchange"):
                continue
            exchange = require_trains_apart(optimizer, self.model, self.groups)
            if exchange.group is not exchange.engine:
                continue
            if exchange.built:
                raise ValueError(
                    'With groups="node" workers exchange gradients within their node from the '
                    f"first step. Received: {named(optimizer)}, which has exchanged with all. "
                    "Make a new one."
                )
            group, _ = exchange.engine.by_node()
            exchange.divide(group)

    def _synchronization(self, variables):
        engine, within = self._gradient_exchange.engine, None
        if self.groups is not None:
            within, engine = engine.by_node()
        eta = self.block_momentum
        if eta == "auto":
            eta = 1 - 1 / engine.world_size
        return BlockSynchronization(
            engine,
            BlockFilter(eta, self.block_learning_rate, self.nesterov),
            self.exchange,
            [variables],
            corrects_moments=self.moment_correction == "bmuf_adam",
            warmup_steps=self.warmup_steps,
            within=within,
        )
