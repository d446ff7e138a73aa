"""The settings of one training: in blocks, of one node, or synchronous."""

import dataclasses

SENT_MOMENTS = {
    "default": "as by default",  # sent only with weights in full precision
    "none": "not sent",
    "full": "in full precision",
    "bfloat16": "1-bit and 16-bit",  # of gradients, and of their squares
    "one_bit": "1-bit",
}
FULL_PRECISION, ONE_BIT = "full precision", "1-bit"
BLOCK_MOMENTUM = "block momentum"
COMMON_START = 0.1  # of all minibatches
START_BETA_1 = 0.9
COLUMN_SIZE = 512  # the default of `OneBit`
# For the default network: a step, and the end of a block for one of its workers.
SECONDS_OF_A_MINIBATCH, SECONDS_OF_AN_END = 0.45e-3, 4e-3


@dataclasses.dataclass(frozen=True)
class Run:
    """The settings of one training.

    All runs of a seed begin with the training of one node on a tenth of the minibatches
    (`COMMON_START`), as in the paper. Then they see the same minibatches.

    Attributes:
        hours: float. Speech to train on, in one pass.
        targets: int. The largest number of phone states.
        depth, width: int. Hidden layers, and units in each.
        frames: int. Number in a minibatch of one worker.
        minibatches: int. Number of all workers together, after the common start.
        learning_rate: float. The highest of one node's schedule.
        seed: int. Seed of the weights and the order of frames.
        workers: int.
        sync_period: int. Steps in a block. With 0, workers exchange gradients. Then there is one
            model, and its minibatch is the sum of the workers'.
        beta_1: float. Setting of Adam, after the common start.
        moments: str. The `moment_correction` of `BlockMomentum`.
        exchange: str. The exchange of blocks: a key of `EXCHANGES` of `bmuf_simulation.py`.
        column_size: int. The most values that share two levels, with one bit.
        sent_moments: str, one of `SENT_MOMENTS`. The way in which moments are sent.
        learning_rate_factor: float. Factor of the learning rate after the start.
        fragments, overlap: int. As in `BlockMomentum`.
        outer: str. The filter of blocks: a key of `OUTER` of `bmuf_simulation.py`.
    """

    hours: float
    targets: int
    depth: int
    width: int
    frames: int
    minibatches: int
    learning_rate: float
    seed: int
    workers: int = 1
    sync_period: int = 0
    beta_1: float = START_BETA_1
    moments: str = "bmuf_adam"
    exchange: str = FULL_PRECISION
    column_size: int = COLUMN_SIZE
    sent_moments: str = "default"
    learning_rate_factor: float = 1.0
    fragments: int = 1
    overlap: int = 0
    outer: str = BLOCK_MOMENTUM

    @property
    def alone(self):
        """The settings of one node on the same samples."""
        own = {field.name: field.default for field in dataclasses.fields(self)}
        defaults = {name: value for name, value in own.items() if value is not dataclasses.MISSING}
        return dataclasses.replace(self, **defaults)

    @property
    def start(self):
        """The number of minibatches of the common start."""
        return round(COMMON_START / (1 - COMMON_START) * self.minibatches)

    @property
    def blocks(self):
        return self.minibatches // (self.workers * self.sync_period) if self.sync_period else 0

    @property
    def seconds(self):
        """About how long it takes, on a core of a Xeon of 2023 with nothing else to do."""
        alone = SECONDS_OF_A_MINIBATCH * (self.start + self.minibatches)
        return alone + SECONDS_OF_AN_END * self.workers * self.blocks * self.fragments

    @property
    def name(self):
        if self == self.alone:
            how = f"one node, learning rate {self.learning_rate:g}"
        elif not self.sync_period:
            how = f"{self.workers} workers, synchronous, factor {self.learning_rate_factor:g}"
        else:
            sent = f", {self.exchange}"
            if self.column_size != COLUMN_SIZE:
                sent += f" in columns of {self.column_size}"
            if self.sent_moments != "default":
                sent += f", moments {SENT_MOMENTS[self.sent_moments]}"
            if self.fragments > 1:
                sent += f", {self.fragments} fragments"
            if self.overlap:
                sent += f", overlap {self.overlap}"
            if self.outer != BLOCK_MOMENTUM:
                sent += f", {self.outer}"
            how = (
                f"{self.workers} workers, tau {self.sync_period}, {self.moments}, "
                f"beta_1 {self.beta_1:g}{sent}"
            )
        return f"{how}, seed {self.seed}"
