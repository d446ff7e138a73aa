"""Adding: exchanges that add what they receive to variables while they decode it."""

from collections.abc import Sequence

import tensorflow as tf

from tf_onebit.collectives.requests import Exchanging
from tf_onebit.exchanges.base import Exchange
from tf_onebit.exchanges.gradients import Gradient, with_narrow_overflow


class Adding(Exchange):
    """An exchange that can add exchanged values to variables without storing them in between.

    Decoding writes the exchanged gradients, and an update reads them again. Both take about as long
    as a pass over the weights. If an update only adds a multiple of the gradients, `add_to` makes
    it in one pass, with the same bits. `deliver` consists of `gather` and `decoded`.

    A subclass defines `gather`, `decoded` and `add_to` in place of `deliver`.

    Attributes:
        num_gathered: number of tensors that `gather` returns, of `WIRE_DTYPE`. The first of them
            is never empty.
    """

    carries_flags = True
    num_gathered: int

    def gather(self, message: Sequence[tf.Tensor]) -> Exchanging[tuple[list[tf.Tensor], tf.Tensor]]:
        """Generator: returns what all workers have sent, encoded, and their flags.

        Args:
            message: list of tensors that `aggregate` returned.
        """
        raise NotImplementedError(f"{type(self).__name__} must define gather.")

    def decoded(
        self, gathered: Sequence[tf.Tensor], like: Sequence[Gradient], scale: float
    ) -> list[tf.Tensor]:
        """Returns exchanged gradients.

        Args:
            gathered: list of tensors that `gather` returned.
            like, scale: see `deliver`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define decoded.")

    def add_to(
        self,
        variables: Sequence[tf.Variable],
        gathered: Sequence[tf.Tensor],
        scale: float,
        factor: tf.Tensor | float,
    ) -> None:
        """Adds `factor` times the exchanged gradients to variables.

        Args:
            variables: list of float32 variables, one for each gradient.
            gathered, scale: see `decoded`.
            factor: float32 scalar.
        """
        raise NotImplementedError(f"{type(self).__name__} must define add_to.")

    def deliver(
        self, message: Sequence[tf.Tensor], like: Sequence[Gradient], scale: float
    ) -> Exchanging[tuple[list[Gradient], tf.Tensor]]:
        gathered, flags = yield from self.gather(message)
        exchanged = self.decoded(gathered, like, scale)
        return exchanged, with_narrow_overflow(flags, exchanged)
