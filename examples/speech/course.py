"""The frames of each training step: fixed in advance, or decided during training."""

import keras
from batches import FrameBatches
from conflicts import is_automatic
from updates import frames_per_step

import tf_onebit

READ_FRAMES = 1024  # read at a time, for minibatches of any size
# Fractions of a pass over the data. In the papers 24 h of 309 h lie between two searches. In a
# corpus of a few hours, 2 % of such a part would be just a few minibatches.
MINIBATCH_INTERVAL, EVALUATION_INTERVAL = 1.0, 0.5
# Length of a trial: a fraction of the interval, and a number of steps. It allows for trials of
# twice the size, with and without delay.
PART_OF_TRIAL, LEAST_STEPS_OF_TRIAL = 0.02, 40


def course_of(options, split, development, rank, workers):
    """Returns the course that the command line asks for.

    Args:
        options: what `parse_arguments` returned.
        split: `dataset.Split` to train on.
        development: data to decide the learning rate by.
        rank, workers: int.
    """
    if is_automatic(options):
        return AutomaticCourse(options, split, development, rank, workers)
    return FixedCourse(options, split, rank, workers)


class FixedCourse:
    """Minibatches of a fixed size, different ones for each worker.

    Attributes:
        fit_arguments: dict. Data, and the number of epochs. An epoch is a block between two
            evaluations.
        steps: int. Steps of this worker in all epochs.
        frames: list of int. Frames of all workers so far, after each epoch.
        callbacks: list of Keras callbacks for `fit`.
        description: str.
    """

    callbacks = ()

    def __init__(self, options, split, rank, workers):
        shares = options.shares or workers * [1]
        if len(shares) != workers:
            raise SystemExit(
                f"--shares needs one for each of {workers} workers. Received: {shares}."
            )
        frames = frames_per_step(options)
        data = FrameBatches(
            split,
            frames,
            sum(shares[:rank]),
            sum(shares),
            options.blocks_per_epoch,
            shuffle_seed=options.seed,
            first_block=options.first_block,
            share=shares[rank],
        )
        blocks = options.blocks
        if blocks is None:
            blocks = options.epochs * options.blocks_per_epoch - options.first_block
        # `FrameBatches` already shuffles frames, on all workers alike.
        self.fit_arguments = {"x": data, "epochs": blocks, "shuffle": False}
        self.steps = blocks * len(data)
        in_block = len(data) // shares[rank] * sum(shares) * frames
        self.frames = [(block + 1) * in_block for block in range(blocks)]
        self._minibatch = options.batch_size * workers
        self.description = f"{blocks} blocks of {len(data)} steps of {workers} x {frames} frames"

    def summary(self):
        """Returns figures for the results, as a dictionary of plain values."""
        return {
            "mean_minibatch": self._minibatch,
            "largest_minibatch": self._minibatch,
            "search_frames": 0,
        }

    def plot(self, path):
        """Draws nothing, because sizes do not change."""


class AutomaticCourse:
    """Minibatches that workers share, with a size or learning rate decided during training.

    Its attributes are those of `FixedCourse`, with two differences. An epoch of `fit` is a pass
    over the data, or the rest of one after `--first-block`. `steps` and `frames` grow during
    training.
    """

    def __init__(self, options, split, development, rank, workers):
        first_pass, block = divmod(options.first_block, options.blocks_per_epoch)
        source = FrameBatches(
            split, READ_FRAMES, 0, 1, shuffle_seed=options.seed, first_block=first_pass
        )
        frames_in_pass = len(source) * READ_FRAMES
        self._data = tf_onebit.ResizableBatches(
            source,
            frames_per_step(options) * workers,
            seed=options.seed,
            rank=rank,
            world_size=workers,
        )
        if block:
            offset = block * frames_in_pass // options.blocks_per_epoch
            self._data.load_state(self._data.state() | {"offset": offset})
        passes = options.epochs
        if options.blocks is not None:
            passes = (options.first_block + options.blocks) // options.blocks_per_epoch
        passes -= first_pass
        self.fit_arguments = {"x": self._data, "epochs": passes}
        self.steps, self.frames = 0, []
        self.description = (
            f"{passes} passes over {frames_in_pass:,} frames, at first in steps of {workers} "
            f"x {frames_per_step(options)}"
        )
        self._steps_per_minibatch = options.batch_size // frames_per_step(options)
        self._size_control = self._rate_control = None
        if options.auto_minibatch:
            largest = options.max_minibatch // self._steps_per_minibatch
            interval = options.minibatch_interval or round(MINIBATCH_INTERVAL * frames_in_pass)
            least_trial = LEAST_STEPS_OF_TRIAL * self._data.global_batch_size
            trial = min(interval, max(round(PART_OF_TRIAL * interval), least_trial))
            self._size_control = tf_onebit.callbacks.AutoMinibatchSize(
                self._data,
                interval,
                options.trial_frames or trial,
                max_size=largest // workers * workers,  # workers share it in equal parts
                error_margin=options.error_margin,
                monitor=options.minibatch_criterion,
                tune_without_delay=options.tune_without_delay,
            )
        if options.auto_learning_rate:
            self._rate_control = tf_onebit.callbacks.AutoLearningRate(
                development,
                options.evaluation_interval or round(EVALUATION_INTERVAL * frames_in_pass),
                monitor="accuracy",
            )

    @property
    def callbacks(self):
        # The rate comes first, so that the search for a size uses the final model and rate. In the
        # other order, an evaluation might undo the search, or end training right after it.
        controls = [self._rate_control, self._size_control]
        count = keras.callbacks.LambdaCallback(
            on_train_batch_end=self._count_step, on_epoch_end=self._note_frames
        )
        return [*(control for control in controls if control), count]

    def summary(self):
        """Returns figures as `FixedCourse` does. A delayed minibatch takes two steps."""
        sizes, search_frames = [self._data.global_batch_size], 0
        if self._size_control:
            sizes = self._size_control.history["global_batch_size"]
            trials = sum(len(trials) for trials in self._size_control.history["trials"])
            search_frames = trials * self._size_control.trial_samples
        return {
            "mean_minibatch": self.frames[-1] / self.steps * self._steps_per_minibatch,
            "largest_minibatch": max(sizes) * self._steps_per_minibatch,
            "search_frames": search_frames,
            "minibatch_control": self._size_control and self._size_control.history,
            "learning_rate_control": self._rate_control and self._rate_control.history,
        }

    def plot(self, path):
        """Draws the sizes of steps over the frames seen, if there was a search."""
        if self._size_control:
            self._size_control.plot(path)

    def _count_step(self, batch, logs):
        self.steps += 1

    def _note_frames(self, epoch, logs):
        self.frames.append(self._data.position)
