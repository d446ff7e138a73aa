"""The optimizers of a model that is trained in blocks: which they are, and checks of them."""

import keras

from tf_onebit._configurable import serialize
from tf_onebit._framework_internals.keras_models import strategy_of
from tf_onebit._framework_internals.keras_optimizers import batch_counter_of
from tf_onebit._framework_internals.tf_variables import copies_of
from tf_onebit._shares import group_of
from tf_onebit._training import fit
from tf_onebit._training.building import require_no_local_moments
from tf_onebit._training.model_optimizers import inner_optimizer, optimizers_of
from tf_onebit.exchanges.schedule import delay_of


def training_optimizers(model):
    """Returns the optimizers that train a model in the calling `fit`.

    Keras' own training step uses the optimizer that the model was compiled with. A model with its
    own `train_step` may hold more than it uses: `compile` without an optimizer adds an RMSprop. So
    of several optimizers, those that the step uses are returned. For this the step is traced, which
    also builds them. If the model runs eagerly, the optimizers that are built are returned.

    Args:
        model: Keras model, built.

    Returns:
        List of Keras optimizers. If there are several, all are built.

    Raises:
        ValueError: if the model holds several optimizers, but its step uses no optimizer, or no
            optimizer of an eager model is built.
    """
    held = optimizers_of(model)
    if len(held) < 2:
        return held
    if getattr(model.train_step, "__func__", None) is keras.Model.train_step:
        return [model.optimizer]
    if model.run_eagerly:
        found, way = [o for o in held if o.built], "has built none of them"
        remedy = "Build each before fit: optimizer.build(variables)"
    else:
        step = fit.traced_step(model)
        found, way = [o for o in held if _counts_in(step, o)], "uses none of them in its train_step"
        remedy = "Have the model hold those that it uses as attributes, in lists or dictionaries"
    # A model may hold a LossScaleOptimizer and also the optimizer inside it.
    found = list({id(inner_optimizer(o)): o for o in reversed(found)}.values())[::-1]
    if not found:
        raise ValueError(
            "BlockMomentum needs an optimizer that the model both holds and trains with. "
            f"Received: a model with {', '.join(map(named, held))} that {way}. {remedy}."
        )
    return found


def _counts_in(step, optimizer):
    """Tells whether a traced step uses the iteration counter of an optimizer."""
    counter = batch_counter_of(inner_optimizer(optimizer))
    handles = [copy.handle for copy in copies_of(counter)]
    return any(tensor is handle for tensor in step.captured_inputs for handle in handles)


def named(optimizer):
    """Returns the name of an optimizer for messages."""
    return f"the {type(optimizer).__name__} {optimizer.name!r}"


class Bystanders:
    """The optimizers of a model that do not train it, and must not begin to do so.

    Args:
        model: Keras model.
        optimizers: list of those that train it.
    """

    def __init__(self, model, optimizers):
        training = {id(inner_optimizer(optimizer)) for optimizer in optimizers}
        others = map(inner_optimizer, optimizers_of(model))
        self._others = [(o, _iterations(o)) for o in others if id(o) not in training]

    def require_idle(self):
        """Raises ValueError if one of them has made a step."""
        for optimizer, iterations in self._others:
            if _iterations(optimizer) != iterations:
                raise ValueError(
                    "BlockMomentum must know all optimizers in use when fit begins. Received: "
                    f"{named(optimizer)}, which has begun to train since. Use it from the first "
                    "step on, or call optimizer.build(variables) before fit."
                )


def _iterations(optimizer):
    return int(copies_of(batch_counter_of(optimizer))[0])


