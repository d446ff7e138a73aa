"""Workers of one process that train in blocks: the reference for workers in several processes."""

import numpy as np

from tests.support.training import compiled
from tf_onebit import FullPrecision
from tf_onebit._bmuf.equations import BlockFilter
from tf_onebit._bmuf.meeting import End
from tf_onebit._bmuf.synchronization import BlockSynchronization
from tf_onebit._bmuf.variables import block_variables
from tf_onebit.collectives.lockstep import LockstepEngine


class Lockstep:
    """Models, one per worker, each trained on batches of its own.

    Args:
        make: function that makes a model.
        optimizer: function that makes an optimizer.
        workers: number of them.
        block_momentum: eta.
        exchange: `tf_onebit.Exchange`, for blocks.
        fragments, overlap: as in `BlockMomentum`.
        sync_period: the same, for an overlap.
        outer_optimizer: the same. Then there is no block momentum.

    Attributes:
        global_models: list of lists of arrays: the global model after each block.
    """

    def __init__(
        self,
        make,
        optimizer,
        workers=2,
        block_momentum=0.5,
        exchange=None,
        fragments=1,
        overlap=0,
        sync_period=None,
        outer_optimizer=None,
    ):
        self._fragments, self._overlap = fragments, overlap
        self.models = [compiled(make(), optimizer()) for _ in range(workers)]
        self.blocks = BlockSynchronization(
            LockstepEngine(["CPU:0"] * workers),
            BlockFilter(block_momentum if outer_optimizer is None else 0.0),
            exchange or FullPrecision(),
            [
                block_variables(
                    model,
                    "bmuf_adam",
                    compresses=exchange is not None,
                    weights_alone=fragments > 1 or overlap > 0,
                )
                for model in self.models
            ],
            scope="lockstep",
            fragments=fragments,
            nominal_steps=sync_period,
            outer_optimizer=outer_optimizer,
        )
        self.blocks.train()
        self.global_models = []

    def epoch(self, batches, sync_period):
        """Trains on lists of batches, by worker. With fewer batches the last block ends early.

        Returns:
            The global model's weights.
        """
        for begin in range(0, max(map(len, batches)), sync_period):
            for model, mine in zip(self.models, batches, strict=True):
                for x, labels in mine[begin : begin + sync_period]:
                    model.train_on_batch(x, labels)
            self.blocks.synchronize()
            with self.blocks.view():
                self.global_models.append([np.array(v) for v in self.models[0].variables])
        return self.global_models[-1]

    def epoch_of_fragments(self, batches, sync_period):
        """Does the same for fragments, of which all are synchronized at the end."""
        batches_of_turns = [
            (turn + 1) * sync_period // self._fragments for turn in range(self._fragments)
        ]
        self.blocks.train()
        for step in range(1, max(map(len, batches)) + 1):
            for model, mine in zip(self.models, batches, strict=True):
                if step <= len(mine):
                    model.train_on_batch(*mine[step - 1])
            self.blocks.count_batches(1)
            self.blocks.finish(self._overlap)
            if (step - 1) % sync_period + 1 in batches_of_turns:
                if self._overlap:
                    self.blocks.start()
                else:
                    self.blocks.synchronize()
        self.blocks.end(End.EPOCH)
        return [np.array(v) for v in self.models[0].variables]
