"""Horovod's names that this package lacks, and what to write in their place."""

_CHECKPOINT = (
    "Elastic jobs are not supported: the number of workers cannot change. Save the job with "
    "callbacks=[tf_onebit.callbacks.BackupAndRestore(directory)]. Start it again with another "
    "number of workers"
)
_INNER = "It is internal to Horovod: import it from horovod.tensorflow"
_ELASTIC = (
    "CommitStateCallback",
    "HorovodInternalError",
    "KerasState",
    "ObjectState",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "elastic",
    "run",
    "run_fn",
)
INSTEAD = dict.fromkeys(_ELASTIC, _CHECKPOINT) | {
    "broadcast_object_fn": "Write hvd.broadcast_object(obj, root_rank)",
    "check_extension": _INNER,
    "check_num_rank_power_of_2": _INNER,
    "gpu_available": _INNER,
    "handle_average_backwards_compatibility": _INNER,
    "is_version_greater_equal_than": "Import it from horovod.common.util",
    "LocalGradientAggregationHelper": "Pass backward_passes_per_step to hvd.DistributedOptimizer",
    "refs_to_vars": _INNER,
    "split_list": _INNER,
    "vars_to_refs": _INNER,
}


def instead_of(module: str, name: str) -> AttributeError:
    """Returns the AttributeError for a name that a module lacks.

    Args:
        module: name of the module.
        name: the missing name.
    """
    problem = f"module {module!r} has no attribute {name!r}"
    return AttributeError(f"{problem}. {INSTEAD[name]}." if name in INSTEAD else problem)
