"""The exchange of a training program's gradients: built on first use, kept for good."""

import functools
import itertools

import tensorflow as tf

from tf_onebit.exchanges import Bucketed, Exchange, FullPrecision, GradientSpec, Local
from tf_onebit.exchanges.finite import all_finite, not_finite_flag
from tf_onebit.exchanges.handshake import handshake

# Counts what is exchanged, in the order of first use: all workers must take part in each, so they
# count alike. (They need not make the same objects: one may log, test or save more than another.)
_numbers = itertools.count()


def resolve_exchange(exchange):
    """The exchange that a user asked for: full precision by None."""
    if exchange is None:
        return FullPrecision()
    if not isinstance(exchange, Exchange):
        raise ValueError(
            "exchange must be a tf_onebit.Exchange, for example tf_onebit.OneBit(). "
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
    """

    # Whether workers apply what has come by now.
    is_asynchronous = False

    def __init__(self, template, engine, mean, settings=(), unit=1.0):
        self.template = template
        self.engine = self.group = engine
        self.blocks = self.block_states = None
        self._mean = mean
        self._unit = unit
        self._settings = [("op", "Average" if mean else "Sum"), *settings]
        self._built = {}
        self._states, self._ratio = {}, 1.0
        self.variables = self.latest = None

    @property
    def built(self):
        """The exchanges of a worker of this process: one for each list of variables."""
        return [exchanges[0] for exchanges, _ in self._built.values()]

    @property
    def scale(self):
        """What the sum over the workers is multiplied with."""
        return 1.0 / self.group.world_size if self._mean else 1.0

    def measures(self):
        """Figures of the last exchange, for the Monitor: dictionary of floats."""
        return {k: v for exchange in self.built for k, v in exchange.measures().items()}

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
        """The states of what is built: list of lists, by exchange and by `engine.ranks`."""
        return [[exchange.state() for exchange in e] for e, _ in self._built.values()]

    def load_states(self, states, scale):
        """Takes over the states of an earlier run, also for what is not built yet.

        Args:
            states: list of lists of what `Exchange.state` returned, by exchange and by rank. With
                as many workers as then, those of other processes may be missing (empty).
            scale: what `scale` was then.
        """
        self._states = dict(enumerate(states))
        self._ratio = scale / self.scale
        for index, (exchanges, _) in enumerate(self._built.values()):
            self._load(index, exchanges)

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
        for exchange in exchanges:
            exchange.load_state(states, self._ratio)

    def __call__(self, gradients, variables):
        """Exchanges the gradients of `variables`; None stays None.

        The first call with a list of variables builds the exchange, and compares the workers.

        Args:
            gradients: list; entry i is the list of gradients of the worker `group.ranks[i]`.
            variables: list.

        Returns:
            A list like `gradients`.
        """
        # A single worker exchanges nothing, unless several have left it what they had not sent.
        if self.group.world_size == 1 and not (self._states or self._built):
            return [list(mine) for mine in gradients]
        present = [i for i, gradient in enumerate(gradients[0]) if gradient is not None]
        specs = tuple(spec_of(gradients[0][i], variables[i]) for i in present)
        exchanges = self.exchanges_for(specs, [variables[i] for i in present])
        results = self.group.run(
            exchange.exchange([_tensor(mine[i]) for i in present], self.scale)
            for exchange, mine in zip(exchanges, gradients, strict=True)
        )
        exchanged = [[None] * len(variables) for _ in gradients]
        for mine, (tensors, _) in zip(exchanged, results, strict=True):
            for i, tensor in zip(present, tensors, strict=True):
                mine[i] = tensor
        return exchanged

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
        if self.group.world_size == 1 or isinstance(self.template, Local):
            return [tf.equal(not_finite_flag(mine), 0) for mine in present]
        name = f"{self._scope}/all_finite"
        return self.group.run(all_finite(mine, name) for mine in present)

    @functools.cached_property
    def _scope(self):
        """Prefix of the names of this object's collectives, of which the first compares workers."""
        scope = f"tf_onebit_{next(_numbers)}"
        with tf.init_scope():
            self.group.run([handshake(scope, self._settings) for _ in self.group.ranks])
        return scope

    def _build(self, specs, scope):
        return build(self.template, specs, scope, self.group, self._unit)

    def exchanges_for(self, specs, variables):
        """The exchanges of gradients of a list of variables: one for each of `group.ranks`."""
        # Names alone do not tell variables apart: many are called "Variable:0".
        key = specs, tuple(map(id, variables))
        if key not in self._built:
            scope = f"{self._scope}/{len(self._built)}"
            exchanges = self._build(specs, scope)
            with tf.init_scope():
                self._load(len(self._built), exchanges)
            # With the variables, because the ids of objects that are gone come again.
            self._built[key] = exchanges, variables
        exchanges, _ = self._built[key]
        return exchanges


def spec_of(gradient, variable):
    return GradientSpec(
        name=getattr(variable, "path", variable.name),
        shape=tuple(variable.shape),
        dtype=tf.as_dtype(gradient.dtype).name,
        sparse=isinstance(gradient, tf.IndexedSlices),
    )


def _tensor(gradient):
    return gradient if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)
