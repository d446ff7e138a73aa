"""Minibatches whose size may change between any two steps of `model.fit`."""

import itertools
import numbers
import warnings
from collections.abc import Mapping
from typing import Any, SupportsInt

import numpy as np
import tensorflow as tf

from tf_onebit._framework_internals.keras_data import DataAdapter
from tf_onebit._framework_internals.keras_random import make_default_seed
from tf_onebit.collectives.requests import AllGather, one_request
from tf_onebit.data.fitting import InFit, join_fit
from tf_onebit.data.minibatch import Minibatch, Minibatches, MinibatchSpec, Peek
from tf_onebit.data.partition import Partition
from tf_onebit.data.prefetch import Loaded, Prefetcher
from tf_onebit.data.sources import source_of


class ResizableBatches(DataAdapter):
    """Data for `model.fit` in minibatches whose size may change between any two steps.

    An epoch is a sequence of samples, the same on all workers. A minibatch takes the next
    `global_batch_size` samples after the minibatch before it, even if that had another size. So
    every sample is trained on exactly once in an epoch. Worker k of P trains on part k of a
    minibatch of n samples: its samples floor(k n / P) to floor((k + 1) n / P).

    The last minibatch of an epoch takes the samples that are left. If these are less than half a
    minibatch, the last two minibatches share their samples equally. So a learning rate for large
    minibatches is never applied to a few samples. If fewer than P samples are left, the minibatch
    before takes them, too, so that every worker has samples in each step.

    Args:
        data: the same data on all workers. An array, or `(x, y)` or `(x, y, sample_weight)` of
            arrays or structures of arrays. Or a `keras.utils.PyDataset` or `tf.data.Dataset` of
            batches of any sizes, whose samples are taken in their order.
        global_batch_size: number of samples of a minibatch, over all workers.
        shuffle: whether the samples of arrays come in a random order, a function of seed and epoch
            that differs between epochs. Datasets keep their own order, which must be the same on
            all workers. NumPy arrays are copied.
        seed: int, the same on all workers. Default: a random number, the same in each run after
            `keras.utils.set_random_seed`.
        rank, world_size: rank of this worker and number of workers. Default: as known to the
            strategy or the optimizer of the trained model.

    Raises:
        ValueError: for data of another kind or without an end. For a size that is not a positive
            number, that the workers cannot share equally, or that is larger than the data. In
            `fit`, for other arguments that describe the data, and if `state()` differs between
            workers.

    Attributes:
        samples: number of samples of an epoch, or None if unknown.
        epoch: number of finished epochs. An epoch that an interrupted `fit` did not finish
            continues in the next `fit`. `initial_epoch` has no effect.
        position: number of samples of all steps so far.
        offset: number of samples of this epoch's steps so far.
        parts: number of parts of a minibatch, one for each device of each worker, as found by the
            last `fit`.
        remaining: number of samples left in this epoch, or None if unknown.

    Example:
        >>> import keras, numpy, tf_onebit
        >>> x, y = numpy.ones([256, 8]), numpy.ones([256, 1])
        >>> batches = tf_onebit.ResizableBatches((x, y), global_batch_size=32)
        >>> def grow(batch, logs):
        ...     if batches.position == 64:
        ...         batches.resize(64)
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", loss="mse")
        >>> callback = keras.callbacks.LambdaCallback(on_train_batch_end=grow)
        >>> history = model.fit(batches, callbacks=[callback], verbose=0)
        >>> int(model.optimizer.iterations)  # two of 32 and three of 64 samples
        5
    """

    def __init__(
        self,
        data: Any,
        global_batch_size: int,
        *,
        shuffle: bool = True,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if seed is None:
            seed = make_default_seed()
        self._seed = _whole("seed", seed, 0)
        if self._seed >= 2**63:  # states and messages hold 64 bits
            raise ValueError(f"seed must be less than 2**63. Received: seed={seed}.")
        if (rank is None) != (world_size is None):
            raise ValueError(
                "rank and world_size must be given together. Received: "
                f"rank={rank}, world_size={world_size}."
            )
        if rank is not None:
            world_size = _whole("world_size", world_size, 1)
            if _whole("rank", rank, 0) >= world_size:
                raise ValueError(
                    "rank must be less than world_size. Received: "
                    f"rank={rank}, world_size={world_size}."
                )
        self._given_place = rank, world_size
        self._source = source_of(data, shuffle)
        self._engine = None
        self._position = self._epoch = self._offset = 0
        self._goes_on = False  # whether a state was loaded, and no epoch read since
        self._size = global_batch_size
        if rank is None or world_size is None:
            self._place(Partition())
        else:
            self._place(Partition(rank, world_size))
        # The minibatch of the next step, once that step is about to begin; whether the step has
        # taken it; and the reader of the minibatches after it.
        self._loaded = None
        self._is_taken = False
        self._ahead = Prefetcher(self._read)

    def _place(self, partition):
        self._partition = partition
        self._size = self._checked(self._size)
        self._spec = MinibatchSpec(
            self._source.element_spec, partition.replicas, partition.strategy
        )

    @property
    def samples(self) -> int | None:
        return self._source.samples

    @property
    def global_batch_size(self) -> int:
        return self._size

    @property
    def position(self) -> int:
        return self._position

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def parts(self) -> int:
        return self._partition.parts

    @property
    def remaining(self) -> int | None:
        return None if self.samples is None else self.samples - self._offset

    def resize(self, global_batch_size: int) -> None:
        """Sets the size of the minibatches from the next step on.

        Call it on all workers, between the same two steps.

        Args:
            global_batch_size: number of samples of a minibatch, over all workers.

        Raises:
            ValueError: if the size is not a positive number, cannot be shared equally by the
                workers, or is larger than the data.
        """
        self._size = self._checked(global_batch_size)
        self._reload()

    def peek(self, samples: int, global_batch_size: int) -> Peek:
        """Returns the next minibatches for a trial, without a change of the position.

        Call it between steps of `fit`. The minibatches end where the epoch ends.

        Args:
            samples: number of samples of all minibatches, over all workers.
            global_batch_size: number of samples of a minibatch, over all workers.

        Returns:
            `Peek`: an iterable of minibatches that `model.train_function` takes, valid until the
            next step.

        Raises:
            ValueError: as in `resize`, or if `samples` is not a positive number.
        """
        samples = _whole("samples", samples, 1)
        size = self._checked(global_batch_size)
        self._ahead.wait()
        self._source.seek(*self._place_in_data())
        end = self._source.available(self._offset + samples)
        cuts = list(self._cuts(self._offset, size, end))
        return Peek(self._minibatch_of, self._place_in_data(), cuts)

    def state(self) -> dict[str, np.int64]:
        """Returns the position in training: dictionary of NumPy arrays, equal on all workers."""
        return {
            "position": np.int64(self._position),
            "epoch": np.int64(self._epoch),
            "offset": np.int64(self._offset),
            "global_batch_size": np.int64(self._size),
            "seed": np.int64(self._seed),
            "samples": np.int64(-1 if self.samples is None else self.samples),
        }

    def load_state(self, state: Mapping[str, SupportsInt]) -> None:
        """Continues from a saved position, also in the middle of an epoch.

        If the epoch was saved after its last step, the next `fit` first ends it, without a step.
        Arrays need no time to continue. Datasets are read up to the position.

        Args:
            state: from `state()` of any worker, with any number of workers. If the present workers
                cannot share its size equally, they use the nearest size that they can.

        Raises:
            ValueError: if the state is of other data.
        """
        saved = {name: int(value) for name, value in state.items()}
        samples = -1 if self.samples is None else self.samples
        if saved["samples"] != samples:
            raise ValueError(
                "A state must come from the same data. Received: a state for "
                f"{_count(state['samples'])}, and data with {_count(samples)}."
            )
        self._ahead.wait()
        self._size = self._shareable(saved["global_batch_size"])
        self._seed = saved["seed"]
        self._position, self._epoch = saved["position"], saved["epoch"]
        self._offset = saved["offset"]
        self._goes_on = True
        if self._source.why_not_repeatable and self._offset > 0:
            warnings.warn(
                "The rest of the epoch may come in another order now. Then it trains on some "
                f"samples twice, and leaves others out: {self._source.why_not_repeatable}.",
                stacklevel=2,
            )
        self._reload()

    # The interface that Keras' `fit` and its epoch iterator use.

    num_batches = batch_size = has_partial_batch = partial_batch_size = None

    def get_tf_dataset(self):
        partition, self._engine = join_fit(*self._given_place)
        self._ahead.clear()
        self._place(partition)
        return InFit(self._source.element_spec)

    def begin_fit(self):
        self._loaded = None
        self._require_same_on_all_workers()

    def example(self):
        """Returns a batch, for its shapes."""
        self._ahead.wait()
        self._source.seek(*self._place_in_data())
        one = self._offset, self._source.available(self._offset + 1)
        (tensors,) = self._source.read([one])
        return tf.nest.pack_sequence_as(self._source.element_spec, tensors)

    def steps(self):
        """Yields an iterator for each execution of the steps that are left in the epoch."""
        if not self._load() and self._offset > 0 and not self._goes_on:
            self._begin_next_epoch()  # a fit was stopped after an epoch's last step
            self._load()
        self._goes_on = False
        if self._loaded is None and self._offset == 0:
            raise ValueError("data must not be empty. Received: an epoch without samples.")
        if self._partition.steps_per_execution == 1:
            iterator = Minibatch(self._spec, self._take)
        else:
            iterator = Minibatches(self._spec, self._take_next)
        while self._load():
            yield iterator
        self._begin_next_epoch()

    def _begin_next_epoch(self):
        self._ahead.clear()
        left = self._source.available(self._offset + self._partition.parts) - self._offset
        if left > 0:
            warnings.warn(
                f"The last {left} samples of epoch {self._epoch + 1} are left out. Every worker "
                f"must have a sample in each step, and there are {self._partition.parts} workers.",
                stacklevel=2,
            )
        self._loaded = None
        self._source.end_epoch(self._seed)
        self._epoch += 1
        self._offset = 0

    def _take(self):
        """Returns the tensors of the next step's minibatch, and begins that step."""
        if self._loaded is None:
            raise StopIteration
        if not self._is_taken:
            self._is_taken = True
            _, _, stop, _ = self._loaded.next_key
            self._position += stop - self._offset
            self._offset = stop
            self._ahead.begin()
        return self._loaded.tensors

    def _take_next(self):
        return self._take() if self._load() else None

    def _load(self):
        """Loads the minibatch of the next step, and returns whether there is one."""
        if self._loaded is not None and self._is_taken:
            self._loaded = None
        if self._loaded is None:
            self._loaded = self._ahead.get(self._key())
            self._is_taken = False
        return self._loaded is not None

    def _reload(self):
        """Loads the minibatch again, if one is loaded and its step has not begun."""
        if self._loaded is not None and not self._is_taken:
            self._loaded = self._ahead.get(self._key())

    def _place_in_data(self):
        return self._seed, self._epoch, self._offset

    def _key(self):
        return *self._place_in_data(), self._size

    def _read(self, seed, epoch, start, size):
        """Returns the minibatches from a sample on, as many as are worth reading at once."""
        self._source.seek(seed, epoch, start)
        at_once = self._source.at_once(size // self._partition.world_size)
        cuts = list(itertools.islice(self._cuts(start, size), 1 + at_once))
        if len(cuts) == 1:
            left = self._source.available(start + self._partition.parts) - start
            if start == 0 and left > 0:
                raise ValueError(
                    "Every worker must have a sample in each step. Received: an epoch with "
                    f"{left} samples, for {self._partition.parts} workers."
                )
            return []
        keys = [(seed, epoch, cut, size) for cut in cuts]
        return list(map(Loaded, keys[:-1], keys[1:], self._tensors(cuts)))

    def _cuts(self, start, size, end=None):
        """Yields the bounds of minibatches, from a sample of the epoch on."""
        yield start
        least = self._partition.parts
        while True:
            limit = start + size + max(least, -(-size // 2))
            available = self._source.available(limit)
            left = (available if end is None else min(available, end)) - start
            if left < least:  # too few for all workers: no minibatch
                return
            if left == limit - start:
                left = size
            elif left >= size + least:  # two minibatches, each at least half as large
                left = -(-left // 2)
            start += left
            yield start

    def _tensors(self, cuts):
        """Returns a list for each minibatch: the tensors of all replicas of this process."""
        parts = [self._partition.bounds(*cut) for cut in itertools.pairwise(cuts)]
        batches = iter(self._source.read(list(itertools.chain(*parts))))
        return [[leaf for _ in bounds for leaf in next(batches)] for bounds in parts]

    def _minibatch_of(self, place, start, stop):
        if place != self._place_in_data():
            raise ValueError(
                "The result of peek can be used until the next step only. Received: a use after "
                f"{self._position} samples. Call peek again."
            )
        self._ahead.wait()
        (tensors,) = self._tensors([start, stop])
        if self._partition.steps_per_execution == 1:
            return Minibatch(self._spec, lambda: tensors)
        remaining = [tensors]
        return Minibatches(self._spec, lambda: remaining.pop() if remaining else None)

    def _checked(self, global_batch_size):
        size = _whole("global_batch_size", global_batch_size, 1)
        parts = self._partition.parts
        if size % parts != 0:
            raise ValueError(
                f"global_batch_size must be a multiple of the number of workers, which is {parts}. "
                f"Received: global_batch_size={size}. Use {size // parts * parts or parts} or "
                f"{(size // parts + 1) * parts}."
            )
        if self.samples is not None and size > self.samples:
            raise ValueError(
                "global_batch_size must be at most the number of samples. Received: "
                f"global_batch_size={size}, for {self.samples} samples."
            )
        return size

    def _shareable(self, size):
        """Returns the nearest size that the present workers can share, with a warning."""
        parts = self._partition.parts
        nearest = max(1, round(size / parts)) * parts
        if nearest != size:
            warnings.warn(
                f"Minibatches have {nearest} samples from here on. The state has {size}, which "
                f"{parts} workers cannot share equally.",
                stacklevel=3,
            )
        return self._checked(nearest)

    def _require_same_on_all_workers(self):
        if self._engine is None:
            return
        state = self.state()
        mine = [int(value) for value in state.values()]
        request = AllGather(tf.constant([mine], tf.int64), "tf_onebit/resizable_batches")
        (gathered,) = self._engine.run([one_request(request)])
        for name, values in zip(state, gathered.numpy().T, strict=True):
            if len(set(values)) > 1:
                raise ValueError(
                    f"{name} of ResizableBatches must be the same on all workers. Received: "
                    f"{values.tolist()}, by rank."
                )


def _whole(name, value, least):
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or value < least:
        kind = "a positive whole number" if least == 1 else "a whole number, 0 or more"
        raise ValueError(f"{name} must be {kind}. Received: {name}={value!r}.")
    return int(value)


def _count(samples):
    return "an unknown number of samples" if samples < 0 else f"{samples} samples"
