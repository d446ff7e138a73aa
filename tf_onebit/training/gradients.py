"""The exchange of a training program's gradients: built on first use, kept for good."""

import collections
import contextlib
import functools
import itertools
import warnings

import tensorflow as tf

from tf_onebit.exchanges import Auto, Bucketed, FullPrecision, GradientSpec
from tf_onebit.exchanges.finite import all_finite, not_finite_flag
from tf_onebit.exchanges.handshake import describe, handshake
from tf_onebit.exchanges.schedule import delay_of, innermost, is_exchange
from tf_onebit.exchanges.state import has_unsent
from tf_onebit.training.auto import decide, with_decision, without_decision
from tf_onebit.training.recorder import stages_of
from tf_onebit.validation import number_of_samples

# Counts what is exchanged, in the order of first use: all workers must take part in each, so they
# count alike. (They need not make the same objects: one may log, test or save more than another.)
# Those of a group count by themselves, because others take no part.
_numbers = collections.defaultdict(itertools.count)


def has_exchanged():
    """Tells whether this process has exchanged gradients with all others of its job."""
    return () in _numbers


def resolve_exchange(exchange):
    """The exchange that a user asked for: full precision by None, `Auto` by "auto"."""
    if exchange is None:
        return FullPrecision()
    if isinstance(exchange, str) and exchange == "auto":
        return Auto()
    if not is_exchange(exchange):
        raise ValueError(
            'exchange must be a tf_onebit.Exchange, for example tf_onebit.OneBit(), or "auto". '
            f"Received: exchange={exchange!r} of type {type(exchange).__name__}."
        )
    return exchange


def build(template, specs, scope, engine, unit=1.0):
    """Builds a clone of `template` on all workers, once these are known to agree.

    Args:
        template: the user's exchange.
        specs: list of `GradientSpec`.
        scope: prefix of the collectives' names.
        engine: `Engine`.
        unit: see `Exchange.build`.

    Returns:
        List of `Bucketed`, one for each of `engine.ranks`.

    Raises:
        ValueError: on all workers, if they are about to build different exchanges.
    """
    exchanges = [Bucketed(template) for _ in engine.ranks]
    with tf.init_scope():
        # The comparison comes first: workers with different models may not even get to build.
        engine.run([exchange.handshake(specs, engine.world_size, scope) for exchange in exchanges])
        for index, (rank, exchange) in enumerate(zip(engine.ranks, exchanges, strict=True)):
            with engine.place(index):
                exchange.build(specs, rank, engine.world_size, scope, unit)
    return exchanges


