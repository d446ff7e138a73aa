"""GradientExchange: the object to which an optimizer passes its gradients."""

import functools

import tensorflow as tf

from tf_onebit._framework_internals.tf_variables import copies_by_device, plain_variables
from tf_onebit._training.auto import decided
from tf_onebit._training.building import build, with_moments
from tf_onebit._training.gathered import Gathered
from tf_onebit._training.optimizer_exchange import OptimizerExchange
from tf_onebit._training.recorder import stages_of
from tf_onebit.exchanges import Auto, GradientSpec
from tf_onebit.exchanges.gradients import all_finite, like_gradients, not_finite_flag, times
from tf_onebit.exchanges.hierarchical import Hierarchical
from tf_onebit.exchanges.schedule import delay_of, schedule_of
from tf_onebit.exchanges.state import has_unsent
from tf_onebit.exchanges.warm_up import IS_OVER


class GradientExchange(OptimizerExchange):
    """Exchange of an optimizer's gradients, or of its updates, in each step.

    Args:
        template, engine, mean, settings, moments: see `OptimizerExchange`.
        unit: see `Exchange.build`.

    Attributes:
        delays: whether delay is on, if there is any: see `set_delay`.
    """

    def __init__(self, template, engine, mean, settings=(), unit=1.0, moments="after"):
        super().__init__(template, engine, mean, settings, moments)
        self._unit = unit
        self.delays = True

    @property
    def exchanges_updates(self):
        """True if the optimizer passes its updates, of which the workers make the mean."""
        return self.moments == "local" and not self._is_alone

    @property
    def has_warm_up(self):
        """True if workers exchange updates, but gradients in the steps of a warm-up."""
        template = self.template.inner if isinstance(self.template, Auto) else self.template
        return self.exchanges_updates and schedule_of(template).warm_up is not None

    @tf.autograph.experimental.do_not_convert
    def is_warm(self, gradients, variables):
        """Tells whether the next step is within a warm-up: boolean scalar.

        Args:
            gradients: list of the gradients of one worker.
            variables: list of their variables.
        """
        exchanges = self._exchanges_of(_present(gradients), variables)
        return exchanges[0].is_warm() & ~self._have_own_moments

    @property
    def missing_noise(self):
        """Part of the noise of a worker's gradients that is not in the workers' mean.

        If the gradients of K workers differ only by chance, the variance of their mean is a K-th of
        theirs. So 1 - 1/K of it is missing.
        """
        return 1 - 1 / self.workers.group.world_size

    @tf.autograph.experimental.do_not_convert
    def without_compression(self, gradients, variables):
        """Exchanges gradients in a step of a warm-up, in which workers make updates of their mean.

        Args:
            gradients, variables: as in a call.
        """
        scale = 1.0 / self.workers.count if self._mean else 1.0
        return self(
            gradients, variables, lambda exchange, mine: exchange.run_uncompressed(mine, scale)
        )

    @tf.autograph.experimental.do_not_convert
    def of_updates_alike(self, updates, variables):
        """Returns updates that all workers have made, in a step of a warm-up, after a check.

        Args:
            updates, variables: as in a call.
        """
        return self(updates, variables, lambda exchange, mine: exchange.run_alike(mine))

    def exchange_of_alike(self, gradients, variables):
        """Returns what a call would return if all workers had the gradients of this one.

        By node, it is as if all nodes had those of this one, except for sparse gradients. No
        warm-up begins after that, also not of other variables: moments are no longer alike.

        Args:
            gradients, variables: as in a call.
        """
        if self.has_warm_up:
            self._have_own_moments.assign(True)
        if (node := self.workers.group.node) is not None:
            gradients = self(gradients, variables, Hierarchical.mean_of_node, node)
        factor = 1 if self._mean else self.workers.count
        return [times(mine, factor) for mine in gradients]

    @functools.cached_property
    def _have_own_moments(self):
        """Variable that tells whether an update was made of a worker's own gradients."""
        with tf.init_scope(), plain_variables("CPU:0"):
            return tf.Variable(False, trainable=False)

    def load_states(self, states, scale):
        super().load_states(states, scale)
        if self.has_warm_up:
            entries = [item for ranks in states for state in ranks for item in state.items()]
            is_over = any(bool(value) for name, value in entries if name.endswith(IS_OVER))
            self._have_own_moments.assign(is_over)

    def record_times(self, recorder):
        """Records times in graphs that are traced from now on, except in flushes.

        Args:
            recorder: `Recorder`, or None to record nothing.
        """

        def set_stages(exchange, _):
            worker = self.workers.group.members[exchange.rank]
            exchange.set_stages(functools.partial(stages_of, recorder, worker))

        self.exchanges.set("stages", set_stages)

    def clear_where_sent(self, velocity_of):
        """Lets exchanges clear the velocities of workers where they send values.

        Args:
            velocity_of: function from a variable to its velocity, or None if it has none.
        """

        def set_velocities(exchange, variables):
            velocities = list(map(velocity_of, variables))
            if any(velocity is None for velocity in velocities):
                return
            worker = self.workers.group.ranks.index(exchange.rank)
            exchange.set_velocities(self.workers.of_worker(worker, copies_by_device(velocities)))

        self.exchanges.set("velocities", set_velocities)

    def set_delay(self, on):
        """Turns delay on or off. No gradients may be held at that time."""
        self.delays = on
        self.exchanges.set("delay", lambda exchange, _: exchange.set_delay(on))

    @tf.autograph.experimental.do_not_convert
    def __call__(self, gradients, variables, run=None, engine=None):
        """Exchanges the gradients of `variables`. A gradient of None stays None.

        The first call with a list of variables compares the workers, and builds the exchange.

        Args:
            gradients: list; entry i is the list of gradients of the worker `group.ranks[i]`.
            variables: list of the gradients' variables.
            run: function from a `Bucketed` and a list of gradients to a generator that returns
                what `Bucketed.run` does. Default: that with `scale`.
            engine: `Engine` that answers it. Default: that of `workers.group`.

        Returns:
            A list like `gradients`.
        """
        if self._is_alone:
            return [list(mine) for mine in gradients]
        run = run or (lambda exchange, mine: exchange.run(mine, self.scale))
        present = [_present(mine) for mine in gradients]
        exchanges = self._exchanges_of(present[0], variables)
        results = (engine or self.workers.group).run(
            run(exchange, list(mine.values()))
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
        results = self.workers.group.run(
            exchange.gather(list(_present(mine).values()), self.scale)
            for exchange, mine in zip(exchanges, gradients, strict=True)
        )
        return Gathered(self, exchanges, results, variables)

    @property
    def changes_gradients(self):
        """True if an exchange changes this worker's gradients."""
        return not (self._is_alone or self.workers.train_apart)

    @property
    def _is_alone(self):
        """True if this worker needs no exchange.

        A single worker needs one only for transforms, or for the states of an earlier run.
        """
        is_single = self.workers.count == 1 and self._in_full_precision() is None
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
        self.workers.group.run(
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
        results = self.workers.group.run(
            exchange.release(number, like_gradients(exchange.specs, mine), self.scale)
            for exchange, mine in zip(exchanges, like, strict=True)
        )
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
        deciding = self.workers.in_step
        if deciding is None or deciding.world_size == 1:
            return [tf.equal(not_finite_flag(mine), 0) for mine in present]
        name = f"{self.workers.scope_of(deciding)}/all_finite"
        return deciding.run(all_finite(mine, name) for mine in present)

    def _in_full_precision(self):
        """Returns the uncompressed exchange of a single worker without residuals, or None."""
        states = self.carried.waiting(len(self.exchanges)) or [{}]
        if self.workers.count > 1 or len(states) > 1 or has_unsent(states[0]):
            return None
        return self.template.uncompressed()

    def _build(self, specs, scope):
        template = self._in_full_precision() or self.template
        template = with_moments(template, self.moments)
        if isinstance(template, Auto):
            index = len(self.exchanges)
            states = self.carried.waiting(index)
            with tf.init_scope():
                template = decided(template, specs, scope, self.workers, states)
            self.carried.decided[index] = template
        unit = 1.0 if self.exchanges_updates else self._unit
        workers, updates = self.workers, self.exchanges_updates
        return build(template, specs, scope, workers.group, unit, updates, workers.whole_group)

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
