"""Horovod's `Compression`, with `onebit`: for this package and for Horovod's own functions."""

import horovod.tensorflow as hvd
import tensorflow as tf

from tf_onebit.collectives import horovod as driver
from tf_onebit.configurable import class_path, import_class
from tf_onebit.exchanges import Exchange, GradientSpec, OneBit, Threshold
from tf_onebit.exchanges.full_precision import FullPrecision
from tf_onebit.exchanges.schedule import is_exchange
from tf_onebit.framework_internals.tf_functions import CallNumbers, traced_function
from tf_onebit.training.building import build, resolve_exchange

_MIN_SIZE = 1024


class ExchangeCompressor:
    """Makes Horovod's own `allreduce` and `DistributedGradientTape` exchange tensors our way.

    Horovod sums what `compress` returns, and neither packed bits nor indices can be summed. So
    `compress` does the whole exchange and hands on the number 1; what comes back as its sum or mean
    tells `decompress` by what factor Horovod was asked to scale.

    Horovod tells a compressor neither the name of a tensor nor its variable. Residuals therefore
    belong to the position of the call in the `tf.function` being traced, by the function's name
    and the tensor's shape. Two models of the same shapes, each in a function of the same name,
    would share residuals, and so would two models trained with Horovod's tape in eager loops,
    because its function is one for all. Give the functions different names, or use this package's
    `DistributedOptimizer` and `DistributedGradientTape`, which know the variables.

    Every tensor is an exchange of its own. If a value of one is not finite, the step ends in an
    error on all workers, but weights whose gradients were there already may have been updated:
    start again from a checkpoint. (`DistributedOptimizer` checks before it updates.)

    Tensors with one axis or fewer than 1024 values are left to Horovod, in full precision.

    Attributes:
        name: under which it is an attribute of `Compression`.
        template: the exchange.
    """

    name: str
    template: Exchange
    _exchanges = {}
    _numbers = CallNumbers()

    @classmethod
    def compress(cls, tensor):
        """Exchanges `tensor`; returns a number for Horovod to sum, and the sum over workers.

        Raises:
            RuntimeError: outside of a `tf.function`.
            ValueError: on all workers, if they compress other tensors in this place.
        """
        shape = tuple(tensor.shape)
        spec = GradientSpec(f"a tensor {shape}", shape, tensor.dtype.name)
        plain = len(spec.shape) < 2 or spec.size < _MIN_SIZE
        if plain or not tensor.dtype.is_floating or hvd.size() == 1:
            return tensor, None
        if tf.executing_eagerly():
            raise RuntimeError(
                f"Compression.{cls.name} works inside a tf.function only: in eager mode nothing "
                "tells which tensor a residual belongs to. Decorate the training step with "
                "@tf.function, or use tf_onebit.horovod.DistributedGradientTape."
            )
        exchange = cls._exchange_of_next_call(spec)
        (total,), _ = driver.run(exchange.run([tensor]))
        return tf.ones([]), total

    @staticmethod
    def decompress(tensor, context):
        """The exchanged gradient, scaled as Horovod was asked to scale the sum."""
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


def has_compressed():
    """Tells whether Horovod's own functions have exchanged tensors our way in this process."""
    return bool(ExchangeCompressor._exchanges)


class OneBitCompressor(ExchangeCompressor):
    """One bit per value, with error feedback."""

    name = "onebit"
    template = OneBit()


class ThresholdCompressor(ExchangeCompressor):
    """One in a thousand values, with error feedback."""

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
    """An all-reduce of what one of Horovod's compressors makes of each gradient.

    Args:
        compressor: class with `compress(tensor) -> (tensor, context)` and
            `decompress(tensor, context)`, as in Horovod; or its path, "module:class".
    """

    # What a compressor remembers of a gradient may not outlive the step.
    can_be_delayed = False

    def __init__(self, compressor, bucket_bytes=32 * 2**20):
        super().__init__(bucket_bytes)
        if isinstance(compressor, str):
            compressor = import_class(compressor)
        self.compress, self.decompress = compressor.compress, compressor.decompress
        self._path = class_path(compressor)

    def get_config(self):
        return {"compressor": self._path, **super().get_config()}


def requested_exchange(exchange, compression):
    """The exchange that a user asked for by either argument; full precision by neither."""
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
