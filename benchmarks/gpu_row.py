"""A row of the table of `gpu.py`, and the sizes that its rows have in common."""

COLUMN_SIZE = 512
WORLD_SIZE = 8
FLOAT_BYTES = 4
EXCHANGE = "whole exchange"


class Row:
    """An operation to measure.

    Args:
        run: function that launches it.
        num_bytes: number of bytes that it must read and write.
    """

    def __init__(self, run, num_bytes):
        self.run, self.num_bytes = run, num_bytes
