"""Layout of a list of gradients: columns, and shards of columns.

A *column* is a run of values that share one pair of reconstruction levels (Seide et al. 2014,
section 3: one column of a weight matrix). A *shard* is the run of columns that one worker
aggregates (section 3.1). Tensors that are not cut are *plain*, and travel in full precision.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

CODES_PER_WORD = 32
FLAG_WORDS = 1
LEVEL_WORDS_PER_COLUMN = 2
WORD_BYTES = 4

_Whole = TypeVar("_Whole", int, npt.NDArray[np.int64])


def _ceil_div(a: _Whole, b: int) -> _Whole:
    return -(-a // b)


def column_cut(shape: Sequence[int], min_column_size: int, max_column_size: int) -> tuple[int, int]:
    """Returns the row size and the column size of a tensor, in values.

    A row is the innermost axis. In a Keras `Dense` kernel `[in, out]` it holds the weights that
    leave one input unit, which the paper calls a column. Rows shorter than `min_column_size` are
    merged. Rows longer than `max_column_size` are cut into equal pieces of whole 32-bit words of
    codes.

    >>> column_cut((2048, 9304), min_column_size=64, max_column_size=512)
    (9304, 512)
    >>> column_cut((3, 3, 16, 24), min_column_size=64, max_column_size=512)
    (72, 72)
    """
    row_size = max(1, shape[-1])  # an empty tensor has no rows, so any size does
    if row_size > max_column_size:
        pieces = _ceil_div(row_size, max_column_size)
        return row_size, CODES_PER_WORD * _ceil_div(_ceil_div(row_size, pieces), CODES_PER_WORD)
    row_size *= max(1, _ceil_div(min_column_size, row_size))
    return row_size, row_size


class Layout:
    """Columns and shards of a list of gradients, and the size of a shard's message.

    A message is a run of 32-bit words: `[flag | levels | codes | plain values]`. It has the same
    length for every shard. The message of the second stage ends before the plain values.

    Args:
        cuts: list with one entry per gradient: `(size, row_size, column_size)` in values, with
            `column_size=0` for a plain tensor.
        world_size: number of workers, which is also the number of shards.

    Attributes:
        size: number of values in columns; the size of the worker's residual.
        plain_size: number of values that travel in full precision.
        num_columns: number of columns.
        shard_starts: `[world_size + 1]`; shard k has the columns from `shard_starts[k]` up to, but
            not including, `shard_starts[k + 1]`. Shards are balanced to within one column.
        shard_sizes: `[world_size]`; number of values in each shard.
        worker_message_bytes, shard_message_bytes: size of one message of the first and the second
            stage.

    Example:
        >>> layout = Layout([(4096, 64, 64), (64, 0, 0)], world_size=2)
        >>> layout.num_columns, layout.shard_starts, layout.shard_sizes
        (64, (0, 32, 64), (2048, 2048))
    """

    sizes: tuple[int, ...]
    row_sizes: tuple[int, ...]
    column_sizes: tuple[int, ...]

    def __init__(self, cuts: Sequence[tuple[int, int, int]], world_size: int) -> None:
        self.sizes, self.row_sizes, self.column_sizes = (
            (tuple(map(int, field)) for field in zip(*cuts, strict=True)) if cuts else ((), (), ())
        )
        self.world_size = world_size
        counts = self._column_value_counts()
        words = _ceil_div(counts, CODES_PER_WORD)
        self.num_columns = len(counts)
        self.size = int(counts.sum())
        self.code_words = int(words.sum())
        self.plain_size = sum(self.sizes) - self.size
        # A shard ends at the column boundary nearest to its equal share of the code words.
        ends = np.concatenate([[0], np.cumsum(words)])
        shares = ends[-1] * np.arange(1, world_size) / world_size
        right = np.searchsorted(ends, shares)
        left = np.maximum(right - 1, 0)
        nearest = np.where(shares - ends[left] < ends[right] - shares, left, right)
        self.shard_starts = (0, *map(int, nearest), self.num_columns)
        bounds = np.asarray(self.shard_starts)
        values = np.concatenate([[0], np.cumsum(counts)])
        self.shard_sizes = tuple(map(int, np.diff(values[bounds])))
        self._shard_levels = LEVEL_WORDS_PER_COLUMN * int(np.diff(bounds).max())
        self._shard_words = int(np.diff(ends[bounds]).max())

    def _column_value_counts(self) -> npt.NDArray[np.int64]:
        """Returns the number of values of each column, in order: int64 `[num_columns]`."""
        counts = [np.zeros(0, np.int64)]
        for size, row_size, column_size in zip(
            self.sizes, self.row_sizes, self.column_sizes, strict=True
        ):
            if column_size == 0:
                continue
            starts = np.arange(0, row_size, column_size)
            row = np.minimum(column_size, row_size - starts)
            rest = size % row_size
            starts = np.arange(0, rest, column_size)
            counts += [np.tile(row, size // row_size), np.minimum(column_size, rest - starts)]
        return np.concatenate(counts).astype(np.int64)

    def shard_runs(self, rank: int) -> list[tuple[int, int]]:
        """Returns the runs of values that make up a shard, in order, one run per tensor.

        Returns:
            List of `(tensor, size)`: the index of the tensor in the list of gradients, and the
            number of its values in the shard.

        >>> layout = Layout([(4096, 64, 64), (64, 0, 0), (4096, 64, 64)], world_size=3)
        >>> layout.shard_runs(1)
        [(0, 1344), (2, 1344)]
        """
        begin = sum(self.shard_sizes[:rank])
        end = begin + self.shard_sizes[rank]
        runs, tensor_end = [], 0
        for tensor, (size, column_size) in enumerate(
            zip(self.sizes, self.column_sizes, strict=True)
        ):
            if column_size == 0:
                continue
            tensor_begin, tensor_end = tensor_end, tensor_end + size
            count = min(end, tensor_end) - max(begin, tensor_begin)
            if count > 0:
                runs.append((tensor, count))
        return runs

    @property
    def plain_runs(self) -> list[tuple[int, int]]:
        """Runs of the values that travel in full precision, in the form of `shard_runs`."""
        pairs = zip(self.sizes, self.column_sizes, strict=True)
        return [(i, size) for i, (size, column) in enumerate(pairs) if size and not column]

    @property
    def shard_message_bytes(self) -> int:
        return WORD_BYTES * (FLAG_WORDS + self._shard_levels + self._shard_words)

    @property
    def worker_message_bytes(self) -> int:
        return self.shard_message_bytes + WORD_BYTES * self.plain_size

    def attributes(self) -> dict[str, tuple[int, ...]]:
        """Returns the layout as attributes of the compiled ops."""
        return {
            "sizes": self.sizes,
            "row_sizes": self.row_sizes,
            "column_sizes": self.column_sizes,
            "shard_starts": self.shard_starts,
        }


def plain_cut(shape: Sequence[int]) -> tuple[int, int, int]:
    """Returns the entry of `Layout`'s `cuts` for a tensor that travels in full precision."""
    return math.prod(shape), 0, 0
