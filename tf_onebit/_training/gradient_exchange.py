"""GradientExchange: the object to which an optimizer passes its gradients."""

import collections
import functools
import itertools
import warnings
from collections.abc import Iterator

import tensorflow as tf

from tf_onebit._framework_internals.tf_variables import copies_by_device
from tf_onebit._training.auto import decide
from tf_onebit._training.building import build, with_moments
from tf_onebit._training.built_exchanges import BuiltExchanges
from tf_onebit._training.exchange_state import ExchangeState
from tf_onebit._training.gathered import Gathered
from tf_onebit._training.recorder import stages_of
from tf_onebit._validation import number_of_samples
from tf_onebit.exchanges import Auto, GradientSpec
from tf_onebit.exchanges.gradients import all_finite, not_finite_flag, times
from tf_onebit.exchanges.handshake import describe, handshake
from tf_onebit.exchanges.schedule import delay_of, innermost
from tf_onebit.exchanges.state import has_unsent

# Numbers the exchanges of a process in the order of first use. All workers take part in each, so
# their numbers agree, also if one of them creates more objects (to log, test or save). Each group
# has a counter of its own, because the other workers take no part.
_numbers: dict[tuple[int, ...], Iterator[int]] = collections.defaultdict(itertools.count)


def has_exchanged():
    """Tells whether this process has exchanged gradients with all others of its job."""
    return () in _numbers


