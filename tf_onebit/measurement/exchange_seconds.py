"""What exchanges of gradients take one after another, with nothing to overlap with."""

import dataclasses

import tensorflow as tf

from tf_onebit.exchanges import Bucketed, GradientSpec, OneBit, Threshold
from tf_onebit.exchanges.base import Exchange, all_reduce_bytes
from tf_onebit.layout import WORD_BYTES
from tf_onebit.measurement.exchange_work import measure_exchange

# What is measured in place of a model: a kernel, [in, out].
_SAMPLE = GradientSpec("sample", (1024, 2048), "float32")


@dataclasses.dataclass(frozen=True)
class ExchangeSeconds:
    """Of an exchange, between some workers.

    Attributes:
        exchange: `FullPrecision`, `OneBit` or `Threshold`.
        links: dictionary of `planner.Link`.
        world_size: number of workers.
        work_seconds: what encoding and decoding take per value.
        kinds: tuple: those of the collectives of each bucket.
    """

    exchange: Exchange
    links: dict
    world_size: int
    work_seconds: float
    kinds: tuple

    @property
    def of_bucket(self):
        """What the collectives of a bucket take, however little it holds."""
        return sum(self.links[kind].latency_seconds for kind in self.kinds)

    def of_gradient(self, spec):
        """What a gradient takes in a bucket: work, and bytes that travel."""
        sending = sum(
            sent_bytes / self.links[kind].bytes_per_second
            for kind, sent_bytes in self._sent_bytes(spec).items()
        )
        return self.work_seconds * spec.size + sending

    def _sent_bytes(self, spec):
        others = self.world_size - 1
        if isinstance(self.exchange, OneBit):
            layout = self.exchange.layout_of([spec], self.world_size)
            return {
                "all_to_all": others * layout.worker_message_bytes,
                "all_gather": others * layout.shard_message_bytes,
            }
        if isinstance(self.exchange, Threshold):
            values = self.exchange.expected_density * spec.size
            return {"all_gather": others * WORD_BYTES * values}
        size_bytes = tf.as_dtype(spec.dtype).size * spec.size
        return {"all_reduce": all_reduce_bytes(size_bytes, self.world_size)}

    def is_plain(self, spec):
        """Whether a gradient travels in full precision within this exchange, too."""
        if not isinstance(self.exchange, OneBit):
            return False
        return self.exchange.layout_of([spec], self.world_size).plain_size == spec.size


def measure_sample(exchange, world_size):
    """What is computed per value, in seconds, and the kinds of a bucket's collectives: tuple.

    Args:
        exchange: as of `measure_exchange`; nothing is excluded.
        world_size: number of workers.
    """
    (bucket,) = measure_exchange(exchange, [_SAMPLE], world_size)
    return bucket.all_work_seconds / bucket.size, tuple(c.kind for c in bucket.collectives)


def total_seconds(exchange, full_precision, compressed, specs):
    """What it takes to exchange the gradients of a model, bucket after bucket.

    Embeddings' sparse gradients are left out: they travel in the same way with any exchange.

    Args:
        exchange: the `Exchange` that it is about, as a template: buckets follow from it, and what
            it excludes.
        full_precision, compressed: `ExchangeSeconds` of what it leaves as it is, and of the rest.
        specs: list of `GradientSpec`.
    """
    seconds = 0.0
    for template, indices in Bucketed(exchange).partition(specs):
        gradients = [specs[index] for index in indices]
        if not gradients[0].sparse:
            is_compressed = isinstance(template, type(compressed.exchange))
            one = compressed if is_compressed else full_precision
            seconds += one.of_bucket + sum(map(one.of_gradient, gradients))
    return seconds
