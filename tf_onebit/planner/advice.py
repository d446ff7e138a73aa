"""Advice on a method and its settings, from predictions."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from tf_onebit._formatting import format_milliseconds
from tf_onebit.planner.costs import Computation, Link, require_workers
from tf_onebit.planner.gain import pays
from tf_onebit.planner.methods import Method, regrouped
from tf_onebit.planner.prediction import Prediction, interpolated, predict

# Parts of a step that an exchange may cost before a larger minibatch or a longer block is advised.
_MOST_OF_A_STEP = 0.10
_MOST_OF_A_BLOCK = 0.05
_BUCKET_MEBIBYTES = 4, 8, 16, 32, 64
# Smaller differences do not count.
_NOTICEABLE = 0.02


@dataclasses.dataclass(frozen=True)
class Advice:
    """Recommendation of `advise`.

    Attributes:
        method: name of the method.
        sending_less_pays: whether the method compresses, or communicates less often.
        per_replica_batch_size: the smallest measured batch at which the exchange costs no more
            than a tenth of a step, or the largest if there is none.
        bucket_bytes: of the exchange, if another value than the default makes a difference, or
            None.
        sync_period: number of steps of a block, such that blocks cost no more than a twentieth of
            a step; None without a method that has blocks.
        sentences: the same in words, with reasons: list of strings.
    """

    method: str
    sending_less_pays: bool
    per_replica_batch_size: int
    bucket_bytes: int | None
    sync_period: int | None
    sentences: list[str]


def advise(
    methods: Sequence[Method],
    measured: Mapping[int, Computation],
    links: Mapping[str, Link],
    workers: int,
    per_replica_batch_size: int,
    sizes: Sequence[int],
    alone_seconds: float | None = None,
) -> Advice:
    """Recommends a method and its settings.

    Args:
        methods: list of `Method` for `workers` workers, from the one that changes training least.
            The first is full precision.
        measured: dictionary: `Computation` by number of samples of a worker.
        links: dictionary of `Link`.
        workers: number of workers, at least 2.
        per_replica_batch_size: number of samples of a worker in the user's program.
        sizes: number of values of each gradient.
        alone_seconds: see `predict`.

    Returns:
        `Advice`.

    Raises:
        ValueError: for fewer than 2 workers, and without methods or measurements.

    Example:
        >>> from tf_onebit.planner import Bucket, Collective, Computation, Method, advise
        >>> from tf_onebit.planner import uniform_links
        >>> full = Method("full precision", [Bucket(1e6, (Collective(0.0, "all_reduce", 4e6),))])
        >>> one_bit = Method("1-bit", [Bucket(1e6, (Collective(0.001, "all_gather", 125e3),))])
        >>> links, measured = uniform_links(12.5e6, 0.001), {64: Computation(0.01, 0.02)}
        >>> advice = advise([full, one_bit], measured, links, 2, 64, [1_000_000])
        >>> advice.method, advice.sending_less_pays
        ('1-bit', True)
    """
    require_workers(workers, 2)
    if not methods:
        raise ValueError("Advice needs methods, full precision first. Received: methods=[].")
    computation = interpolated(measured, per_replica_batch_size)
    predictions = [
        predict(method, computation, links, workers, alone_seconds) for method in methods
    ]
    full, fastest = predictions[0], min(p.step_seconds for p in predictions)
    # The first method that the fastest does not beat by a tenth. Except for full precision, it
    # must beat full precision by a tenth to be worth it.
    chosen = next(
        i
        for i, p in enumerate(predictions)
        if not pays(p.step_seconds, fastest) and (i == 0 or pays(full.step_seconds, p.step_seconds))
    )
    method, prediction = methods[chosen], predictions[chosen]
    sentences = [_about_full_precision(full, chosen > 0)]
    if chosen:
        sentences.append(
            f"{method.name}: {format_milliseconds(prediction.step_seconds)} per step, "
            f"{full.step_seconds / prediction.step_seconds:.1f} times as fast as full precision, "
            f"and {prediction.speed_up:.1f} times as fast as one worker. The longest part of a "
            f"step is {_PARTS[prediction.bottleneck]}."
        )
    if prediction.speed_up <= 1:
        sentences.append(
            f"One worker alone is as fast or faster: {workers} workers with {method.name} are "
            f"{prediction.speed_up:.2g} times as fast as one. Give each worker more samples per "
            "step, or use faster links."
        )
    batch, sentence = _batch_size(method, measured, links, workers, per_replica_batch_size)
    sentences.append(sentence)
    bucket_bytes = _bucket_bytes(method, computation, links, workers, sizes)
    if bucket_bytes is not None:
        sentences.append(
            f"bucket_bytes={bucket_bytes // 2**20} * 2**20 makes a step shorter than the default."
        )
    period = _sync_period((method, *methods), computation, links, workers)
    if period is not None:
        sentences.append(
            f"Training in blocks costs at most {100 * _MOST_OF_A_BLOCK:.0f} % of a step with "
            f"sync_period={period} or more."
        )
    return Advice(method.name, chosen > 0, batch, bucket_bytes, period, sentences)


_PARTS = {
    "computation": "the computation",
    "coding": "encoding and decoding",
    "sending": "sending and receiving",
}


def _about_full_precision(full: Prediction, sending_less_pays: bool) -> str:
    share = 1 - full.computation_seconds / full.step_seconds
    facts = (
        f"in full precision a step takes {format_milliseconds(full.step_seconds)}, of which "
        f"{format_milliseconds(full.computation_seconds)} are computation. The exchange costs "
        f"{100 * share:.0f} %"
    )
    if sending_less_pays:
        return f"Sending less pays: {facts}."
    return (
        f"Compression will not pay: {facts}. Compression and training in blocks make a step at "
        "most a tenth faster."
    )


def _batch_size(
    method: Method,
    measured: Mapping[int, Computation],
    links: Mapping[str, Link],
    workers: int,
    per_replica_batch_size: int,
) -> tuple[int, str]:
    costs = {}
    for size, computation in sorted(measured.items()):
        prediction = predict(method, computation, links, workers)
        costs[size] = 1 - prediction.computation_seconds / prediction.step_seconds
    best = next((size for size, cost in costs.items() if cost <= _MOST_OF_A_STEP), max(costs))
    cost = f"{100 * costs[best]:.0f} % of a step"
    if len(costs) == 1:
        return best, f"With {best} samples per worker and step its exchange costs {cost}."
    if costs[best] > _MOST_OF_A_STEP:
        return best, (
            f"With {best} samples per worker and step its exchange costs {cost}. That is the "
            "largest measured number, and more samples cost less."
        )
    if best > per_replica_batch_size:
        return (
            best,
            f"With {best} samples per worker and step or more, its exchange costs at most {cost}.",
        )
    return best, f"{best} samples per worker and step are enough: its exchange then costs {cost}."


def _bucket_bytes(
    method: Method,
    computation: Computation,
    links: Mapping[str, Link],
    workers: int,
    sizes: Sequence[int],
) -> int | None:
    # Buckets without values stay as they are.
    empty, buckets = ([b for b in method.buckets if bool(b.size) == has] for has in (False, True))
    kinds = {tuple(c.kind for c in bucket.collectives) for bucket in buckets}
    if method.bucket_bytes is None or len(kinds) != 1:
        return None  # gradients that are exchanged in different ways cannot share buckets

    def seconds(bucket_bytes: int) -> float:
        again = regrouped(dataclasses.replace(method, buckets=buckets), sizes, bucket_bytes)
        again = dataclasses.replace(again, buckets=empty + again.buckets)
        return predict(again, computation, links, workers).step_seconds

    by_bytes = {n * 2**20: seconds(n * 2**20) for n in _BUCKET_MEBIBYTES}
    best = min(by_bytes, key=by_bytes.__getitem__)
    noticeably_less = (1 - _NOTICEABLE) * seconds(method.bucket_bytes)
    return best if by_bytes[best] < noticeably_less else None


def _sync_period(
    methods: Iterable[Method], computation: Computation, links: Mapping[str, Link], workers: int
) -> int | None:
    """Returns the period of the first method with blocks: a power of two, or None without any.

    With fragments the cost is not proportional to the number of blocks, and there is no advice.
    """
    for method in methods:
        if method.sync_period is not None and not method.takes_turns:
            prediction = predict(method, computation, links, workers)
            block_seconds = (prediction.step_seconds - computation.seconds) * method.sync_period
            least = max(1.0, block_seconds / (_MOST_OF_A_BLOCK * computation.seconds))
            return 2 ** math.ceil(math.log2(least))
    return None
