"""What carries the messages of the workers that run in this process."""

import contextlib


class Engine:
    """The workers of a job that run in this process, and who carries their messages.

    Attributes:
        world_size: number of workers of the job.
        ranks: list of the ranks of those in this process: one of them, or all.
    """

    world_size: int
    ranks: list

    def run(self, generators):
        """Runs the exchanges of `ranks`, in that order.

        Returns:
            List of what each generator returned.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run.")

    def place(self, index):
        """Context in which the state of worker `ranks[index]` is created."""
        return contextlib.nullcontext()
