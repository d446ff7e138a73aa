"""Checks of the arguments of `BlockMomentum`."""

import math

import keras
import tensorflow as tf

from tf_onebit._bmuf.variables import CORRECTIONS
from tf_onebit._training.building import require_no_local_moments
from tf_onebit._training.model_optimizers import inner_optimizer
from tf_onebit._training.optimizer import Distributed
from tf_onebit._validation import is_number, is_whole
from tf_onebit.exchanges.schedule import delay_of, innermost


def check_arguments(
    sync_period,
    block_momentum,
    block_learning_rate,
    nesterov,
    warmup_steps,
    moment_correction,
    groups,
    fragments,
    overlap,
):
    """Raises ValueError unless all arguments are valid, as `BlockMomentum` describes them."""
    check_turns(sync_period, fragments, overlap)
    _require_whole("warmup_steps", warmup_steps, 0, "Use warmup_steps=0 to leave it out")
    if not isinstance(nesterov, bool):
        raise ValueError(f"nesterov must be True or False. Received: nesterov={nesterov!r}.")
    if block_momentum != "auto" and not is_number(block_momentum, 0, below=1):
        raise ValueError(
            'block_momentum must be "auto" or a number of at least 0 and below 1. '
            f"Received: block_momentum={block_momentum!r}. Common is 1 - 1 / (number of "
            "workers)."
        )
    if not is_number(block_learning_rate, 0) or block_learning_rate == 0:
        raise ValueError(
            "block_learning_rate must be a positive number. Received: block_learning_rate="
            f"{block_learning_rate!r}. Common is 1."
        )
    if moment_correction is not None and moment_correction not in CORRECTIONS:
        raise ValueError(
            f"moment_correction must be one of {', '.join(map(repr, CORRECTIONS))}. Received: "
            f"moment_correction={moment_correction!r}."
        )
    if groups not in (None, "node"):
        raise ValueError(f'groups must be None or "node". Received: groups={groups!r}.')
    if takes_weights_alone(fragments, overlap) and moment_correction not in (
        None,
        "bmuf_adam",
        "local",
    ):
        raise ValueError(
            "With fragments or overlap, workers synchronize weights alone, and keep the state of "
            f"their optimizers. Received: moment_correction={moment_correction!r} with "
            f'fragments={fragments} and overlap={overlap}. Use moment_correction="local".'
        )


def takes_weights_alone(fragments, overlap):
    """Tells whether workers synchronize weights alone, and keep all state of their optimizers."""
    return fragments > 1 or overlap > 0


def check_turns(sync_period, fragments, overlap):
    """Raises ValueError unless fragments can take turns in a block, each with an overlap."""
    _require_whole("sync_period", sync_period, 1, "Use sync_period=1 to synchronize every step")
    _require_whole("overlap", overlap, 0, "Use overlap=0 to wait at the end of each block")
    if not is_whole(fragments, 1) or fragments > sync_period:
        raise ValueError(
            "fragments must be a whole number, at least 1 and at most sync_period, because no two "
            f"synchronize after the same step. Received: fragments={fragments!r} with "
            f"sync_period={sync_period}."
        )
    if overlap > sync_period:
        raise ValueError(
            "The synchronization of a fragment must end before its next one begins, a block later. "
            f"Received: overlap={overlap} with sync_period={sync_period}. Use an overlap of at "
            f"most {sync_period} steps, or longer blocks."
        )


