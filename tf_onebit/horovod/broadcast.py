"""Broadcast of variables from one worker to all."""

from collections.abc import Iterable

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from tf_onebit._shares import group_of, is_part
from tf_onebit.collectives.requests import Broadcast
from tf_onebit.exchanges.handshake import enumerated, handshake
from tf_onebit.horovod.gradients import engine_of


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Iterable[tf.Variable | keras.Variable],
    root_rank: int,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    inplace: bool = False,
) -> None:
    """Assigns the values of variables on one worker to the variables of all.

    In eager mode workers first compare the root rank, and the variables' number, shapes and types.
    Parts of a split model's weights come from the group of that worker.

    Args:
        variables: list of Keras or TensorFlow variables, the same on all workers.
        root_rank: rank of the worker whose values all take over.
        process_set: `ProcessSet` of the workers that take part.
        inplace: ignored, because one copy of each variable is made at a time.

    Raises:
        ValueError: in eager mode, on all workers, if their variables differ. Also for a rank or a
            worker that is not in `process_set`, and for objects other than variables.

    Example:
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        >>> broadcast_variables(model.weights, root_rank=0)
    """
    variables = list(variables)
    for variable in variables:
        if not isinstance(variable, (tf.Variable, keras.Variable)):
            raise ValueError(
                "broadcast_variables takes a list of tf.Variable or keras.Variable. Received: "
                f"{variable!r} of type {type(variable).__name__}. Pass for example model.weights. "
                "For other objects use broadcast_object."
            )
    engine = engine_of(process_set)
    description = [
        ("root_rank", str(root_rank)),
        *enumerated("number of variables", "variable {}", *kinds_and_names(variables)),
    ]
    broadcast_values(variables, root_rank, engine, description)


def kinds_and_names(variables):
    """Returns the kinds of variables, which workers must agree on, and their names.

    Returns:
        Two lists of strings: shapes with dtypes, and paths or names, which may differ.
    """
    kinds = [f"{tuple(v.shape)} {tf.as_dtype(v.dtype).name}" for v in variables]
    return kinds, [getattr(v, "path", v.name) for v in variables]


def broadcast_values(variables, root_rank, engine, description):
    """Assigns the values of variables on one worker to the variables of all.

    Args:
        variables: list of Keras or TensorFlow variables.
        root_rank: rank of that worker in the job.
        engine: `HorovodEngine`.
        description: see `handshake`.
    """
    if root_rank not in engine.members:
        raise ValueError(
            f"root_rank must be one of the ranks {list(engine.members)}. Received: root_rank="
            f"{root_rank}. Use 0 for the first worker of a job."
        )
    run = engine.run
    if tf.executing_eagerly():
        run = engine.meet
        run([handshake("broadcast of variables", description)])
    parts = list(filter(is_part, variables))
    others = [variable for variable in variables if not is_part(variable)]
    _assign(others, run([_broadcast(others, engine.members.index(root_rank))]))
    if parts:
        peers, root = _peers(group_of(parts), engine, root_rank)
        _assign(parts, peers.run([_broadcast(parts, root)]))


def _peers(group, engine, root_rank):
    """Returns the engine of the workers with the same parts, and the root's rank among them."""
    peers = group.between
    if len(engine.members) == group.job.world_size:
        return peers, root_rank // group.members  # its group
    if list(engine.members) == list(peers.members):
        return peers, peers.members.index(root_rank)
    raise ValueError(
        "Parts of weights can be broadcast in the whole job, or among the processes with the same "
        f"parts, here the ranks {list(peers.members)}. Received: a process set of the ranks "
        f"{list(engine.members)}. Leave process_set out."
    )


def _assign(variables, results):
    (values,) = results
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _broadcast(variables, root):
    tensors = [tf.convert_to_tensor(variable) for variable in variables]
    return (yield Broadcast(tensors, root, "tf_onebit_broadcast"))
