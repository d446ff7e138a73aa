"""Takes the time of exchanges, and of collectives between the workers of a job."""

from tf_onebit.measurement.exchange_seconds import ExchangeSeconds, measure_sample, total_seconds
from tf_onebit.measurement.exchange_work import measure_block, measure_exchange, with_block_work
from tf_onebit.measurement.links import Alone, Links

__all__ = [
    "Alone",
    "ExchangeSeconds",
    "Links",
    "measure_block",
    "measure_exchange",
    "measure_sample",
    "total_seconds",
    "with_block_work",
]