class GradientExchange:
    """Exchanges lists of gradients.

    Args:
        template: the user's exchange.
        engine: `Engine`.
        mean: whether gradients become their mean over the workers. Else they become their sum.
        settings: list of (what, value) pairs of strings in which workers must agree, too.
        unit: see `Exchange.build`.

    Attributes:
        engine: of all workers of the job.
        group: `Engine` of those that exchange gradients with each other: all, by default.
        blocks: `BlockSynchronization` of workers that train apart within a block, or None.
        block_states: of an earlier run, until `blocks` takes them over: list, by rank, or None.
        variables, latest: where an optimizer keeps, within one step, whose gradients it was
            given and what their exchange returned.
        delays: whether delay is on, where there is any: see `set_delay`.
        flushing: where an optimizer keeps functions that it has traced.
    """

    # Whether workers apply what has come by now.
    is_asynchronous = False

    def __init__(self, template, engine, mean, settings=(), unit=1.0):
        self.template = template
        self.engine = self.group = engine
        if not self.is_in_step:
            engine.whereabouts.are_in_step = False
        self.blocks = self.block_states = None
        self._mean = mean
        self._unit = unit
        self._settings = [("op", "Average" if mean else "Sum"), *settings]
        self._built, self._decided = {}, {}
        self._states, self._ratio = {}, 1.0
        self._global_batch_size = None
        self.delays = True
        self._released = None
        self._recorder = None
        self._has_advised = False
        self.flushing = {}
        self.variables = self.latest = None

    @property
    def built(self):
        """The exchanges of a worker of this process: one for each list of variables."""
        return [exchanges[0] for exchanges, _ in self._built.values()]

    @property
    def built_for(self):
        """What each of `built` is for: list of (tuple of `GradientSpec`, list of variables)."""
        return [(exchanges[0].specs, variables) for exchanges, variables in self._built.values()]

    @property
    def scale(self):
        """What the sum over the workers is multiplied with."""
        return 1.0 / self.group.world_size if self._mean else 1.0

    @property
    def global_batch_size(self):
        """What `set_global_batch_size` has set, or None."""
        return self._global_batch_size

    def set_global_batch_size(self, samples):
        """Tells all exchanges how many samples a step has, also those that are not built yet.

        Args:
            samples: number of samples that all workers together take per step, the same on all.

        Raises:
            ValueError: if `samples` is not a positive whole number.
        """
        self._global_batch_size = number_of_samples("global_batch_size", samples)
        for exchanges, _ in self._built.values():
            self._tell_batch_size(exchanges)

    def _tell_batch_size(self, exchanges):
        if self._global_batch_size is not None:
            for exchange in exchanges:
                exchange.set_global_batch_size(self._global_batch_size)

    def record_times(self, recorder):
        """Has times taken of what is traced from now on, but for flushes.

        Args:
            recorder: `Recorder`; or None, for none to be taken.
        """
        self._recorder = recorder
        for exchanges, _ in self._built.values():
            self._set_stages(exchanges, recorder)

    def _set_stages(self, exchanges, recorder):
        for exchange in exchanges:
            worker = self.group.members[exchange.rank]
            exchange.set_stages(functools.partial(stages_of, recorder, worker))

    def scale_unsent(self, ratio):
        """Multiplies all that is of gradients and has yet to have an effect.

        Residuals, and velocities of transforms, keep the update that they will make when the
        learning rate is divided by `ratio`. Nothing may be under way.
        """
        if ratio == 1.0:
            return
        self._ratio *= ratio  # of an earlier run's states, for what is not built yet
        for exchanges, _ in self._built.values():
            for exchange in exchanges:
                _load_own(exchange, exchange.state(), ratio)

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

    def states(self):
        """The states of what is built: list of lists, by exchange and by `engine.ranks`.

        And those, of an earlier run, of what is not built yet.
        """
        built = [
            [self._state_of(index, exchange) for exchange in exchanges]
            for index, (exchanges, _) in enumerate(self._built.values())
        ]
        waiting = [self._states[index] for index in sorted(self._states)]
        return built + [[states[rank] for rank in self.engine.ranks] for states in waiting]

    def _state_of(self, index, exchange):
        decided = self._decided.get(index)
        state = exchange.state()
        return state if decided is None else with_decision(state, decided)

    @property
    def states_are_whole(self):
        """Whether `states` has all: not before the first step of other workers than earlier."""
        alike = all(len(states) == self.engine.world_size for states in self._states.values())
        return alike and (not self._states or self._ratio == 1.0)

    def load_states(self, states, scale):
        """Takes over the states of an earlier run, also for what is not built yet.

        Args:
            states: list of lists of what `Exchange.state` returned, by exchange and by rank. With
                as many workers as then, those of other processes may be missing (empty).
            scale: what `scale` was then.

        What is built now and was not then begins anew.
        """
        self._states = dict(enumerate(states))
        self._ratio = scale / self.scale
        # What was in force then is part of the states.
        self._global_batch_size = None
        for index, (exchanges, _) in enumerate(self._built.values()):
            if index < len(states):
                self._load(index, exchanges)
            else:
                self._begin_anew(exchanges)

    def _begin_anew(self, exchanges):
        for index, old in enumerate(exchanges):
            new = Bucketed(old.template)
            with self.group.place(index):
                new.build(old.specs, old.rank, old.world_size, old.scope, old.unit)
            _load_own(old, new.state())

    def _load(self, index, exchanges):
        states = self._states.pop(index, None)
        if states is None:
            return
        if self.group is not self.engine:
            if len(states) != self.engine.world_size:
                raise ValueError(
                    "Workers in groups can only be resumed as many as they were. Received: a "
                    f"state of {len(states)} workers for {self.engine.world_size}."
                )
            states = [states[member] for member in self.group.members]
        states = list(map(without_decision, states))
        for exchange in exchanges:
            exchange.load_state(states, self._ratio)

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
        if self._released is not None:
            return self._release(gradients)
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
        return is_single and not (self._states or self._built)

    @property
    def steps_of_delay(self):
        """By how many steps the gradients of a step come back later."""
        delay = delay_of(self.template)
        if delay and self._built:
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
        """What is under way: list of (index among `built`, number of steps, variables)."""
        numbers = [exchanges[0].number_held() for exchanges, _ in self._built.values()]
        lists = [variables for _, variables in self._built.values()]
        return [(i, *one) for i, one in enumerate(zip(numbers, lists, strict=True)) if one[0]]

    @contextlib.contextmanager
    def releasing(self, index, number):
        """Context in which a call takes no gradients, and gives back the oldest that are held.

        Args:
            index, number: one of `held`.
        """
        self._released = index, number
        try:
            yield
        finally:
            self._released = None

    def _release(self, like):
        index, number = self._released
        exchanges, _ = list(self._built.values())[index]
        self._set_stages(exchanges, None)
        results = self.group.run(
            exchange.release(number, _like(exchange.specs, mine), self.scale)
            for exchange, mine in zip(exchanges, like, strict=True)
        )
        self._set_stages(exchanges, self._recorder)
        return [list(tensors) for tensors, _ in results]

    def set_delay(self, on):
        """Turns delay on or off, while nothing is held."""
        self.delays = on
        for exchanges, _ in self._built.values():
            for exchange in exchanges:
                exchange.set_delay(on)

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
        states = self._states.get(len(self._built), [{}])
        if self.group.world_size > 1 or len(states) > 1 or has_unsent(states[0]):
            return None
        return self.template.uncompressed()

    def _build(self, specs, scope):
        template = self._in_full_precision() or self.template
        if isinstance(template, Auto):
            template = self._decide(template, specs, scope)
        return build(template, specs, scope, self.group, self._unit)

    def _decide(self, auto, specs, scope):
        """What `Auto` becomes: now, or in an earlier run."""
        index = len(self._built)
        states = list(self._states.get(index, ()))
        if len(states) == self.engine.world_size:
            states.insert(0, states[self.engine.ranks[0]])
        description = describe(auto, specs, self.group.world_size)
        with tf.init_scope():
            # Workers that do something else would not measure with those that do.
            self.group.run([handshake(scope, description) for _ in self.group.ranks])
            decided = decide(auto, specs, self.group, states)
        self._decided[index] = decided
        return decided

    def _exchanges_of(self, gradients, variables):
        present = _present(gradients)
        specs = tuple(spec_of(gradients[i], variables[i]) for i in present)
        return self.exchanges_for(specs, [variables[i] for i in present])

    def exchanges_for(self, specs, variables):
        """The exchanges of gradients of a list of variables: one for each of `group.ranks`."""
        # Names alone do not tell variables apart: many are called "Variable:0".
        key = specs, tuple(map(id, variables))
        if key not in self._built:
            scope = f"{self._scope}/{len(self._built)}"
            exchanges = self._build(specs, scope)
            with tf.init_scope():
                self._load(len(self._built), exchanges)
                self._tell_batch_size(exchanges)
                if not self.delays:
                    for exchange in exchanges:
                        exchange.set_delay(False)
            self._set_stages(exchanges, self._recorder)
            # With the variables, because the ids of objects that are gone come again.
            self._built[key] = exchanges, variables
        exchanges, _ = self._built[key]
        return exchanges


def spec_of(gradient, variable):
    """What is known of the gradient of a variable: `GradientSpec`."""
    return GradientSpec(
        name=getattr(variable, "path", variable.name),
        shape=tuple(variable.shape),
        dtype=tf.as_dtype(gradient.dtype).name,
        sparse=isinstance(gradient, tf.IndexedSlices),
    )


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


def _load_own(exchange, state, ratio=1.0):
    """Has an exchange take over a state of its own: those of other workers are not looked at."""
    states = [{} for _ in range(exchange.world_size)]
    states[exchange.rank] = state
    exchange.load_state(states, ratio)
