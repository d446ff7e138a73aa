"""Predictions of training speed: the papers' cost models, and a simulation beyond them."""

from tf_onebit.planner.advice import Advice, advise
from tf_onebit.planner.costs import (
    Activations,
    Bucket,
    Collective,
    Computation,
    Link,
    Worker,
    within_nodes,
)
from tf_onebit.planner.gain import pays
from tf_onebit.planner.group_advice import GroupAdvice, advise_groups
from tf_onebit.planner.links import links_of_groups, uniform_links, with_more_workers, within_group
from tf_onebit.planner.methods import Method, narrowed, regrouped
from tf_onebit.planner.nodes import by_node, links_of_nodes
from tf_onebit.planner.paper_models import (
    CompressedDataParallelism,
    DataParallelism,
    ModelParallelism,
)
from tf_onebit.planner.prediction import Prediction, interpolated, predict
from tf_onebit.planner.simulation import Simulation, simulate

__all__ = [
    "Activations",
    "Advice",
    "Bucket",
    "Collective",
    "CompressedDataParallelism",
    "Computation",
    "DataParallelism",
    "GroupAdvice",
    "Link",
    "Method",
    "ModelParallelism",
    "Prediction",
    "Simulation",
    "Worker",
    "advise",
    "advise_groups",
    "by_node",
    "interpolated",
    "links_of_groups",
    "links_of_nodes",
    "narrowed",
    "pays",
    "predict",
    "regrouped",
    "simulate",
    "uniform_links",
    "with_more_workers",
    "within_group",
    "within_nodes",
]
