"""Measurement of exchanges, and of collectives between the workers of a job."""

from tf_onebit._measurement.exchange_seconds import (
    ExchangeSeconds,
    compressed_buckets,
    measure_work,
)
from tf_onebit._measurement.exchange_work import (
    dense,
    measure_block,
    measure_exchange,
    measure_slices,
    measured_as,
    with_block_work,
    with_world_size,
)
from tf_onebit._measurement.links import Alone, Links

__all__ = [
    "Alone",
    "ExchangeSeconds",
    "Links",
    "compressed_buckets",
    "dense",
    "measure_block",
    "measure_exchange",
    "measure_slices",
    "measure_work",
    "measured_as",
    "with_block_work",
    "with_world_size",
]
