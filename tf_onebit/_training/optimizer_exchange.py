"""OptimizerExchange: the exchanges that an optimizer has built, and what they keep."""

import warnings

import tensorflow as tf

from tf_onebit._training.built_exchanges import BuiltExchanges
from tf_onebit._training.exchange_state import ExchangeState
from tf_onebit._training.training_workers import TrainingWorkers
from tf_onebit._validation import number_of_samples
from tf_onebit.exchanges.schedule import innermost


class OptimizerExchange:
    """Exchanges of the lists of variables that an optimizer updates.

    Args:
        template: the user's exchange.
        engine: `Engine` of all workers of the job.
        mean: whether gradients become their mean over the workers. Otherwise they become the sum.
        settings: list of (what, value) pairs of strings on which workers must also agree.
        moments: what `moments_of` the optimizer returned.

    Attributes:
        template, moments: see the arguments.
        is_asynchronous: whether a worker applies what has arrived, and waits for no others.
        exchanges_updates: whether the optimizer passes its updates, of which the workers make the
            mean.
        changes_gradients: whether an exchange changes this worker's gradients.
        steps_of_delay: number of steps by which gradients are delayed.
        workers: `TrainingWorkers`.
        exchanges: `BuiltExchanges` of all lists of variables that it has been called with.
        carried: `ExchangeState` of these exchanges.
        global_batch_size: what `set_global_batch_size` has set, or None.
    """

    is_asynchronous = False
    exchanges_updates = False
    changes_gradients = False
    steps_of_delay = 0

    def __init__(self, template, engine, mean, settings=(), moments="after"):
        self.template = template
        self.moments = moments
        self._mean = mean
        settings = [("op", "Average" if mean else "Sum"), *settings]
        train_apart = self.is_asynchronous or innermost(template).trains_apart
        self.workers = TrainingWorkers(engine, train_apart, settings)
        self.exchanges = BuiltExchanges(self._build_and_restore)
        self.carried = ExchangeState(self.exchanges, self.workers)
        self.global_batch_size = None
        self._has_advised = False

    @property
    def built(self):
        """Exchanges of one worker of this process, one for each list of variables."""
        return [built.exchanges[0] for built in self.exchanges]

    @property
    def scale(self):
        """Factor on the sum over the workers."""
        if self.exchanges_updates:
            return 1.0 / self.workers.group.world_size
        return 1.0 / self.workers.count if self._mean else 1.0

    def go_on_with(self, moments):
        """Keeps the moments of an earlier run, whose residuals are of the same kind.

        Args:
            moments: value of `moments` in that run.

        Raises:
            ValueError: if this run has begun with others.
        """
        if moments == self.moments:
            return
        if self.exchanges:
            raise ValueError(
                f"What workers have not sent yet belongs to moments={moments!r}. Received: an "
                f"exchange with moments={self.moments!r}, which has run. Pass "
                f"moments={moments!r} to the exchange."
            )
        warnings.warn(
            f"Training goes on with moments={moments!r}, with which it began. Received: an "
            f"exchange with moments={self.moments!r}. To use these, begin from the model's "
            "weights.",
            stacklevel=2,
        )
        self.moments = moments

    def set_global_batch_size(self, samples):
        """Sets the number of samples per step in all exchanges, also in those not built yet.

        Args:
            samples: number of samples that all workers together take per step; the same on all
                workers.

        Raises:
            ValueError: if `samples` is not a positive whole number.
        """
        samples = self.global_batch_size = number_of_samples("global_batch_size", samples)
        self.exchanges.set(
            "batch size", lambda exchange, _: exchange.set_global_batch_size(samples)
        )

    def load_states(self, states, scale):
        """Restores the states of an earlier run: see `ExchangeState.load`.

        Args:
            states: list of lists of dictionaries.
            scale: value of `scale` in that run.
        """
        # The states contain the batch size of the earlier run.
        self.global_batch_size = None
        self.exchanges.set("batch size", None)
        self.carried.load(states, scale / self.scale)

    def metrics(self):
        """Returns the metrics of the last exchange, for the Monitor: dictionary of floats."""
        return {k: v for exchange in self.built for k, v in exchange.metrics().items()}

    def advise(self):
        """Warns once, on worker 0 only, if an exchange has advice for a training that ends."""
        if self._has_advised or 0 not in self.workers.engine.ranks:
            return
        advice = next(filter(None, (exchange.advice() for exchange in self.built)), None)
        if advice is not None:
            self._has_advised = True
            warnings.warn(advice, stacklevel=2)

    def drain(self, occasion, last=False):
        """Waits until no messages are under way. By default none are between steps.

        Args:
            occasion: occasion of the call in a few words; the same on all workers.
            last: whether training ends.
        """

    def rescue_with(self, save):
        """Sets a function that is called before an error that only this worker may meet.

        Args:
            save: function that saves what this worker has learned. It returns the place, or None.
        """

    def _build_and_restore(self, specs, index):
        exchanges = self._build(specs, f"{self.workers.scope}/{index}")
        with tf.init_scope():
            self.carried.restore(index, exchanges)
        return exchanges

    def _build(self, specs, scope):
        """Returns the exchanges of gradients: list of `Bucketed`, by worker of this process."""
        raise NotImplementedError(f"{type(self).__name__} must define _build.")
