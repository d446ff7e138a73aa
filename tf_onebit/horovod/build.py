"""The exchange of a list of gradients between Horovod's workers."""

import horovod.tensorflow as hvd
import tensorflow as tf

from tf_onebit.collectives import horovod as driver
from tf_onebit.exchanges import Bucketed


def build(template, specs, scope):
    """Builds a clone of `template` on all workers, once these are known to agree.

    Args:
        template: the user's exchange.
        specs: list of `GradientSpec`.
        scope: prefix of the collectives' names.

    Raises:
        ValueError: on all workers, if they are about to build different exchanges.
    """
    exchange = Bucketed(template)
    with tf.init_scope():
        # The comparison comes first: workers with different models may not even get to build.
        driver.run(exchange.handshake(specs, hvd.size(), scope))
        exchange.build(specs, hvd.rank(), hvd.size(), scope)
    return exchange
