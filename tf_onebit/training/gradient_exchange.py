"""GradientExchange: what an optimizer hands its gradients to."""

import collections
import functools
import itertools
import warnings

import tensorflow as tf

from tf_onebit.exchanges import Auto
from tf_onebit.exchanges.finite import all_finite, not_finite_flag
from tf_onebit.exchanges.handshake import describe, handshake
from tf_onebit.exchanges.schedule import delay_of, innermost
from tf_onebit.exchanges.state import has_unsent
from tf_onebit.training.auto import decide
from tf_onebit.training.building import build, spec_of
from tf_onebit.training.built_exchanges import BuiltExchanges
from tf_onebit.training.exchange_state import ExchangeState
from tf_onebit.training.recorder import stages_of
from tf_onebit.validation import number_of_samples

# Counts what is exchanged, in the order of first use: all workers must take part in each, so they
# count alike. (They need not make the same objects: one may log, test or save more than another.)
# Those of a group count by themselves, because others take no part.
_numbers = collections.defaultdict(itertools.count)


def has_exchanged():
    """Tells whether this process has exchanged gradients with all others of its job."""
    return () in _numbers


class GradientExchange:
    """Exchanges lists of gradients between the workers of a job.

    Args:
        template: the user's exchange.
        engine: `Engine`.
        mean: whether gradients become their mean over the workers. Else they become their sum.
        settings: list of (what, value) pairs of strings in which workers must agree, too.
        unit: see `Exchange.build`.

    Attributes:
        engine: of all workers of the job.
        group: `Engine` of those that exchange gradients with each other: all, by default.
        exchanges: `BuiltExchanges`, of all lists of variables that it has been called with.
        carried: `ExchangeState` of these.
        global_batch_size: what `set_global_batch_size` has set, or None.
        delays: whether delay is on, if there is any: see `set_delay`.
    """

    # Whether workers apply what has come by now.
    is_asynchronous = False

    def __init__(self, template, engine, mean, settings=(), unit=1.0):
        self.template = template
        self.engine = self.group = engine
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
        """The exchanges of a worker of this process: one for each list of variables."""
        return [built.exchanges[0] for built in self.exchanges]

    @property
    def scale(self):
        """What the sum over the workers is multiplied with."""
        return 1.0 / self.group.world_size if self._mean else 1.0

    def set_global_batch_size(self, samples):
        """Tells all exchanges how many samples a step has, also those that are not built yet.

        Args:
            samples: number of samples that all workers together take per step, the same on all.

        Raises:
            ValueError: if `samples` is not a positive whole number.
        """
        samples = self.global_batch_size = number_of_samples("global_batch_size", samples)
        self.exchanges.set("batch size", lambda exchange: exchange.set_global_batch_size(samples))

    def record_times(self, recorder):
        """Has times taken of what is traced from now on, but for flushes.

        Args:
            recorder: `Recorder`; or None, for none to be taken.
        """
        self._recorder = recorder
        self.exchanges.set("stages", functools.partial(self._set_stages, recorder))

    def _set_stages(self, recorder, exchange):
        worker = self.group.members[exchange.rank]
        exchange.set_stages(functools.partial(stages_of, recorder, worker))

    def set_delay(self, on):
        """Turns delay on or off, while nothing is held."""
        self.delays = on
        self.exchanges.set("delay", lambda exchange: exchange.set_delay(on))

    def load_states(self, states, scale):
        """Takes over the states of an earlier run: see `ExchangeState.load`.

        Args:
            states: list of lists of dictionaries.
            scale: what `scale` was then.
        """
        # What was in force then is part of the states.
        self.global_batch_size = None
        self.exchanges.set("batch size", None)
        self.carried.load(states, scale / self.scale)

    def metrics(self):
        """Figures of the last exchange, for the Monitor: dictionary of floats."""
        return {k: v for exchange in self.built for k, v in exchange.metrics().items()}

    def advise(self):
        """Warns, once and on worker 0 alone, of what to know if training ends now."""
        if self._has_advised or 0 not in self.engine.ranks:
            return
        advice = next(filter(None, (exchange.advice() for exchange in self.built)), None)
        if advice is not None:
            self._has_advised = True
            warnings.warn(advice, stacklevel=2)

    def drain(self, occasion, last=False):
        """Waits until nothing is under way between workers: between steps nothing is.

        Args:
            occasion: at which all workers do so, in a few words.
            last: whether training ends.
        """

    def rescue_with(self, save):
        """Has `save` called before an error that one worker meets and others need not.

        Args:
            save: function that saves what this worker has learned, and returns where, or None.
        """

    @tf.autograph.experimental.do_not_convert
    def __call__(self, gradients, variables):
        """Exchanges the gradients of `variables`; None stays None.

        The first call with a list of variables builds the exchange, and compares the workers.

        Args:
            gradients: list; entry i is the list of gradients of the worker `group.ranks[i]`.
            variables: list.

        Returns:
            A list like `gradients`.
        """
        if self._is_alone:
            return [list(mine) for mine in gradients]
        present = _present(gradients[0])
        exchanges = self._exchanges_of(gradients[0], variables)
        results = self.group.run(
            exchange.run([_tensor(mine[i]) for i in present], self.scale)
            for exchange, mine in zip(exchanges, gradients, strict=True)
        )
        exchanged = [[None] * len(variables) for _ in gradients]
        for mine, (tensors, _) in zip(exchanged, results, strict=True):
            for i, tensor in zip(present, tensors, strict=True):
                mine[i] = tensor
        return exchanged

    @property
    def changes_gradients(self):
        """Whether this worker's gradients do not just stay what they are."""
        return not (self._is_alone or innermost(self.template).trains_apart)

    @property
    def is_in_step(self):
        """True if all workers make every step together. Else they may make different numbers."""
        return not self.trains_apart and self.group is self.engine

    @property
    def trains_apart(self):
        """True if each worker applies gradients of its own, when it has them."""
        return self.is_asynchronous or innermost(self.template).trains_apart

    def meet(self, occasion, iterations):
        """Meets the other workers between two steps, if all make every step together.

        Args:
            occasion: at which they meet, in a few words.
            iterations: variable that counts the steps that this worker has made.

        Raises:
            RuntimeError: if one does something else.
        """
        ranks = self.engine.ranks
        if self.is_in_step and len(ranks) < self.engine.world_size:
            so_far = f"after {iterations.numpy()} steps"
            self.engine.meet([handshake(occasion, []) for _ in ranks], occasion, so_far)

    def divide(self, group):
        """Has this worker exchange gradients with a group of the workers only.

        Args:
            group: `Engine` of the group.
        """
        self.group = group
        self.engine.whereabouts.are_in_step = False

    @property
    def _is_alone(self):
        """A single worker exchanges nothing, unless it transforms, or several have left it some."""
        is_single = self.group.world_size == 1 and self._in_full_precision() is None
        return is_single and self.carried.is_empty and not self.exchanges

    @property
    def steps_of_delay(self):
        """By how many steps the gradients of a step come back later."""
        delay = delay_of(self.template)
        if delay and self.exchanges:
            return max(exchange.delay for exchange in self.built)
        if self._is_alone or self._in_full_precision() is not None:
            return 0
        return delay

    @tf.autograph.experimental.do_not_convert
    def delivers(self, gradients, variables):
        """Whether a call would give gradients back: boolean scalar. Else `hold` takes its place.

        Args:
            gradients: list, of one worker.
            variables: list.
        """
        return tf.convert_to_tensor(self._exchanges_of(gradients, variables)[0].delivers())

    @tf.autograph.experimental.do_not_convert
    def hold(self, gradients, variables):
        """Takes gradients as a call does, and gives none back. Returns those that it got."""
        present = _present(gradients[0])
        exchanges = self._exchanges_of(gradients[0], variables)
        self.group.run(
            exchange.hold([_tensor(mine[i]) for i in present])
            for exchange, mine in zip(exchanges, gradients, strict=True)
        )
        return [list(mine) for mine in gradients]

    def held(self):
        """What is under way: list of (index among `exchanges`, number of steps, variables)."""
        numbers = [exchange.number_held() for exchange in self.built]
        lists = [built.variables for built in self.exchanges]
        return [(i, *one) for i, one in enumerate(zip(numbers, lists, strict=True)) if one[0]]

    def release(self, index, number, like, variables):
        """Gives back the oldest gradients that are held, and takes none.

        Args:
            index, number, variables: one of `held`.
            like: list of lists of tensors like the gradients, of each of `group.ranks`.

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
        """Whether the gradients of all workers are finite, or its own, where they train apart.

        Args:
            gradients: as in a call.

        Returns:
            List of boolean scalars, one for each of `group.ranks`.
        """
        present = [[g for g in mine if g is not None] for mine in gradients]
        if not present[0]:
            return [tf.constant(True) for _ in gradients]
        if self.group.world_size == 1 or innermost(self.template).trains_apart:
            return [tf.equal(not_finite_flag(mine), 0) for mine in present]
        name = f"{self._scope}/all_finite"
        return self.group.run(all_finite(mine, name) for mine in present)

    @functools.cached_property
    def _scope(self):
        """Prefix of the names of this object's collectives, of which the first compares workers."""
        members = () if self.group is self.engine else tuple(self.group.members)
        scope = "_".join(map(str, ["tf_onebit", next(_numbers[members]), *members]))
        with tf.init_scope():
            self.group.run([handshake(scope, self._settings) for _ in self.group.ranks])
        return scope

    def _in_full_precision(self):
        """What a single worker does to gradients of which there is nothing unsent, if anything."""
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
        if isinstance(template, Auto):
            template = self._decide(template, specs, scope)
        return build(template, specs, scope, self.group, self._unit)

    def _decide(self, auto, specs, scope):
        """What `Auto` becomes: now, or in an earlier run."""
        index = len(self.exchanges)
        states = list(self.carried.waiting(index))
        if len(states) == self.engine.world_size:
            states.insert(0, states[self.engine.ranks[0]])
        description = describe(auto, specs, self.group.world_size)
        with tf.init_scope():
            # Workers that do something else would not measure with those that do.
            self.group.run([handshake(scope, description) for _ in self.group.ranks])
            decided = decide(auto, specs, self.group, states)
        self.carried.decided[index] = decided
        return decided

    def _exchanges_of(self, gradients, variables):
        present = _present(gradients)
        specs = tuple(spec_of(gradients[i], variables[i]) for i in present)
        return self.exchanges.of(specs, [variables[i] for i in present])


def _present(gradients):
    return [i for i, gradient in enumerate(gradients) if gradient is not None]


def _like(specs, tensors):
    """Tensors, or `tf.IndexedSlices` without rows where gradients are sparse."""
    return [
        tf.IndexedSlices(tensor[:0], tf.zeros([0], tf.int64), tf.shape(tensor, tf.int64))
        if spec.sparse
        else tf.convert_to_tensor(tensor)
        for spec, tensor in zip(specs, tensors, strict=True)
    ]


def _tensor(gradient):
    return gradient if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)
