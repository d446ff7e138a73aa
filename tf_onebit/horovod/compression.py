"""`Compression` for this package and for Horovod's own functions.

It has Horovod's members, and the exchanges of this package besides.
"""

from typing import Any, Protocol

import horovod.tensorflow as hvd
import tensorflow as tf

from tf_onebit._configurable import class_path, import_class
from tf_onebit._framework_internals.tf_functions import CallNumbers, traced_function
from tf_onebit._training.building import RequestedExchange, build, resolve_exchange
from tf_onebit.collectives import horovod as driver
from tf_onebit.exchanges import Bucketed, Exchange, GradientSpec, OneBit, Threshold
from tf_onebit.exchanges.full_precision import FullPrecision
from tf_onebit.exchanges.schedule import AnyExchange, is_exchange

_MIN_SIZE = 1024


class Compressor(Protocol):
    """Class that compresses the tensors which Horovod sums, as those of `hvd.Compression`."""

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns what Horovod sums, and a context for `decompress`."""

    def decompress(self, tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """Returns the sum, from the sum of what `compress` returned."""


class ExchangeCompressor:
    """Compressor by which Horovod's own `allreduce` and `DistributedGradientTape` use an exchange.

    Horovod sums the results of `compress`, but packed bits and indices cannot be summed. So
    `compress` does the whole exchange and gives Horovod the number 1. From Horovod's sum or mean
    of that number `decompress` knows how to scale the exchanged sum.

    Horovod tells a compressor neither the name of a tensor nor its variable. So the function's
    name, the tensor's shape and the position of the call in the `tf.function` identify a residual.
    Two models of the same shapes share residuals if their functions have the same name. Two models
    in eager loops with Horovod's tape share them, too, because the tape has one function for all.
    Give the functions different names, or use this package's `DistributedOptimizer` and
    `DistributedGradientTape`, which know the variables.

    Every tensor has an exchange of its own. If one of its values is not finite, the step ends in an
    error on all workers. Weights whose gradients were ready before may then have been updated:
    start again from a checkpoint. (`DistributedOptimizer` checks before it updates.)

    Horovod reduces tensors with one axis or fewer than 1024 values in full precision.

    Attributes:
        name: its name as an attribute of `Compression`.
        template: the exchange.
    """

    name: str
    template: Exchange
    _exchanges: dict[Any, Bucketed] = {}
    _numbers = CallNumbers()

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Exchanges `tensor`; returns a number for Horovod to sum, and the sum over workers.

        Raises:
            RuntimeError: outside of a `tf.function`.
            ValueError: on all workers, if they compress different tensors at this position.
        """
        shape = tuple(tensor.shape)
        spec = GradientSpec(f"a tensor {shape}", shape, tensor.dtype.name)
        plain = len(spec.shape) < 2 or spec.size < _MIN_SIZE
        if plain or not tensor.dtype.is_floating or hvd.size() == 1:
            return tensor, None
        if tf.executing_eagerly():
            raise RuntimeError(
                f"Compression.{cls.name} works only inside a tf.function. In eager mode it cannot "
                "tell which residual belongs to a tensor. Decorate the training step with "
                "@tf.function, or use tf_onebit.horovod.DistributedGradientTape."
            )
        exchange = cls._exchange_of_next_call(spec)
        (total,), _ = driver.run(exchange.run([tensor]))
        return tf.ones([]), total

    @staticmethod
    def decompress(tensor: tf.Tensor, context: tf.Tensor | None) -> tf.Tensor:
        """Returns the exchanged gradient, scaled as Horovod was asked to scale the sum."""
        if context is None:
            return tensor
        return context * tf.cast(tensor / hvd.size(), context.dtype)

    @classmethod
    def _exchange_of_next_call(cls, spec):
        function = getattr(traced_function(), "name", "")
        key = cls, function, spec, cls._numbers.next((cls, spec))
        if key not in cls._exchanges:
            scope = f"tf_onebit_compression_{len(cls._exchanges)}"
            (cls._exchanges[key],) = build(cls.template, [spec], scope, driver.HorovodEngine())
        return cls._exchanges[key]


def has_compressed() -> bool:
    """Tells whether Horovod's own functions have used an exchange in this process."""
    return bool(ExchangeCompressor._exchanges)


class OneBitCompressor(ExchangeCompressor):
    """Compressor to one bit per value, with error feedback."""

    name = "onebit"
    template = OneBit()


class ThresholdCompressor(ExchangeCompressor):
    """Compressor to one in a thousand values, with error feedback."""

    name = "threshold"
    template = Threshold()


class Compression:
    """The compression algorithms that `compression=` accepts.

    Attributes:
        none: full precision.
        fp16: float16 on the wire.
        onebit: one bit per value, with error feedback: `OneBit()`.
        threshold: one in a thousand values, with error feedback: `Threshold()`.

    Example:
        >>> import tf_onebit.horovod as hvd
        >>> hvd.init()
        >>> @tf.function
        ... def mean(tensor):
        ...     return hvd.allreduce(tensor, compression=hvd.Compression.onebit)
        >>> mean(tf.ones([64, 32])).shape
        TensorShape([64, 32])
    """

    none = hvd.Compression.none
    fp16 = hvd.Compression.fp16
    onebit = OneBitCompressor
    threshold = ThresholdCompressor


class CompressedAllReduce(FullPrecision):
    """Exchange that all-reduces gradients compressed by one of Horovod's compressors.

    Args:
        compressor: class with `compress(tensor) -> (tensor, context)` and
            `decompress(tensor, context)`, as in Horovod; or its path, "module:class".
    """

    compresses = True
    # A compressor's context may be valid only within its step.
    can_be_delayed = False

    def __init__(self, compressor, bucket_bytes=32 * 2**20):
        super().__init__(bucket_bytes)
        if isinstance(compressor, str):
            compressor = import_class(compressor)
        self.compress, self.decompress = compressor.compress, compressor.decompress
        self._path = class_path(compressor)

    def get_config(self):
        return {"compressor": self._path, **super().get_config()}


def requested_exchange(exchange: RequestedExchange, compression: Compressor | None) -> AnyExchange:
    """Returns the exchange that either argument asks for: without both, full precision."""
    if isinstance(exchange, str) and exchange != "auto":
        raise ValueError(
            'exchange must be a tf_onebit.Exchange, or "auto". '
            f"Received: exchange={exchange!r}. If that is Horovod's second argument, write name= "
            "for an optimizer, and device_dense= for a tape."
        )
    if compression is None:
        return resolve_exchange(exchange)
    if exchange is not None:
        raise ValueError(
            "exchange and compression are two ways to say the same thing. "
            f"Received: exchange={exchange!r}, compression={compression!r}. Pass one of them."
        )
    if isinstance(compression, type) and issubclass(compression, ExchangeCompressor):
        return compression.template
    if is_exchange(compression) or not hasattr(compression, "compress"):
        raise ValueError(
            "compression must be a compressor, for example tf_onebit.horovod.Compression.onebit. "
            f"Received: compression={compression!r}. Pass an exchange as exchange=, and Horovod's "
            "arguments by their names."
        )
    return CompressedAllReduce(compression)