class GradientExchange:
    """Exchange of lists of gradients between the workers of a job.

    Args:
        template: the user's exchange.
        engine: `Engine`.
        mean: whether gradients become their mean over the workers. Otherwise they become the sum.
        settings: list of (what, value) pairs of strings on which workers must also agree.
        unit: see `Exchange.build`.
        moments: what `moments_of` the optimizer returned.

    Attributes:
        moments: "local" if each worker keeps moments of its own gradients, or "after".
        engine: `Engine` of all workers of the job.
        group: `Engine` of the workers that exchange gradients with each other. Default: all.
        model_group: `Group` of workers that hold the model together with this one, or None.
        exchanges: `BuiltExchanges` of all lists of variables that it has been called with.
        carried: `ExchangeState` of these exchanges.
        global_batch_size: what `set_global_batch_size` has set, or None.
        delays: whether delay is on, if there is any: see `set_delay`.
    """

    # Whether a worker applies the gradients that have arrived, and waits for no others.
    is_asynchronous = False

    def __init__(self, template, engine, mean, settings=(), unit=1.0, moments="after"):
        self.template = template
        self.moments = moments
        self.engine = self.group = engine
        self.model_group = None
        if not self.is_in_step:
            engine.whereabouts.are_in_step = False
        self._mean = mean
        self._unit = unit
        self._settings = [("op", "Average" if mean else "Sum"), *settings]
        self.exchanges = BuiltExchanges(self._build_and_restore)
        self.carried = ExchangeState(self.exchanges, self)
        self.global_batch_size = None
        self.delays = True
        self._recorder = None
        self._has_advised = False

    @property
    def built(self):
        """Exchanges of one worker of this process, one for each list of variables."""
        return [built.exchanges[0] for built in self.exchanges]

    @property
    def exchanges_updates(self):
        """Whether the optimizer passes its updates, of which the workers make the mean."""
        return self.moments == "local" and not self._is_alone

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

    def exchange_of_alike(self, gradients, variables):
        """Returns what a call would return if all workers had the gradients of this one.

        Args:
            gradients, variables: as in a call.
        """
        factor = 1 if self._mean else self.group.world_size
        return [times(mine, factor) for mine in gradients]

    @property
    def holders(self):
        """`Engine` of the workers that hold the same variables as this one."""
        return self.engine if self.model_group is None else self.group

    @property
    def scale(self):
        """Factor on the sum over the workers."""
        return 1.0 / self.group.world_size if self._mean or self.exchanges_updates else 1.0

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

    def record_times(self, recorder):
        """Records times in graphs that are traced from now on, except in flushes.

        Args:
            recorder: `Recorder`, or None to record nothing.
        """
        self._recorder = recorder
        self.exchanges.set("stages", lambda exchange, _: self._set_stages(recorder, exchange))

    def of_worker(self, worker, by_device):
        """Returns the entries of a list by device that belong to a worker of this process.

        Device i belongs to worker i % workers: to the only one, or to a member of a model-parallel
        group.

        Args:
            worker: index in `group.ranks`.
            by_device: list with an entry for each device of this process.
        """
        return by_device[worker :: len(self.group.ranks)]

    def clear_where_sent(self, velocity_of):
        """Lets exchanges clear the velocities of workers where they send values.

        Args:
            velocity_of: function from a variable to its velocity, or None if it has none.
        """

        def set_velocities(exchange, variables):
            velocities = list(map(velocity_of, variables))
            if any(velocity is None for velocity in velocities):
                return
            worker = self.group.ranks.index(exchange.rank)
            exchange.set_velocities(self.of_worker(worker, copies_by_device(velocities)))

        self.exchanges.set("velocities", set_velocities)

    def _set_stages(self, recorder, exchange):
        worker = self.group.members[exchange.rank]
        exchange.set_stages(functools.partial(stages_of, recorder, worker))

    def set_delay(self, on):
        """Turns delay on or off. No gradients may be held at that time."""
        self.delays = on
        self.exchanges.set("delay", lambda exchange, _: exchange.set_delay(on))

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
        if self._has_advised or 0 not in self.engine.ranks:
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

    @tf.autograph.experimental.do_not_convert
    def __call__(self, gradients, variables):
        """Exchanges the gradients of `variables`. A gradient of None stays None.

        The first call with a list of variables compares the workers, and builds the exchange.

        Args:
            gradients: list; entry i is the list of gradients of the worker `group.ranks[i]`.
            variables: list of the gradients' variables.

        Returns:
            A list like `gradients`.
        """
        if self._is_alone:
            return [list(mine) for mine in gradients]
        present = [_present(mine) for mine in gradients]
        exchanges = self._exchanges_of(present[0], variables)
        results = self.group.run(
            exchange.run(list(mine.values()), self.scale)
            for exchange, mine in zip(exchanges, present, strict=True)
        )
        exchanged = [[None] * len(variables) for _ in gradients]
        for mine, (tensors, _) in zip(exchanged, results, strict=True):
            for i, tensor in zip(present[0], tensors, strict=True):
                mine[i] = tensor
        return exchanged

    @tf.autograph.experimental.do_not_convert
    def gather(self, gradients, variables):
        """Does the same as a call, but leaves most of the decoding to `Gathered.add`.

        Args:
            gradients, variables: as in a call. The variables are float32, and no gradient is None.

        Returns:
            `Gathered`.
        """
        exchanges = self._exchanges_of(_present(gradients[0]), variables)
        results = self.group.run(
            exchange.gather(list(_present(mine).values()), self.scale)
            for exchange, mine in zip(exchanges, gradients, strict=True)
        )
        return Gathered(self, exchanges, results, variables)

    @property
    def changes_gradients(self):
        """Whether an exchange changes this worker's gradients."""
        return not (self._is_alone or innermost(self.template).trains_apart)

    @property
    def is_in_step(self):
        """Whether all workers make every step together.

        If not, their numbers of steps may differ.
        """
        is_whole = self.group is self.engine or self.model_group is not None
        return is_whole and not self.trains_apart

    @property
    def workers_in_step(self):
        """`Engine` of the workers that make every step together with this one, or None."""
        if not self.trains_apart:
            return self.engine if self.is_in_step else self.group
        group = self.model_group
        return group.within if group is not None and group.processes > 1 else None

    @property
    def trains_apart(self):
        """Whether each worker applies its own gradients, at its own pace."""
        return self.is_asynchronous or innermost(self.template).trains_apart

    def meet(self, occasion, iterations):
        """Meets the other workers between two steps, if all make every step together.

        Args:
            occasion: occasion of the meeting, in a few words.
            iterations: variable that counts the steps that this worker has made.

        Raises:
            RuntimeError: if another worker does something else.
        """
        ranks = self.engine.ranks
        if self.is_in_step and len(ranks) < self.engine.world_size:
            so_far = f"after {iterations.numpy()} steps"
            self.engine.meet([handshake(occasion, []) for _ in ranks], occasion, so_far)

    def divide(self, group):
        """Restricts the exchange of gradients to a group of the workers.

        Args:
            group: `Engine` of the group of this worker.
        """
        self.group = group
        self.engine.whereabouts.are_in_step = False

    def follow(self, model_group):
        """Restricts the exchange to the workers that hold the same parts of a model as this one.

        Args:
            model_group: `Group` of this worker.
        """
        self.group = model_group.between
        self.model_group = model_group

    @property
    def _is_alone(self):
        """Whether this worker needs no exchange.

        A single worker needs one only for transforms, or for the states of an earlier run.
        """
        is_single = self.group.world_size == 1 and self._in_full_precision() is None
        return is_single and self.carried.is_empty and not self.exchanges

    @property
    def steps_of_delay(self):
        """Number of steps by which gradients are delayed."""
        delay = delay_of(self.template)
        if delay and self.exchanges:
            return max(exchange.delay for exchange in self.built)
        if self._is_alone or self._in_full_precision() is not None:
            return 0
        return delay

    @tf.autograph.experimental.do_not_convert
    def delivers(self, gradients, variables):
        """Tells whether a call would return gradients: boolean scalar.

        If not, `hold` takes the place of the call.

        Args:
            gradients: list of the gradients of one worker.
            variables: list of their variables.
        """
        exchanges = self._exchanges_of(_present(gradients), variables)
        return tf.convert_to_tensor(exchanges[0].delivers())

    @tf.autograph.experimental.do_not_convert
    def hold(self, gradients, variables):
        """Takes gradients in a step that returns no exchanged ones. Returns them unchanged."""
        present = [_present(mine) for mine in gradients]
        exchanges = self._exchanges_of(present[0], variables)
        self.group.run(
            exchange.hold(list(mine.values()))
            for exchange, mine in zip(exchanges, present, strict=True)
        )
        return [list(mine) for mine in gradients]

    def held(self):
        """Returns what is held: list of (index in `exchanges`, number of steps, variables)."""
        numbers = [exchange.number_held() for exchange in self.built]
        lists = [built.variables for built in self.exchanges]
        return [(i, *one) for i, one in enumerate(zip(numbers, lists, strict=True)) if one[0]]

    def release(self, index, number, like, variables):
        """Returns the oldest gradients that are held, and takes none.

        Args:
            index, number, variables: an entry of `held()`.
            like: list of lists of tensors like the gradients, one for each of `group.ranks`.

        Returns:
            A list like `like`.
        """
        exchanges, _ = self.exchanges[index]
        for exchange in exchanges:
            self._set_stages(None, exchange)
        results = self.group.run(
            exchange.release(number, _like(exchange.specs, mine), self.scale)
            for exchange, mine in zip(exchanges, like, strict=True)
        )
        for exchange in exchanges:
            self._set_stages(self._recorder, exchange)
        return [list(tensors) for tensors, _ in results]

    @tf.autograph.experimental.do_not_convert
    def all_finite(self, gradients):
        """Tells whether the gradients of all workers are finite.

        If workers train apart, each is told about its own gradients. The members of a group are
        told the same, so that they skip a step together.

        Args:
            gradients: as in a call.

        Returns:
            List of boolean scalars, one for each of `group.ranks`.
        """
        present = [[g for g in mine if g is not None] for mine in gradients]
        if not present[0]:
            return [tf.constant(True) for _ in gradients]
        deciding = self.workers_in_step
        if deciding is None or deciding.world_size == 1:
            return [tf.equal(not_finite_flag(mine), 0) for mine in present]
        name = f"{self._scope}/all_finite"
        if deciding is not self.group:
            name = f"tf_onebit_{self._number}/all_finite"  # `_scope` names this group only
        return deciding.run(all_finite(mine, name) for mine in present)

    @functools.cached_property
    def _scope(self):
        """Prefix of the names of this object's collectives.

        The first use compares the workers.
        """
        members = () if self.group is self.engine else tuple(self.group.members)
        self._number = next(_numbers[members])
        scope = "_".join(map(str, ["tf_onebit", self._number, *members]))
        with tf.init_scope():
            self.group.run([handshake(scope, self._settings) for _ in self.group.ranks])
        return scope

    def _in_full_precision(self):
        """Returns the uncompressed exchange of a single worker without residuals, or None."""
        states = self.carried.waiting(len(self.exchanges)) or [{}]
        if self.group.world_size > 1 or len(states) > 1 or has_unsent(states[0]):
            return None
        return self.template.uncompressed()

    def _build_and_restore(self, specs, index):
        exchanges = self._build(specs, f"{self._scope}/{index}")
        with tf.init_scope():
            self.carried.restore(index, exchanges)
        return exchanges

    def _build(self, specs, scope):
        template = self._in_full_precision() or self.template
        template = with_moments(template, self.moments)
        if isinstance(template, Auto):
            template = self._decide(template, specs, scope)
        unit = 1.0 if self.exchanges_updates else self._unit
        return build(template, specs, scope, self.group, unit)

    def _decide(self, auto, specs, scope):
        """Returns the exchange that `Auto` decides for, now or in an earlier run."""
        index = len(self.exchanges)
        states = list(self.carried.waiting(index))
        if len(states) == self.holders.world_size:
            states.insert(0, states[self.holders.ranks[0]])
        description = describe(auto, specs, self.group.world_size)
        with tf.init_scope():
            # Compared first: a worker that does something else would not take part in measuring.
            self.group.run([handshake(scope, description) for _ in self.group.ranks])
            decided = decide(auto, specs, self.group, states)
        self.carried.decided[index] = decided
        return decided

    def _exchanges_of(self, present, variables):
        variables = [variables[i] for i in present]
        specs = tuple(map(GradientSpec.of, present.values(), variables))
        return self.exchanges.of(specs, variables)


def _present(gradients):
    """Returns the gradients that are not None: dictionary of tensors by their places."""
    return {
        i: gradient if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)
        for i, gradient in enumerate(gradients)
        if gradient is not None
    }


def _like(specs, tensors):
    """Returns the tensors, with empty `tf.IndexedSlices` where gradients are sparse."""
    return [
        tf.IndexedSlices(tensor[:0], tf.zeros([0], tf.int64), tf.shape(tensor, tf.int64))
        if spec.sparse
        else tf.convert_to_tensor(tensor)
        for spec, tensor in zip(specs, tensors, strict=True)
    ]
