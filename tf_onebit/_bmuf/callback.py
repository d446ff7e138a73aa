"""BlockMomentum: workers train apart, and synchronize their models once per block."""

import contextlib
import json
from typing import Any, Literal, Self

import keras
import tensorflow as tf

from tf_onebit._bmuf.arguments import (
    check_arguments,
    check_exchange,
    check_outer_optimizer,
    momentum_of_time_constant,
    require_no_overlap,
    require_usable,
    takes_weights_alone,
)
from tf_onebit._bmuf.connections import connect, synchronization_of, take_states
from tf_onebit._bmuf.equations import BlockFilter
from tf_onebit._bmuf.fragments import divide, end_of_turn
from tf_onebit._bmuf.meeting import End
from tf_onebit._bmuf.synchronization import BlockSynchronization
from tf_onebit._bmuf.training_optimizers import (
    Bystanders,
    group_by_node,
    require_trains_apart,
    training_optimizers,
)
from tf_onebit._bmuf.variables import block_variables
from tf_onebit._configurable import serialize
from tf_onebit._framework_internals.keras_models import (
    BEFORE_VALIDATION,
    SHOWING,
    unwrap_methods,
    wrap_methods,
)
from tf_onebit._shares import group_of
from tf_onebit._training import fit
from tf_onebit._training.building import RequestedExchange, resolve_exchange
from tf_onebit._training.group_optimizer import require_no_auto
from tf_onebit._training.model_optimizers import gradient_exchanges_of
from tf_onebit._training.passes import compare, follow
from tf_onebit.collectives.requests import AllGather, one_request
from tf_onebit.exchanges.handshake import handshake
from tf_onebit.exchanges.schedule import innermost

# Training on after an interruption starts from the global model, too.
_SHOWING = (*SHOWING, "fit", "train_on_batch")
_ENDING = (BEFORE_VALIDATION,)


