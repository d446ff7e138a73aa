"""Threshold: sends only values that exceed a threshold, with error feedback."""

import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_onebit import ops
from tf_onebit.collectives.requests import AllGather, Exchanging
from tf_onebit.exchanges.adaptive_threshold import Tau
from tf_onebit.exchanges.adding import Adding
from tf_onebit.exchanges.arguments import Moments, require_one_of, required_moments
from tf_onebit.exchanges.base import WIRE_DTYPE, integers
from tf_onebit.exchanges.gradients import Gradient, GradientSpec
from tf_onebit.exchanges.largest_values import LargestValues
from tf_onebit.exchanges.message_capacity import Capacity
from tf_onebit.exchanges.residuals import runs_of
from tf_onebit.exchanges.state import State, require_same_kind
from tf_onebit.ops import threshold as words

WORD_BYTES = 4
CODINGS = ("packed", "golomb_rice")
SELECTIONS = ("tau", "top_k")
DEFAULT_DENSITY = 0.001

# Assumed for a given tau, until the actual density is known.
_EXPECTED_DENSITY = 0.01


class Threshold(Adding):
    """Threshold-sparse updates (Strom 2015).

    Each worker adds its gradients to a residual. For each value that exceeds the threshold tau,
    it sends the index and the sign, which stand for +-tau, and subtracts what it sends::

        corrected_t = g_t + r_(t-1)
        sent_t      = tau * sign(corrected_t) where |corrected_t| > tau, else 0
        r_t         = corrected_t - sent_t

    Each worker adds up what all workers have sent. A value takes 32 bits, or 9 to 15 with
    `coding="golomb_rice"`. Up to a third of a message may be unused. Only excluded gradients and
    `tf.IndexedSlices` travel in full precision.

    A useful tau grows with the gradients, and so with the loss, and is hard to guess.
    `target_density` makes the exchange find one. It then follows the density, averaged over the
    workers and the last few exchanges (`exchanges/adaptive_threshold.py` has the rule). Tau is
    the same on all workers, and each bucket has its own.

    Where little is exchanged, as at the end of blocks, tau is not found in time. With
    `selection="top_k"` each message has two rounds. In each, the worker sends the largest values
    of what is left, as their mean magnitude. Together they are `target_density` of all values.
    `exchanges/largest_values.py` has the rule.

    What has waited for long may no longer be true. With a `residual_decay` a part of it is
    forgotten in each exchange (Sarfi et al. 2025, "Communication Efficient LLM Pre-training with
    SparseLoCo", which takes 0.95)::

        corrected_t = g_t + residual_decay * r_(t-1)

    With `moments="local"` and momentum, the velocity of a value that has been sent begins again at
    zero: momentum factor masking (Lin et al. 2018, "Deep Gradient Compression", section 3.2)::

        velocity_t <- 0 where sent_t is not 0, else velocity_t

    A value waits for many steps, and its velocity comes from gradients of that time. Otherwise it
    would go on to move the weight for about 1 / (1 - momentum) steps. Velocities of float16 and
    bfloat16 variables stay as they are.

    Messages have room for a few more values than exceed tau on average. This capacity changes
    rarely: every 32 exchanges, and when more than twice as many values are to be sent. Values
    that do not fit wait in the residual.

    Args:
        tau: the threshold, and the magnitude that is sent for each value above it. In units of
            the gradient of a worker's mean loss.
        target_density: instead of `tau`: the fraction of all values that a worker should send.
            Default: 0.001.
        coding: "packed": one word per value. "golomb_rice": the gaps between indices take only
            as many bits as they need, at the cost of some time to code them.
        selection: "tau": values above tau, as above. "top_k": the largest values of each message.
            It needs a `target_density`.
        residual_decay: factor on the residual before each exchange, above 0 and at most 1. With
            less than 1, residuals that would be sent later are partly lost.
        bucket_bytes, exclude: see `Exchange`.
        moments: "local": each worker averages its own gradients in its optimizer, and sends the
            update of its weights. "after": optimizers average exchanged gradients. See `Exchange`
            for equations and limits. By default "local" where that is possible, and "after" with a
            fixed `tau`. With "local", tau is in units of updates, which contain the learning rate.
            `target_density` follows a schedule of it, and a fixed `tau` does not.

    Raises:
        ValueError: if tau is not positive and finite, the density is not between 0 and 1, both
            are given. If the coding or the selection is unknown, or a fixed tau is to select the
            largest values. If the decay is not above 0 and at most 1.

    Example:
        >>> exchange = Threshold(target_density=0.01, coding="golomb_rice")
        >>> exchange.clone().get_config()["target_density"]
        0.01
    """

    num_gathered = 1
    # Number of values that one part of a message covers.
    part_size = words.MAX_PART_SIZE

    def __init__(
        self,
        tau: float | None = None,
        target_density: float | None = None,
        coding: Literal["packed", "golomb_rice"] = "packed",
        bucket_bytes: int = 64 * 2**20,
        exclude: Iterable[str] = (),
        moments: Moments | None = None,
        selection: Literal["tau", "top_k"] = "tau",
        residual_decay: float = 1.0,
    ) -> None:
        super().__init__(bucket_bytes, exclude)
        if tau is not None and target_density is not None:
            raise ValueError(
                "tau and target_density are two ways to say how much is sent. "
                f"Received: tau={tau}, target_density={target_density}. Pass one of them."
            )
        if tau is None and target_density is None:
            target_density = DEFAULT_DENSITY
        if tau is not None and not (_is_number(tau) and 0 < np.float32(tau) < math.inf):
            raise ValueError(
                f"tau must be a positive, finite float32. Received: tau={tau!r}. "
                "Use target_density=0.001 to have it found."
            )
        if target_density is not None and not (
            _is_number(target_density) and 0 < target_density < 1
        ):
            raise ValueError(
                "target_density must be a fraction of all values, between 0 and 1. Received: "
                f"target_density={target_density!r}. Use 0.001 to send one value in 1000."
            )
        require_one_of("coding", coding, CODINGS)
        require_one_of("selection", selection, SELECTIONS)
        if selection == "top_k" and tau is not None:
            raise ValueError(
                'selection="top_k" finds a threshold for each message. '
                f"Received: tau={tau}. Use target_density=0.01 to send the largest hundredth."
            )
        if not (_is_number(residual_decay) and 0 < residual_decay <= 1):
            raise ValueError(
                "residual_decay must be above 0 and at most 1. Received: "
                f"residual_decay={residual_decay!r}. Use 1 to keep all that is not sent."
            )
        self._given_moments = required_moments(moments)
        self.moments = "after" if moments is None and tau is not None else moments
        self.tau = None if tau is None else float(tau)
        self.target_density = None if target_density is None else float(target_density)
        self.coding = coding
        self.selection = selection
        self.residual_decay = float(residual_decay)

    def get_config(self) -> dict[str, Any]:
        return {
            "tau": self.tau,
            "target_density": self.target_density,
            "coding": self.coding,
            "bucket_bytes": self.bucket_bytes,
            "exclude": list(self.exclude),
            "moments": self._given_moments,
            "selection": self.selection,
            "residual_decay": self.residual_decay,
        }

    def create_state(self) -> None:
        self._sizes = [spec.size for spec in self.specs]
        self._size = sum(self._sizes)
        self.residual = tf.Variable(tf.zeros([self._size]), trainable=False)
        most = min(self._size, self.part_size)
        self._selection: Tau | LargestValues
        if self.selection == "top_k":
            self._selection = LargestValues(self.expected_density, self._sizes, self.unit)
            self._capacity = Capacity(most, self._selection.room, changes=False)
        else:
            self._selection = Tau(self.tau, self.target_density, self.unit)
            self._capacity = Capacity(most, self.expected_density * self._size)
        self._density = tf.Variable(0.0, trainable=False)
        self._sum_of_squares = tf.Variable(0.0, trainable=False)
        self._message_words = tf.Variable(0, dtype=tf.int64, trainable=False)

    @property
    def measured_with(self) -> Mapping[str, Any]:
        # How much a fixed tau sends depends on the magnitude of gradients.
        return {"tau": None, "target_density": self.expected_density}

    @property
    def expected_density(self) -> float:
        """Fraction of all values that is expected to be sent, before more is known."""
        return self.target_density or _EXPECTED_DENSITY

    @property
    def _parts(self) -> dict[str, Any]:
        return {"sizes": self._sizes, "part_size": self.part_size}

    def message(
        self,
        gradients: Sequence[tf.Tensor],
        capacity: tf.Tensor,
        rate: tf.Tensor | float = 1.0,
        pad: bool = True,
    ) -> tf.Tensor:
        """Encodes gradients with error feedback.

        Args:
            gradients: list of tensors, as in `specs`.
            capacity: int64 scalar, the maximum number of values in a message.
            rate: float32 scalar: factor on what values in the message stand for.
            pad: whether the message gets the maximum length of one with `capacity` values.

        Returns:
            Words of `WIRE_DTYPE`, `[rounds, parts, words]`, in the exchange's coding.
        """
        rounds, decay = [], self.residual_decay
        for number in range(self._selection.rounds):
            if number > 0:  # all that the first round left is in the residual
                gradients, decay = list(map(tf.zeros_like, gradients)), 1.0
            threshold, magnitude = self._selection.choose(gradients, self.residual, decay)
            rounds.append(
                ops.threshold_encode(
                    gradients,
                    self.residual,
                    threshold,
                    rate * magnitude,
                    capacity,
                    magnitude=magnitude,
                    decay=decay,
                    pad=pad,
                    dtype=WIRE_DTYPE,
                    **self._parts,
                )
            )
        encoded = tf.stack(rounds)
        if self.velocities is not None:
            self.velocities.clear_where_sent(encoded, self.part_size)
        if self.coding == "golomb_rice":
            encoded = ops.golomb_rice_encode(encoded, pad=pad, **self._parts)
        return encoded

    def packed(self, messages: tf.Tensor) -> tf.Tensor:
        """Returns messages of any workers, words `[number, parts, words]`, as packed ones."""
        if self.coding == "golomb_rice":
            return ops.golomb_rice_decode(messages, **self._parts)
        return messages

    def follow(self, messages: tf.Tensor, mine: int) -> tf.Tensor:
        """Updates tau by the density of messages.

        Args:
            messages: `[number * rounds, parts, words]` of `WIRE_DTYPE`.
            mine: index of this worker's message.

        Returns:
            int64 scalar, the largest number of values that a round should have held.
        """
        rounds = self._selection.rounds
        self._message_words.assign(rounds * tf.size(messages[0], tf.int64))
        headers = messages[:, :, : words.HEADER_WORDS]
        exceeding = _numbers(headers[:, :, words.EXCEEDING])
        counted = _numbers(headers[:, :, self._selection.counted])
        squares = headers[rounds - 1 :: rounds, :, words.SQUARES]  # of what is left in the end
        values = tf.cast(tf.shape(squares)[0], tf.float64) * max(1, self._size)
        density = tf.cast(tf.cast(tf.reduce_sum(counted), tf.float64) / values, tf.float32)
        mean_square = tf.reduce_sum(squares) / tf.cast(values, tf.float32)
        self._selection.follow(density, mean_square)
        self._density.assign(density)
        self._sum_of_squares.assign(tf.reduce_sum(squares[mine]))
        return tf.reduce_max(exceeding)

    def encode(self, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        step = tf.convert_to_tensor(self._capacity.step)
        return [self.message(gradients, self._capacity.at(step)), step]

    def gather(self, message: Sequence[tf.Tensor]) -> Exchanging[tuple[list[tf.Tensor], tf.Tensor]]:
        encoded, step = message
        gathered = yield AllGather(encoded, f"{self.scope}/all_gather", variant=step)
        flags = integers(gathered[:: self._selection.rounds, 0, words.FLAG])

        def follow() -> bool:
            self._capacity.follow(self.follow(gathered, self.rank))
            return True

        # All workers change this common state, or none. So an error of this step must wait for it.
        followed = tf.cond(tf.reduce_all(tf.equal(flags, 0)), follow, lambda: False)
        with tf.control_dependencies([followed]):
            return [self.packed(gathered)], tf.identity(flags)

    def decoded(
        self, gathered: Sequence[tf.Tensor], like: Sequence[Gradient], scale: float
    ) -> list[tf.Tensor]:
        (messages,) = gathered
        return ops.threshold_decode_sum(messages, like, scale=scale, **self._parts)

    def add_to(
        self,
        variables: Sequence[tf.Variable],
        gathered: Sequence[tf.Tensor],
        scale: float,
        factor: tf.Tensor | float,
    ) -> None:
        (messages,) = gathered
        ops.threshold_decode_add(variables, messages, factor, scale=scale, **self._parts)

    def state(self) -> State:
        return {
            "residual": self.residual.numpy(),
            self._selection.name_of_state: self._selection.state(),
            "capacity": self._capacity.state(),
        }

    def load_state(self, states: Sequence[State], ratio: float = 1.0) -> None:
        require_same_kind(self, self, states)
        if len(states) == self.world_size:
            unsent: npt.NDArray[Any] | np.float64 = states[self.rank]["residual"]
        else:
            residuals = [state["residual"] for state in states]
            unsent = np.sum(residuals, axis=0, dtype=np.float64) / self.world_size
        self.residual.assign(ratio * unsent)
        mine = states[self.rank if len(states) == self.world_size else 0]
        self._selection.load(mine[self._selection.name_of_state])
        self._capacity.load(mine["capacity"])

    def expected_bytes(self, specs: Sequence[GradientSpec], world_size: int) -> dict[str, float]:
        values = self.expected_density * sum(spec.size for spec in specs)
        return {"all_gather": (world_size - 1) * WORD_BYTES * values}

    def bytes_sent(self) -> int:
        return (self.world_size - 1) * WORD_BYTES * int(self._message_words)

    def residual_sum_of_squares(self) -> float:
        return float(self._sum_of_squares)

    def residuals(self) -> Iterator[tuple[str, tf.Tensor]]:
        names = [spec.name for spec in self.specs]
        yield from runs_of(self.residual, list(zip(names, self._sizes, strict=True)))

    def metrics(self) -> dict[str, float]:
        return {"density": float(self._density), "tau": self._selection.in_units()}


def _numbers(words: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.bitcast(words, tf.uint32), tf.int64)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real)
