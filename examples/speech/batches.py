"""Minibatches of frames in context, shared out among the workers of a job."""

import keras
import numpy as np
from dataset import CONTEXT_FRAMES
from targets import NO_TARGET

_WINDOW = np.arange(-CONTEXT_FRAMES, CONTEXT_FRAMES + 1)


class FrameBatches(keras.utils.PyDataset):
    """One worker's share of the minibatches, in blocks.

    Minibatch `i` of all workers together does not depend on their number. Each worker has an
    equal part of it. Frames that do not fill a last minibatch wait for the next shuffle.

    A block is the span between two evaluations, which Keras calls an epoch. One pass over the data
    has `blocks_per_epoch` blocks. After each pass all workers shuffle the data alike.

    Args:
        split: `dataset.Split`.
        batch_size: int. Frames per minibatch and worker.
        rank, world_size: int. This worker's number, and how many there are.
        blocks_per_epoch: int.
        shuffle_seed: int, or None to keep the order.
        first_block: int. The block to begin with.
        share: int. Number of consecutive parts of the `world_size` that this worker takes, from
            part `rank`, for workers of different speeds.
    """

    def __init__(
        self,
        split,
        batch_size,
        rank,
        world_size,
        blocks_per_epoch=1,
        shuffle_seed=None,
        first_block=0,
        share=1,
    ):
        super().__init__()
        self._split = split
        self._rows = np.flatnonzero(split.targets != NO_TARGET)
        self._batch_size = batch_size
        self._rank, self._world_size = rank, world_size
        self._share = share
        self._blocks_per_epoch = blocks_per_epoch
        self._shuffle_seed = shuffle_seed
        self._block = first_block
        self._order = self._shuffled(epoch=first_block // blocks_per_epoch)
        if len(self) == 0:
            raise ValueError(
                f"The data must have a minibatch for every block, worker and pass. Received: "
                f"{len(self._rows)} frames, batch_size={batch_size}, world_size={world_size}, "
                f"blocks_per_epoch={blocks_per_epoch}. Use more data or smaller minibatches."
            )

    def __len__(self):
        return self._share * self._steps_per_block

    @property
    def _steps_per_block(self):
        return len(self._rows) // (self._batch_size * self._world_size * self._blocks_per_epoch)

    def __getitem__(self, index):
        step, part = divmod(index, self._share)
        step += self._block % self._blocks_per_epoch * self._steps_per_block
        start = (step * self._world_size + self._rank + part) * self._batch_size
        rows = self._order[start : start + self._batch_size]
        return self._split.frames[rows[:, None] + _WINDOW], self._split.targets[rows]

    def on_epoch_end(self):
        self._block += 1
        if self._block % self._blocks_per_epoch == 0:
            self._order = self._shuffled(epoch=self._block // self._blocks_per_epoch)

    def _shuffled(self, epoch):
        if self._shuffle_seed is None:
            return self._rows
        return np.random.default_rng([self._shuffle_seed, epoch]).permutation(self._rows)
