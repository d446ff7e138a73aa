"""Duration of exchanges that run one after another, without overlap."""

import dataclasses

from tf_onebit._measurement.exchange_work import measure_exchange
from tf_onebit.exchanges import Bucketed, Exchange, FullPrecision, GradientSpec

# The kernel [in, out] that is measured in place of a model.
_SAMPLE = GradientSpec("sample", (1024, 2048), "float32")


@dataclasses.dataclass(frozen=True)
class ExchangeSeconds:
    """Estimated duration of an exchange between some workers.

    Attributes:
        exchange: `Exchange`, as a template.
        links: dictionary from kinds of collectives to `planner.Link`.
        world_size: number of workers.
        work_seconds: time of encoding and decoding, in seconds per value.
    """

    exchange: Exchange
    links: dict
    world_size: int
    work_seconds: float
    _known: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def of_gradients(self, specs):
        """Returns the seconds of gradients within a bucket: work and transfer, without latency.

        Args:
            specs: list of `GradientSpec`.
        """
        sending = sum(
            sent_bytes / self.links[kind].bytes_per_second
            for kind, sent_bytes in self._sent_bytes(specs).items()
        )
        return self.work_seconds * sum(spec.size for spec in specs) + sending

    def of_bucket(self, specs):
        """Returns the seconds of a bucket: `of_gradients`, and the latency of its collectives.

        The collectives run one after another. The flags of full precision do not count, because
        they travel beside the gradients.

        Args:
            specs: list of `GradientSpec`.
        """
        kinds = self._sent_bytes(specs)
        return self.of_gradients(specs) + sum(self.links[kind].latency_seconds for kind in kinds)

    def _sent_bytes(self, specs):
        """Returns the bytes that each worker sends: dictionary by kind of collective."""
        key = tuple(dataclasses.replace(spec, name="") for spec in specs)
        if key not in self._known:
            self._known[key] = self.exchange.expected_bytes(specs, self.world_size)
        return self._known[key]

    def compresses(self, spec):
        """Tells whether a gradient travels compressed within this exchange."""
        full = FullPrecision().expected_bytes([spec], self.world_size)
        return sum(self._sent_bytes([spec]).values()) < sum(full.values())


def measure_work(exchange, world_size):
    """Measures encoding and decoding, in seconds per value.

    Args:
        exchange: see `measure_exchange`; it excludes no gradients.
        world_size: number of workers.
    """
    (bucket,) = measure_exchange(exchange, [_SAMPLE], world_size)
    return bucket.all_work_seconds / bucket.size


def compressed_buckets(exchange, specs):
    """Returns the buckets of an exchange, without sparse gradients.

    Args:
        exchange: `Exchange`, as a template.
        specs: list of `GradientSpec`.

    Returns:
        List of (whether the bucket is compressed, list of its `GradientSpec`).
    """
    buckets = [
        (schedule.exchange is exchange, [specs[index] for index in indices])
        for schedule, indices in Bucketed(exchange).partition(specs)
    ]
    return [(is_compressed, bucket) for is_compressed, bucket in buckets if not bucket[0].sparse]
