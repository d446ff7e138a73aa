"""Predictions of training speed: the papers' cost models, and a simulation beyond them."""

from tf_onebit.planner.advice import Advice, advise
from tf_onebit.planner.costs import Bucket, Collective, Computation, Link, Worker, within_nodes
from tf_onebit.planner.gain import pays
from tf_onebit.planner.paper_models import (
    CompressedDataParallelism,
    DataParallelism,
    ModelParallelism,
)
from tf_onebit.planner.prediction import (
    Method,
    Prediction,
    interpolated,
    narrowed,
    predict,
    regrouped,
    uniform_links,
    with_more_workers,
)
from tf_onebit.planner.simulation import Simulation, simulate

__all__ = [
    "Advice",
    "Bucket",
    "Collective",
    "CompressedDataParallelism",
    "Computation",
    "DataParallelism",
    "Link",
    "Method",
    "ModelParallelism",
    "Prediction",
    "Simulation",
    "Worker",
    "advise",
    "interpolated",
    "narrowed",
    "pays",
    "predict",
    "regrouped",
    "simulate",
    "uniform_links",
    "with_more_workers",
    "within_nodes",
]
