"""Arguments that exchanges have in common, and checks of them."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeAlias

from tf_onebit._layout import CODES_PER_WORD
from tf_onebit.exchanges.gradients import GradientSpec

Moments: TypeAlias = Literal["local", "after"]


class Excluding(Protocol):
    """`Exchange` or `Recipe`, which leaves gradients uncompressed by their names."""

    @property
    def exclude(self) -> tuple[str, ...]: ...


def is_excluded(name: str, exchange: Excluding) -> bool:
    """Tells whether `exclude` of an exchange leaves the gradient of this name uncompressed."""
    return any(re.search(pattern, name) for pattern in exchange.exclude)


def require_bucket_bytes(bucket_bytes: int) -> None:
    """Raises ValueError unless the size of buckets is positive."""
    if not bucket_bytes > 0:
        raise ValueError(
            "bucket_bytes must be a positive number of bytes. "
            f"Received: bucket_bytes={bucket_bytes}. "
            "Use a number larger than the model to exchange everything in one bucket."
        )


def require_patterns(exclude: Iterable[str]) -> None:
    """Raises ValueError unless `exclude` is a list of regular expressions."""
    if isinstance(exclude, str):
        raise ValueError(
            "exclude must be a list of regular expressions. "
            f"Received: exclude={exclude!r}. Use exclude=[{exclude!r}]."
        )
    for pattern in exclude:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(
                f"exclude must be a list of regular expressions. Received: {pattern!r} in "
                f"exclude={list(exclude)!r}: {error}."
            ) from error


def require_one_of(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises ValueError unless the argument `name` is one of some strings."""
    # A TensorFlow dtype equals the string of its name.
    if not (isinstance(value, str) and value in choices):
        expected = " or ".join(f'"{choice}"' for choice in choices)
        raise ValueError(f"{name} must be {expected}. Received: {name}={value!r}.")


def require_column_sizes(min_column_size: int, max_column_size: int, min_size: int) -> None:
    """Raises ValueError unless these arguments of `OneBit` fit each other."""
    if max_column_size < CODES_PER_WORD or max_column_size % CODES_PER_WORD:
        raise ValueError(
            f"max_column_size must be a positive multiple of {CODES_PER_WORD}, because codes "
            f"are sent in words. Received: max_column_size={max_column_size}."
        )
    if not 1 <= min_column_size <= max_column_size:
        raise ValueError(
            "min_column_size must be from 1 to max_column_size. Received: "
            f"min_column_size={min_column_size}, max_column_size={max_column_size}."
        )
    if min_size < 0:
        raise ValueError(
            f"min_size must be a number of values, at least 0. Received: min_size={min_size}."
        )


def required_moments(moments: Moments | None) -> Moments | None:
    """Returns the argument `moments` of an exchange, or raises ValueError."""
    if moments not in ("local", "after", None):
        raise ValueError(
            'moments must be "local", for moments of each worker\'s own gradients, "after", for '
            'moments of exchanged gradients, or None, for "local" where it is possible. Received: '
            f"moments={moments!r}."
        )
    return moments


def require_gradients_and_rank(specs: Sequence[GradientSpec], rank: int, world_size: int) -> None:
    """Raises ValueError if there are no gradients, no workers, or `rank` is not among them."""
    if not specs:
        raise ValueError(
            "An exchange needs at least one gradient. Received an empty list. "
            "Does the model have trainable variables that the loss depends on?"
        )
    if not 0 <= rank < world_size:
        raise ValueError(
            "rank must be from 0 to world_size - 1, and world_size at least 1. "
            f"Received: rank={rank}, world_size={world_size}."
        )