class BlockMomentum(keras.callbacks.Callback):
    """Callback for blockwise model-update filtering (BMUF; Chen, Ding, Huo 2020).

    Every worker trains on its own for `sync_period` steps, a block. Then the workers' models are
    averaged. A part of the earlier blocks' updates is added to the average, because averaging
    weakens the effect of each minibatch::

        Delta_n = eta Delta_(n-1) + zeta (theta_bar - theta_init)
        theta = theta_init + zeta (theta_bar - theta_init)
        theta_init' = theta + eta Delta_n

    theta_init is the model at the beginning of the block. theta_bar is the mean of the workers'
    models at its end. theta is the global model. theta_init' is the look-ahead, from which the next
    block begins. With classical momentum (`nesterov=False`) both theta and theta_init' are
    theta_init + Delta_n.

    The moments of Adam and its variants (`tf_onebit.optimizers`) are moved to match theta_init'.
    The number of steps in their bias correction moves with them: `k <- k + eta rho_n` with
    `rho_n = eta rho_(n-1) + zeta tau` for blocks of tau steps (BMUF-Adam, Eq. 16 to 18,
    Algorithm 1). With such optimizers the paper recommends `beta_1=0.5`.

    The global model is evaluated, saved and returned. The model that is trained shows it whenever
    validation, another callback or the program calls `evaluate`, `predict`, `save`, `save_weights`,
    `export` or `get_weights`. It also shows it from the end of an epoch to the first step of the
    next. Put this callback first in the list: then other callbacks find the last block in the model
    at the end of an epoch. Training goes on from the look-ahead. If all workers assign other
    weights between two epochs, training restarts from these.

    Workers may have different numbers of batches, because averages are weighted by the steps of a
    block. A worker whose data have ended waits, and takes part with weight zero. Statistics, such
    as BatchNormalization's, are averaged, and so is other state of the optimizer. Learning rate
    schedules follow the worker with the most steps.

    A model may have several optimizers, such as a GAN. All its weights are then filtered together,
    and each optimizer has its own moments, number of steps and rho_n. The optimizers must be used
    in `train_step`, and held by the model as attributes or in lists or dictionaries. The optimizer
    with the most steps determines the steps of a worker.

    The model's optimizers define the workers, and must not exchange gradients::

        tf_onebit.horovod.DistributedOptimizer(optimizer, exchange=tf_onebit.Local())
        tf_onebit.distribute.MultiWorkerMirroredStrategy(exchange=tf_onebit.Local())

    With `fragments=P` the layers are divided into P parts of about equal size, which synchronize in
    turn, each once per block. So the link carries a P-th at a time. Each fragment has its own
    theta_init and Delta. With `overlap=L` the synchronization of a fragment goes on while workers
    make their next L steps. Then it makes the change that it would have made at once, so that a
    worker keeps what it has learned meanwhile::

        w <- theta_init' + (w - w_then)

    w_then is the worker's model when the block ended. (Streaming DiLoCo, Douillard et al. 2025,
    arXiv:2501.18512, mixes both models instead.) At the end of an epoch all fragments synchronize,
    and workers wait. With fragments or overlap the state of optimizers stays with its worker, as
    with "local", but for the momentum of SGD, which restarts as without them.

    Args:
        sync_period: number of steps in a block, for each worker: calls of `train_step`, or with
            gradient accumulation the updates of the optimizer that accumulates longest.
        block_momentum: eta, at least 0 and below 1; or "auto": 1 - 1 / N for N workers.
        block_learning_rate: zeta, positive.
        nesterov: whether the next block begins from the look-ahead theta + eta Delta_n.
        warmup_steps: number of initial steps in which worker 0 trains alone, as the paper does for
            a tenth of an epoch. The steps of others do not count. If there are several optimizers,
            the one with the most steps counts.
        moment_correction: "bmuf_adam" (the default); "local" (the default with an
            `outer_optimizer`): all state of an optimizer, which may be any, stays with its worker;
            "average": moments are averaged as they are; "reset": each block begins with moments of
            zero. Only Adam and its variants need a correction. With
            "bmuf_adam" and a block momentum, SGD's own momentum restarts with every block, so that
            it does not repeat what block momentum does. Other state is averaged.
        groups: None, or "node" (with Horovod): the processes of a node form one worker. They
            exchange gradients in every step, through any exchange of their optimizer, and only
            nodes synchronize by blocks. Needs `hvd.init(process_sets="dynamic")`. In a strategy
            the devices of a process always form a group. So do the members of a split model.
        exchange: `tf_onebit.Exchange` for the changes of a block. Default: `FullPrecision()`. Any
            other exchange applies to the weights, with error feedback. Moments that
            `moment_correction="bmuf_adam"` would correct are then not synchronized. All other
            averages travel in full precision.
        fragments: number of parts of the model that synchronize in turn: at most one for each layer
            with weights, and one for each step of a block. BatchNormalization's statistics go with
            the last one.
        overlap: number of steps that workers make while a fragment synchronizes, at most
            `sync_period`. Fragments that are on their way at once are sent one after another. In
            the warm-up workers wait.
        outer_optimizer: any Keras optimizer, or its name, in place of block momentum. At the end
            of a block it gets the gradient theta_init - theta_bar, and its step leads to theta,
            from which the next block begins. Its schedule counts blocks. In the warm-up it rests.
            Make it, and call `fit`, outside of a strategy's scope.

    Raises:
        ValueError: for arguments of other types or values. In `fit`, for an optimizer whose state
            it does not know, that exchanges gradients, or that begins to train during `fit`. On
            all workers, if they do not train the same model in the same way.

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
        sync_period: int = 16,
        block_momentum: float | Literal["auto"] = "auto",
        block_learning_rate: float = 1.0,
        nesterov: bool = True,
        warmup_steps: int = 0,
        moment_correction: Literal["bmuf_adam", "local", "average", "reset"] | None = None,
        groups: Literal["node"] | None = None,
        exchange: RequestedExchange = None,
        fragments: int = 1,
        overlap: int = 0,
        outer_optimizer: keras.optimizers.Optimizer | str | None = None,
    ) -> None:
        super().__init__()
        check_arguments(
            sync_period,
            block_momentum,
            block_learning_rate,
            nesterov,
            warmup_steps,
            moment_correction,
            groups,
            fragments,
            overlap,
        )
        self.sync_period = int(sync_period)
        self.block_momentum = block_momentum if block_momentum == "auto" else float(block_momentum)
        self.block_learning_rate = float(block_learning_rate)
        self.nesterov = nesterov
        self.warmup_steps = int(warmup_steps)
        self.outer_optimizer = check_outer_optimizer(
            outer_optimizer, block_momentum, block_learning_rate, nesterov, moment_correction
        )
        if outer_optimizer is not None:
            self.block_momentum = 0.0
        default = "bmuf_adam" if outer_optimizer is None else "local"
        self.moment_correction = moment_correction or default
        self.groups = groups
        self.fragments, self.overlap = int(fragments), int(overlap)
        self.exchange = resolve_exchange(exchange)
        check_exchange(self.exchange)
        self._blocks: BlockSynchronization | None = None

    @classmethod
    def from_time_constant(
        cls, time_constant: float, sync_period: int = 16, **arguments: Any
    ) -> Self:
        """Returns a `BlockMomentum` with eta = exp(-sync_period / time_constant).

        After `time_constant` steps the weight of a block's update has fallen to 1 / e, for every
        `sync_period`.

        Args:
            time_constant: number of steps of a worker; positive.
            sync_period, arguments: see `BlockMomentum`.

        Raises:
            ValueError: for another time constant, and where `BlockMomentum` raises it.

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
            group_by_node(self.model, self.groups)
        if (group := group_of(self.model.variables)) is not None:
            follow(self._fit.epoch_iterator, group.within.whereabouts)
        self._optimizers = None
        wrap_methods(self.model, self._view, _SHOWING)
        wrap_methods(self.model, self._epoch_end, _ENDING)

    def _get_ready(self):
        """Finds the optimizers and variables that are trained, and connects their workers.

        This happens after all callbacks have begun, because the training step may depend on them.
        """
        if self._optimizers is not None:
            return
        self._optimizers = training_optimizers(self.model)
        exchanges = [
            require_trains_apart(optimizer, self.model, self.groups)
            for optimizer in self._optimizers or [None]
        ]
        # The exchange of the first optimizer represents all of them.
        self._gradient_exchange = exchanges[0]
        variables = block_variables(
            self.model,
            self.moment_correction,
            self._looks_ahead,
            compresses=innermost(self.exchange).compresses,
            optimizers=self._optimizers,
            weights_alone=takes_weights_alone(self.fragments, self.overlap),
        )
        self._batches_per_step = variables.batches_per_step
        model_group = self._gradient_exchange.workers.model_group
        if model_group is not None:
            require_no_auto(self.exchange, type(self).__name__)
            require_no_overlap(self.overlap, model_group)
        require_usable(self.outer_optimizer, model_group)
        if self._gradient_exchange.workers.in_step is not None:
            compare(self._fit, self._gradient_exchange.workers.in_step)
        self._bystanders = Bystanders(self.model, self._optimizers)
        job = self._gradient_exchange.workers.engine
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
        self._blocks.count_batches(batch - self._first_batch + 1)
        self._synchronize_if_due()

    def on_epoch_end(self, epoch, logs=None):
        self._end(End.EPOCH)

    def on_train_end(self, logs=None):
        self._end(End.TRAINING)
        if self.groups is not None:
            # A process that exits ends the job, and others may still communicate in their group.
            job = self._gradient_exchange.workers.engine
            job.run([one_request(AllGather(tf.constant([0]), "tf_onebit_blocks/end"))])
        self._unwrap()

    def _unwrap(self):
        self._fit = None
        unwrap_methods(self.model, (*_SHOWING, *_ENDING))

    def _synchronize_if_due(self):
        """Ends what has been under way for long enough, and the blocks that end after this step."""
        blocks = self._blocks
        blocks.finish(self.overlap * self._batches_per_step)
        while blocks.batches >= self._batches_until_end_of(blocks.turn):
            self._bystanders.require_idle()
            if self.overlap and not blocks.warms_up:
                blocks.start()
            else:
                blocks.synchronize()
            if blocks.turn == 0:
                blocks.batches = 0

    def _batches_until_end_of(self, turn):
        return end_of_turn(turn, self.sync_period, self.fragments) * self._batches_per_step

    def _end(self, end):
        self._get_ready()
        self._resume()
        self._bystanders.require_idle()
        self._blocks.end(end)
        self._blocks.batches = 0

    def _resume(self):
        """Loads the states of a backup, if there are some that have not been loaded yet."""
        states = take_states(self._gradient_exchange)
        if states is not None:
            job = self._gradient_exchange.workers.engine
            self._blocks.load_states(states, job.ranks, as_many=len(states) == job.world_size)
            # The backup may have been made between the block's last step and its synchronization.
            self._synchronize_if_due()

    @contextlib.contextmanager
    def _view(self):
        """Returns a context in which the model is the global one."""
        if not self._fit.is_running():  # it was interrupted
            if self._blocks is not None:
                self._blocks.show()
            self._unwrap()
            yield
            return
        with self._blocks.view() if self._blocks is not None else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def _epoch_end(self):
        """Returns a context at the end of an epoch, which Keras enters before it validates."""
        self._end(End.EPOCH)
        yield

    def _require_alone(self, callbacks):
        if sum(isinstance(callback, BlockMomentum) for callback in callbacks) > 1:
            raise ValueError(
                "model.fit takes one BlockMomentum callback. Received: several BlockMomentum "
                "callbacks. Leave only one of them in the list."
            )

    @property
    def _looks_ahead(self):
        """True if the block momentum is above 0."""
        if self.block_momentum == "auto":
            return self._gradient_exchange.workers.engine.world_size > 1
        return self.block_momentum > 0

    def _description(self, variables):
        """Returns what workers must agree on: list of (what, value) pairs of strings."""
        own = {
            "sync_period": self.sync_period,
            "block_momentum": self.block_momentum,
            "block_learning_rate": self.block_learning_rate,
            "nesterov": self.nesterov,
            "warmup_steps": self.warmup_steps,
            "moment_correction": self.moment_correction,
            "groups": self.groups,
            "fragments": self.fragments,
            "overlap": self.overlap,
            "exchange": serialize(self.exchange),
            "outer_optimizer": _description_of(self.outer_optimizer),
        }
        # Members of a group may hold parts of other sizes, but copies must synchronize together.
        parts = [places.start for places in divide(variables.weights, self.fragments)]
        return [
            ("first weight of each fragment", str(parts)),
            *((f"{name} of BlockMomentum", json.dumps(value)) for name, value in own.items()),
            *variables.description(),
        ]

    def _synchronization(self, variables):
        engine, within = self._gradient_exchange.workers.engine, None
        model_group = self._gradient_exchange.workers.model_group
        if self.groups is not None:
            within, engine = engine.by_node()
        elif model_group is not None:
            engine = model_group.between
        members_here = 1 if model_group is None else model_group.members_here
        eta = self.block_momentum
        if eta == "auto":
            eta = 1 - 1 / engine.world_size
        return BlockSynchronization(
            engine,
            BlockFilter(eta, self.block_learning_rate, self.nesterov),
            self.exchange,
            variables.of_members(members_here),
            corrects_moments=self.moment_correction == "bmuf_adam",
            warmup_steps=self.warmup_steps,
            within=within,
            model_group=model_group,
            fragments=self.fragments,
            nominal_steps=self.sync_period if self.overlap else None,
            outer_optimizer=self.outer_optimizer,
        )


def _description_of(optimizer):
    """Returns the settings of a Keras optimizer, or None, without its name, which may differ."""
    if optimizer is None:
        return None
    settings = keras.optimizers.serialize(optimizer)
    settings["config"].pop("name")
    return settings
