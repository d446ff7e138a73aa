"""Bucketed: the gradients of a whole model, exchanged in buckets."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tf_onebit._configurable import Configurable, deserialize, serialize
from tf_onebit.collectives.requests import AllGather, Exchanging, Within, all_reduce_bytes
from tf_onebit.exchanges.arguments import require_gradients_and_rank
from tf_onebit.exchanges.base import FLOAT_BYTES
from tf_onebit.exchanges.gradients import (
    Gradient,
    GradientSpec,
    after,
    require_finite,
)
from tf_onebit.exchanges.handshake import describe, handshake
from tf_onebit.exchanges.partition import partition
from tf_onebit.exchanges.residuals import sum_of_squares
from tf_onebit.exchanges.schedule import AnyExchange, Schedule
from tf_onebit.exchanges.scheduled_bucket import Answered, ScheduledBucket
from tf_onebit.exchanges.stages import Stages
from tf_onebit.exchanges.state import State, averaged, part_of, prefixed, require_same_kind, summed
from tf_onebit.exchanges.velocities import Velocities
from tf_onebit.ops.variables import can_update

# A generator that runs a bucket, made of the bucket, its part of the tensors, and answers that it
# waits for.
RunBucket: TypeAlias = Callable[
    [ScheduledBucket, list[Gradient], Sequence[tf.Tensor]], Exchanging[Answered]
]

# Fraction of a model's gradients that counts as early in a backward pass. Their first stage takes
# a little longer than the rest of the pass: links are busy until the end of a step, and not much
# longer.
EARLY = 2 / 3


class Bucketed(Configurable, tf.Module):
    """Exchange of all gradients of a model: each bucket by a clone of the user's exchange.

    Gradients are listed in the order of the variables. Buckets are filled in reverse order, which
    is roughly the order in which the backward pass computes them. A bucket holds gradients of one
    type. `FullPrecision` exchanges gradients that the user's exchange excludes, or whose type it
    does not take. `SparseGather` exchanges `tf.IndexedSlices`. All follow the same schedule.

    If the user's exchange transforms gradients, its full-precision substitute transforms them too.

    Buckets depend on nothing but their own gradients. In the graph of a training step each bucket
    is therefore exchanged as soon as its gradients are ready, while others are still computed.

    Args:
        template: the user's `Exchange` or `Recipe`; only clones of it are used.
        takes_updates: whether workers exchange updates of their optimizers, not gradients.

    Attributes:
        buckets: list of `ScheduledBucket`. `build` sets it, and the attributes that the `build` of
            an `Exchange` sets.
        per_node: number of workers that share the exchange of a node.
    """

    per_node = 1

    def __init__(self, template: AnyExchange, takes_updates: bool = False) -> None:
        super().__init__()
        self.template: AnyExchange = deserialize(template)
        self._takes_updates = takes_updates

    def get_config(self) -> dict[str, Any]:
        return {"template": serialize(self.template), "takes_updates": self._takes_updates}

    def build(
        self,
        specs: Sequence[GradientSpec],
        rank: int,
        world_size: int,
        scope: str,
        unit: float = 1.0,
    ) -> None:
        """Creates the buckets. See `Exchange.build`."""
        require_gradients_and_rank(specs, rank, world_size)
        self.specs, self.rank, self.world_size = tuple(specs), rank, world_size
        self.scope, self.unit = scope, unit
        self.buckets: list[ScheduledBucket] = []
        before = 0
        size = sum(spec.size for spec in specs)
        for i, (schedule, indices) in enumerate(self.partition(specs)):
            is_early = before <= EARLY * size or not schedule.delay
            bucket = ScheduledBucket(schedule, indices, is_early, self._takes_updates)
            bucket_scope = f"{scope}/bucket_{i}"
            with tf.init_scope():
                own = self._exchanged_of([specs[index] for index in indices], bucket_scope)
                bucket.build(own, rank, world_size, bucket_scope, unit)
            before += sum(specs[index].size for index in indices)
            self.buckets.append(bucket)

    def _exchanged_of(self, specs: list[GradientSpec], scope: str) -> list[GradientSpec]:
        """Returns what this worker exchanges of the gradients of a bucket: list of `GradientSpec`.

        Args:
            specs: list of `GradientSpec` of the gradients.
            scope: prefix of the names of the bucket's collectives.
        """
        return specs

    def partition(self, specs: Sequence[GradientSpec]) -> list[tuple[Schedule, list[int]]]:
        """Assigns gradients to buckets. Returns a list of (`Schedule`, gradient indices)."""
        return partition(self.template, specs, self._takes_updates)

    def handshake(
        self, specs: Sequence[GradientSpec], world_size: int, scope: str
    ) -> Exchanging[None]:
        """Generator: raises ValueError on all workers if they would build different exchanges.

        It runs in eager mode, before `build`, and takes the same arguments.
        """
        yield from handshake(scope, describe(self.template, specs, world_size))

    def run(
        self, gradients: Sequence[Gradient], scale: float = 1.0
    ) -> Exchanging[tuple[list[Gradient], tf.Tensor]]:
        """Generator: takes the gradients of a step, and returns exchanged ones.

        With a delay these are the gradients of an earlier step.

        Args:
            gradients: list of tensors, as in `specs`. Sums or means over the local minibatch.
            scale: factor on the sum: `1 / world_size` for the mean over the workers.

        Returns:
            The exchanged gradients and the flags, as `run_stages` does.

        Raises:
            InvalidArgumentError: on all workers, when the graph runs, if a value is not finite.
        """

        def run_bucket(
            bucket: ScheduledBucket, own: list[Gradient], answers: Sequence[tf.Tensor]
        ) -> Exchanging[Answered]:
            return bucket.run(own, scale, answers)

        exchanged, flags = yield from self._run_buckets(run_bucket, gradients)
        return self._in_order(exchanged), flags

    def run_uncompressed(
        self, gradients: Sequence[Gradient], scale: float
    ) -> Exchanging[tuple[list[Gradient], tf.Tensor]]:
        """Generator: exchanges the gradients that workers make an update of, in a warm-up.

        If workers exchange updates, this takes the place of `run` in the steps of a warm-up, with
        `run_alike` after it. See `run` for arguments, results and errors.
        """
        exchanged, flags = yield from self._run_buckets(
            lambda bucket, own, _: bucket.run_uncompressed(own, scale), gradients
        )
        return self._in_order(exchanged), flags

    def run_alike(
        self, updates: Sequence[Gradient]
    ) -> Exchanging[tuple[list[Gradient], tf.Tensor]]:
        """Generator: takes updates that are alike on all workers, in a warm-up, and returns them.

        Args:
            updates: list of tensors, made of what `run_uncompressed` returned.

        Returns:
            The updates and the flags.

        Raises:
            InvalidArgumentError: see `run`.
        """
        exchanged, flags = yield from self._run_buckets(
            lambda bucket, own, _: bucket.run_alike(own), updates
        )
        return self._in_order(exchanged), flags

    def is_warm(self) -> tf.Tensor | bool:
        """Tells whether the next step is within the warm-up: boolean or boolean tensor."""
        # All buckets began in the same step, so the first speaks for all.
        return self.buckets[0].is_warm()

    def gather(
        self, gradients: Sequence[Gradient], scale: float
    ) -> Exchanging[list[list[Gradient]]]:
        """Generator: does the same as `run`, but leaves the decoding to `add_to`.

        Args:
            gradients, scale: see `run`.

        Returns:
            List of lists of tensors for `gradients_of` and `add_to`, one for each bucket.

        Raises:
            InvalidArgumentError: see `run`.
        """

        def run_bucket(
            bucket: ScheduledBucket, own: list[Gradient], answers: Sequence[tf.Tensor]
        ) -> Exchanging[Answered]:
            return bucket.run(own, scale, answers, decodes=not bucket.adds)

        exchanged, _ = yield from self._run_buckets(run_bucket, gradients)
        if self.delay:
            # Earlier messages wait for no gradient. Variables that a step still reads for its
            # gradients would be copied before an update.
            return after(gradients, exchanged)
        return exchanged

    def gradients_of(self, gathered: Sequence[list[Gradient]]) -> list[Gradient | None]:
        """Returns the exchanged gradients that `add_to` does not add. None stands for others.

        Args:
            gathered: what `gather` returned.
        """
        return self._in_order(
            [None] * len(bucket.indices) if bucket.adds else own
            for bucket, own in zip(self.buckets, gathered, strict=True)
        )

    def add_to(
        self,
        variables: Sequence[tf.Variable],
        gathered: Sequence[list[Gradient]],
        scale: float,
        factor: tf.Tensor | float,
    ) -> None:
        """Adds `factor` times exchanged gradients to variables, where buckets can do so.

        Args:
            variables: list of float32 variables, as in `specs`.
            gathered: what `gather` returned.
            scale: the same as in `gather`.
            factor: float32 scalar.
        """
        for bucket, own in zip(self.buckets, gathered, strict=True):
            if bucket.adds:
                bucket.add_to([variables[i] for i in bucket.indices], own, scale, factor)

    def _in_order(self, by_bucket: Iterable[Sequence[Gradient | None]]) -> list[Gradient | None]:
        """Returns the entries of lists for each bucket in the order of `specs`."""
        ordered: list[Gradient | None] = [None] * len(self.specs)
        for bucket, own in zip(self.buckets, by_bucket, strict=True):
            for index, entry in zip(bucket.indices, own, strict=True):
                ordered[index] = entry
        return ordered

    def _run_buckets(
        self,
        run_bucket: RunBucket,
        tensors: Sequence[Gradient],
    ) -> Exchanging[tuple[list[list[Gradient]], tf.Tensor]]:
        """Generator: runs all buckets, and checks the flags of all workers.

        Args:
            run_bucket: see `RunBucket`.
            tensors: list like the gradients.

        Returns:
            List of what each bucket returned, and the flags.
        """
        exchanged: dict[ScheduledBucket, list[Gradient]] = {}
        flags: list[tf.Tensor] = []
        answers: list[tf.Tensor] = []
        # Late buckets go first, because early ones have less left to send.
        for bucket in sorted(self.buckets, key=lambda bucket: bucket.is_early):
            own = [tensors[index] for index in bucket.indices]
            exchanged[bucket], own_flags, answer = yield from run_bucket(
                bucket, own, tuple(answers)
            )
            if not bucket.is_early:
                answers.append(answer)
            # Converts 1 + the index in the bucket to 1 + the index in the list.
            flags.append(tf.gather([0, *(1 + index for index in bucket.indices)], own_flags))
        flags = tf.reduce_max(tf.stack(flags), axis=0)
        if self.per_node > 1:
            # Each worker knows the flags of its slices. All must end in an error, or none.
            gathered = yield Within(AllGather(flags, f"{self.scope}/node/flags"))
            flags = tf.reduce_max(tf.reshape(gathered, [self.per_node, self.world_size]), axis=0)
        names = [spec.name for spec in self.specs]
        # Flags are checked when all buckets are done. An earlier check could end the step of one
        # worker while the others still wait for its part of another bucket.
        by_bucket = [exchanged[bucket] for bucket in self.buckets]
        with tf.control_dependencies(tf.nest.flatten(by_bucket, expand_composites=True)):
            flags = tf.identity(flags)
        # An error cancels the ops that still run. A bucket with a delay would then keep its
        # message, and raise the same error in every later step.
        kept = [tf.convert_to_tensor(bucket.delivers()) for bucket in self.buckets]
        worker = "node" if self.per_node > 1 else "rank"
        checked = iter(
            require_finite(list(itertools.chain(*by_bucket)), flags, names, kept, worker)
        )
        return [list(itertools.islice(checked, len(own))) for own in by_bucket], flags

    @property
    def delay(self) -> int:
        """Number of steps by which gradients are delayed."""
        return self.buckets[0].delay

    def delivers(self) -> tf.Tensor | bool:
        """Tells whether the next step returns gradients: boolean or boolean tensor.

        If not, `hold` takes the place of `run`. The answer is the same on all workers.
        """
        # All buckets began in the same step, so the first speaks for all.
        return self.buckets[0].delivers()

    def hold(self, gradients: Sequence[Gradient]) -> Exchanging[None]:
        """Generator: takes the gradients of a step that returns none."""
        for bucket in self.buckets:
            yield from bucket.hold([gradients[index] for index in bucket.indices])

    def number_held(self) -> int:
        """Returns the number of steps whose gradients have been taken and not yet returned."""
        return self.buckets[0].number_held()

    def release(
        self, number: int, like: Sequence[Gradient], scale: float
    ) -> Exchanging[tuple[list[Gradient], tf.Tensor]]:
        """Generator: returns the oldest gradients that are held, and takes none.

        Args:
            number: `number_held()`, positive.
            like, scale: see `Exchange.deliver`.

        Returns:
            The exchanged gradients and the flags, as `run` does.
        """

        def release_bucket(
            bucket: ScheduledBucket, own: list[Gradient], answers: Sequence[tf.Tensor]
        ) -> Exchanging[Answered]:
            return bucket.release(number, own, scale, answers)

        exchanged, flags = yield from self._run_buckets(release_bucket, like)
        return self._in_order(exchanged), flags

    def set_stages(self, stages_of: Callable[[str], Stages]) -> None:
        """Sets the objects that run the stages in graphs traced from now on.

        Args:
            stages_of: function from a bucket's scope to its `Stages`.
        """
        for bucket in self.buckets:
            bucket.stages = stages_of(bucket.scope)

    def set_delay(self, on: bool) -> None:
        """Turns the delay on or off, if there is any. No gradients may be held at that time."""
        for bucket in self.buckets:
            bucket.set_delay(on)

    def set_velocities(self, by_device: Sequence[Sequence[tf.Variable]]) -> None:
        """Lets exchanges clear velocities of this worker where they send values.

        Args:
            by_device: list of lists of variables, as in `specs`, one for each device.
        """
        for bucket in self.buckets:
            own = [[variables[i] for i in bucket.indices] for variables in by_device]
            if all(map(can_update, own)):
                bucket.exchange.velocities = Velocities(own, self._ranges_of(bucket))

    def _ranges_of(self, bucket: ScheduledBucket) -> list[tuple[int, int]] | None:
        """Returns the (first value, number of values) of gradients that a bucket exchanges.

        None stands for all of their values.
        """
        return None

    def state(self) -> State:
        """See `Exchange`."""
        state: State = {}
        for i, bucket in enumerate(self.buckets):
            state |= prefixed(f"bucket_{i}", bucket.state())
        return state

    def load_state(self, states: Sequence[State], ratio: float = 1.0) -> None:
        """See `Exchange`.

        Raises:
            ValueError: for the states of another exchange.
        """
        require_same_kind(self, self.template, states)
        for i, bucket in enumerate(self.buckets):
            bucket.load_state([part_of(state, f"bucket_{i}") for state in states], ratio)

    def set_global_batch_size(self, samples: int) -> None:
        """See `Exchange`."""
        for bucket in self.buckets:
            bucket.set_global_batch_size(samples)

    def bytes_sent(self) -> int:
        """Returns the bytes that this worker sent in the last exchange."""
        return sum(bucket.bytes_sent() for bucket in self.buckets)

    def full_precision_bytes(self) -> int:
        """Returns the bytes that the same exchange would send in float32.

        `IndexedSlices` count as they are sent.
        """
        exchanged = [spec for bucket in self.buckets for spec in bucket.exchange.specs]
        dense_bytes = sum(spec.size * FLOAT_BYTES for spec in exchanged if not spec.sparse)
        sparse = [bucket for bucket in self.buckets if bucket.exchange.specs[0].sparse]
        sparse_bytes = sum(bucket.bytes_sent() for bucket in sparse)
        return all_reduce_bytes(dense_bytes, self.world_size) + sparse_bytes

    def residual_sum_of_squares(self) -> float:
        """See `Exchange`."""
        return sum(bucket.residual_sum_of_squares() for bucket in self.buckets)

    def residual_squares(self) -> dict[str, float]:
        """Returns the sum of squares of the residual of each gradient: dictionary of floats.

        It takes a pass over the residuals. Gradients without a residual are left out.
        """
        return summed(
            {name: sum_of_squares(values)}
            for bucket in self.buckets
            for name, values in bucket.exchange.residuals()
        )

    def advice(self) -> str | None:
        """Returns advice for the user, if training ends now: a text, or None."""
        return next(filter(None, (bucket.advice() for bucket in self.buckets)), None)

    def metrics(self) -> dict[str, float]:
        """Returns the buckets' metrics, averaged with their numbers of values as weights."""
        return averaged(
            (bucket.metrics(), max(1, sum(spec.size for spec in bucket.exchange.specs)))
            for bucket in self.buckets
        )