def require_trains_apart(optimizer, model, groups):
    """Returns the `GradientExchange` of an optimizer, if it can train in blocks.

    Args:
        optimizer: Keras optimizer, or None.
        model: Keras model that it trains.
        groups: as in `BlockMomentum`.

    Raises:
        ValueError: if the optimizer exchanges gradients between workers, or with groups does not
            exchange them. If its exchange is delayed or asynchronous. If several workers share a
            process. If a split model, or one in a strategy, has groups.
    """
    gradient_exchange = getattr(optimizer, "gradient_exchange", None)
    who = "no optimizer" if optimizer is None else named(optimizer)
    if gradient_exchange is None:
        raise ValueError(
            f"BlockMomentum needs an optimizer that connects the workers. Received: {who}, which "
            "connects none. Over Horovod, the model must hold "
            "tf_onebit.horovod.DistributedOptimizer(optimizer, exchange=tf_onebit.Local()) for "
            "each optimizer that trains it. Otherwise make model and optimizers in the scope of "
            "tf_onebit.distribute.MultiWorkerMirroredStrategy(exchange=tf_onebit.Local())."
        )
    if groups is not None and strategy_of(model) is not None:
        raise ValueError(
            'Only Horovod\'s workers can be grouped by node. Received: groups="node" for a model '
            "in the scope of a strategy, where the devices of a process form a group anyway. "
            "Leave groups out."
        )
    if groups is not None and group_of(model.variables) is not None:
        raise ValueError(
            "Each group of a split model is one worker of BlockMomentum. Received: "
            'groups="node" and a model that tf_onebit.model_parallel.split has split. Leave groups '
            "out."
        )
    if delay_of(gradient_exchange.template):
        raise ValueError(
            "BlockMomentum averages models, so no gradient may be late at the end of a block. "
            f"Received: {who} with the exchange Delayed. Leave Delayed out with BlockMomentum."
        )
    require_no_local_moments(
        gradient_exchange.template,
        "BlockMomentum takes the workers of a node for one, with the same moments.",
    )
    if gradient_exchange.workers.are_by_node:
        raise ValueError(
            "BlockMomentum needs workers that exchange no gradients with other nodes. Received: "
            f'{who} with groups="node" of the optimizer. Leave groups out of DistributedOptimizer, '
            'and pass BlockMomentum(groups="node").'
        )
    is_local = gradient_exchange.workers.train_apart and not gradient_exchange.is_asynchronous
    template = serialize(gradient_exchange.template)["class"].split(":")[-1]
    if groups is None and not is_local:
        raise ValueError(
            "Workers that synchronize by blocks do not exchange gradients. Received: "
            f"{who} with the exchange {template}. Use exchange=tf_onebit.Local(), or "
            'BlockMomentum(groups="node") for workers that exchange gradients within a node.'
        )
    if groups is not None and is_local:
        raise ValueError(
            f'With groups="node" the workers of a node exchange gradients. Received: {who} with '
            "the exchange Local. Use for example exchange=tf_onebit.OneBit()."
        )
    if gradient_exchange.is_asynchronous:
        raise ValueError(
            'With groups="node" the workers of a node make every step together. Received: '
            'groups="node" and an AsynchronousOptimizer. Use DistributedOptimizer.'
        )
    if len(gradient_exchange.workers.engine.ranks) > 1:
        raise ValueError(
            "BlockMomentum synchronizes workers in processes of their own. Received: several "
            "workers in one process of a MirroredStrategy. Use MultiWorkerMirroredStrategy or "
            "Horovod."
        )
    return gradient_exchange


def group_by_node(model, groups):
    """Makes workers exchange gradients within their node, from the first trace on.

    Args:
        model: Keras model.
        groups: as in `BlockMomentum`, not None.

    Raises:
        ValueError: if an optimizer has exchanged gradients before, and as `require_trains_apart`.
    """
    for optimizer in optimizers_of(model):
        if not hasattr(optimizer, "gradient_exchange"):
            continue
        exchange = require_trains_apart(optimizer, model, groups)
        if exchange.workers.group is not exchange.workers.engine:
            continue
        if exchange.built:
            raise ValueError(
                'With groups="node" workers exchange gradients only within their node, from the '
                f"first step on. Received: {named(optimizer)}, which has already exchanged with "
                "all workers. Make a new optimizer."
            )
        group, _ = exchange.workers.engine.by_node()
        exchange.workers.divide(group)
