"""The interface for `model.fit` under `tf.distribute`: strategies with an exchange.

Use them in place of the strategies of `tf.distribute`:

    strategy = tf_onebit.distribute.MultiWorkerMirroredStrategy(tf_onebit.OneBit())
    with strategy.scope():
        model = ...
"""

from tf_onebit.distribute.strategies import MirroredStrategy, MultiWorkerMirroredStrategy

__all__ = ["MirroredStrategy", "MultiWorkerMirroredStrategy"]