def check_outer_optimizer(
    outer_optimizer, block_momentum, block_learning_rate, nesterov, moment_correction
):
    """Returns the Keras optimizer that is described, or None.

    Raises:
        ValueError: for another kind of optimizer, or arguments of what it replaces.
    """
    if outer_optimizer is None:
        return None
    optimizer = keras.optimizers.get(outer_optimizer)
    if inner_optimizer(optimizer) is not optimizer or isinstance(optimizer, Distributed):
        raise ValueError(
            "outer_optimizer must be a plain Keras optimizer. It gets the same gradients on all "
            "workers, so it exchanges and scales nothing. Received: outer_optimizer of type "
            f"{type(optimizer).__name__}, which does. Make it without a wrapper, and outside "
            "strategy.scope()."
        )
    if optimizer.use_ema:
        raise ValueError(
            "outer_optimizer must not keep an average of weights of its own. Received: an "
            "outer_optimizer with use_ema=True. Set use_ema in the model's optimizer."
        )
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            "outer_optimizer must make one step per block. Received: an outer_optimizer with "
            f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}. Use a longer "
            "sync_period instead."
        )
    if block_momentum != "auto" or block_learning_rate != 1 or not nesterov:
        raise ValueError(
            "outer_optimizer replaces block momentum, and has a momentum and a learning rate of "
            f"its own. Received: block_momentum={block_momentum!r}, block_learning_rate="
            f"{block_learning_rate!r}, nesterov={nesterov!r}. Leave them out, or leave out "
            "outer_optimizer."
        )
    if moment_correction == "bmuf_adam":
        raise ValueError(
            "The correction of Adam's moments is defined for block momentum alone. Received: "
            'moment_correction="bmuf_adam" with an outer_optimizer. Use "local", "average" or '
            '"reset".'
        )
    return optimizer


def check_exchange(exchange):
    """Raises ValueError for an exchange that cannot average the changes of a block."""
    if innermost(exchange).trains_apart:
        raise ValueError(
            "BlockMomentum needs an exchange that sends the change of a block. Received: "
            "exchange=tf_onebit.Local(), which sends nothing. Give Local to the optimizer or the "
            "strategy instead."
        )
    if delay_of(exchange):
        raise ValueError(
            "BlockMomentum knows when the change of a block arrives, so its exchange cannot be "
            "delayed. Received: exchange=Delayed(...). Pass the exchange without Delayed. To train "
            "on meanwhile, use overlap."
        )
    require_no_local_moments(
        exchange, "BlockMomentum exchanges changes of the model, which are no updates of one step."
    )


def require_no_overlap(overlap, model_group):
    """Raises ValueError for an overlap with processes that hold a model together."""
    if overlap and model_group.processes > 1:
        raise ValueError(
            "Processes that hold a model together must meet at the end of a block. Received: "
            f"overlap={overlap} for a model that {model_group.processes} processes hold. Use "
            "fragments without overlap, or hold the model on the devices of one process."
        )


def require_usable(outer_optimizer, model_group):
    """Raises ValueError for an outer optimizer in a scope, or of a model that is split."""
    if outer_optimizer is not None and tf.distribute.has_strategy():
        raise ValueError(
            "An outer optimizer works outside of a strategy's scope. Received: outer_optimizer="
            f"{type(outer_optimizer).__name__} for a fit within strategy.scope(). Call model.fit "
            "after the scope. The model stays in its strategy."
        )
    if outer_optimizer is not None and model_group is not None:
        raise ValueError(
            "An outer optimizer needs whole weights, of which it may take norms. Received: "
            f"outer_optimizer={type(outer_optimizer).__name__} for a split model. Use block "
            "momentum, or train the whole model."
        )


def momentum_of_time_constant(time_constant, sync_period):
    """Returns eta = exp(-sync_period / time_constant): see `BlockMomentum.from_time_constant`.

    Raises:
        ValueError: unless both are positive, and eta is below 1.
    """
    _require_whole("sync_period", sync_period, 1, "Use sync_period=1 to synchronize every step")
    is_positive = is_number(time_constant, 0) and time_constant > 0
    block_momentum = math.exp(-sync_period / time_constant) if is_positive else 1.0
    if block_momentum == 1:
        raise ValueError(
            "time_constant must be a positive number of steps, and not so long that the block "
            f"momentum rounds to 1. Received: time_constant={time_constant!r}."
        )
    return block_momentum


def _require_whole(name, value, least, remedy):
    if not is_whole(value, least):
        raise ValueError(
            f"{name} must be a whole number of steps, at least {least}. Received: "
            f"{name}={value!r}. {remedy}."
        )
