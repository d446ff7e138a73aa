"""Computation of a model in a step."""

import re
import time

import keras
import numpy as np
import tensorflow as tf

from tf_onebit._framework_internals.keras_models import inputs_of
from tf_onebit._framework_internals.keras_optimizers import original_class
from tf_onebit._measurement import Alone
from tf_onebit._preflight.local_update import with_local_update
from tf_onebit._preflight.loss import loss_of
from tf_onebit._shares import group_of
from tf_onebit._training.group_gradients import mean_over_members
from tf_onebit._training.model_optimizers import inner_optimizer
from tf_onebit.exchanges import GradientSpec
from tf_onebit.planner import Computation

_RUNS, _MOST_SECONDS = 5, 3.0


class ModelInStep:
    """Forward pass, backward pass and update of a model, to be timed one by one.

    If an exchange may add to the weights, the rest of the update is timed, too.

    Labels are not known, and others stand for them: see `loss_of`. An optimizer of the same kind
    updates the weights. `restore` gives them back their values.

    Args:
        model: Keras model, compiled.
        unknown_size: size for dimensions of inputs that the model leaves open.

    Attributes:
        optimizer: the optimizer that updates the weights, built.
        scatter: dictionary: spread of the times of a step by number of samples, as a fraction of
            their median.

    Raises:
        ValueError: for a model that is not compiled or not made from inputs, or, without
            `unknown_size`, leaves the size of an input open.
    """

    def __init__(self, model, unknown_size=None):
        require_plannable(model, unknown_size)
        self.model = model
        self._unknown_size = unknown_size
        self.optimizer = _standing_still(model.optimizer)
        self.optimizer.build(model.trainable_variables)
        self._leaving_adding = with_local_update(self.optimizer)
        local = [] if self._leaving_adding is None else [self._local_update]
        self._before = [variable.numpy() for variable in model.variables]
        self._variables = [variable.value for variable in model.trainable_variables]
        of_any_size = [tf.nest.map_structure(self._spec, _inputs(model))]
        self._parts = [
            tf.function(_with_end(part), input_signature=of_any_size)
            for part in (self.loss, self.gradients, *local, self._update)
        ]
        self._is_traced = False
        self.scatter = {}

    @property
    def _has_open_sizes(self):
        return any(None in spec.shape[1:] for spec in tf.nest.flatten(_inputs(self.model)))

    @property
    def fixed_batch_sizes(self):
        """Batch sizes that inputs prescribe: set."""
        shapes = [spec.shape for spec in tf.nest.flatten(_inputs(self.model))]
        return {shape[0] for shape in shapes if shape[0] is not None}

    def restore(self):
        """Restores the values of the model's variables."""
        for variable, value in zip(self.model.variables, self._before, strict=True):
            variable.assign(value)

    def specs(self):
        """Returns the specs of the gradients: list of `GradientSpec`."""
        variables = self.model.trainable_variables
        _, backward, *_ = self._parts
        gradients, _ = backward.get_concrete_function().structured_outputs
        pairs = zip(gradients, variables, strict=True)
        return [GradientSpec.of(g, variable) for g, variable in pairs if g is not None]

    def rows(self, per_replica_batch_size):
        """Returns the number of rows of each sparse gradient, and 1 for others, as in `specs`.

        Args:
            per_replica_batch_size: number of samples.
        """
        specs = self.specs()
        if not any(spec.sparse for spec in specs):
            return [1] * len(specs)
        _, backward, *_ = self._parts
        gradients, _ = backward(self.batch(per_replica_batch_size))
        return [
            int(tf.size(gradient.indices)) if isinstance(gradient, tf.IndexedSlices) else 1
            for gradient in gradients
            if gradient is not None
        ]

    def measure(self, per_replica_batch_size, workers, most_seconds=_MOST_SECONDS):
        """Measures the time of a step on all workers at once, because they may share processors.

        Args:
            per_replica_batch_size: number of samples of this worker.
            workers: `Links` or `Alone`.
            most_seconds: limit for all runs together. There is at least one run.

        Returns:
            `planner.Computation`, or None if a worker has too little memory.

        Raises:
            ValueError: if the model does not take `unknown_size` for its open sizes.
        """
        batch = self._batch_for(per_replica_batch_size, workers)
        if batch is None:
            return None
        times = self._times(self._parts, batch, workers, most_seconds)
        # All wait for the slowest worker, so its times count.
        medians = np.median(times, axis=0).tolist()
        *medians, scatter = workers.slowest(*medians, _scatter(times[:, -1]))
        self.scatter[per_replica_batch_size] = scatter
        forward, backward, *local, whole = medians
        # Times include earlier ones. Noise must not make a difference negative.
        backward = max(forward, backward)
        updates = (max(0.0, seconds - backward) for seconds in (whole, *local))
        return Computation(forward, backward - forward, *updates)

    def measure_alone(self, per_replica_batch_size):
        """Returns the seconds of a step of this worker, or None if it has too little memory."""
        alone = Alone()
        batch = self._batch_for(per_replica_batch_size, alone)
        if batch is None:
            return None
        return float(np.median(self._times(self._parts[-1:], batch, alone)))

    def _batch_for(self, batch_size, workers):
        """Returns a batch that parts have run with, or None if a worker has too little memory."""
        try:
            batch = self.batch(batch_size)
            # The last part needs the most memory.
            for part in self._parts[-1:] if self._is_traced else self._parts:
                _run(part, batch)
            self._is_traced = True
            (too_much,) = workers.slowest(0)
        except tf.errors.ResourceExhaustedError:
            (too_much,) = workers.slowest(1)
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            if not self._has_open_sizes:
                raise
            raise ValueError(
                f"The model {self.model.name!r} cannot be trained with this value for open sizes "
                f"of its inputs. Received: --unknown-size {self._unknown_size}, which fails with: "
                f"{_reason(error)} Give another size."
            ) from error
        return None if too_much else batch

    def _times(self, parts, batch, workers, most_seconds=_MOST_SECONDS):
        """Returns the times of each part: array [runs, parts]."""
        times = []
        # Parts take turns, so that all see the same drift of the machine.
        while len(times) < _RUNS:
            times.append([self._seconds(part, batch, workers) for part in parts])
            (round_seconds,) = workers.slowest(sum(times[-1]))
            if len(times) * round_seconds > most_seconds:
                break
        return np.array(times)

    def _seconds(self, part, batch, workers):
        workers.wait_for_all()
        start = time.perf_counter()
        _run(part, batch)
        return time.perf_counter() - start

    def batch(self, batch_size):
        """Returns a batch of this many samples: structure of tensors."""

        def values(spec):
            shape = [batch_size, *spec.shape[1:]]
            if spec.dtype.is_floating:
                return tf.random.stateless_normal(shape, seed=[1, 2], dtype=spec.dtype)
            return tf.zeros(shape, spec.dtype)  # an index that every vocabulary has

        return tf.nest.map_structure(lambda tensor: values(self._spec(tensor)), _inputs(self.model))

    def _spec(self, tensor):
        """Returns the spec of batches of any size that the model takes."""
        sizes = [size or self._unknown_size for size in tensor.shape[1:]]
        return tf.TensorSpec([tensor.shape[0], *sizes], tensor.dtype)

    def loss(self, batch):
        """Computes the loss of a batch, with labels that stand for those of the data."""
        loss = loss_of(self.model, self.model(batch, training=True))
        return tf.add_n([loss, *(tf.cast(one, tf.float32) for one in self.model.losses)])

    def gradients(self, batch):
        """Computes the gradients that the optimizer gets: list of tensors, or None in places."""
        with tf.GradientTape() as tape:
            loss = self.loss(batch)
        gradients = tape.gradient(loss, self._variables)
        variables = self.model.trainable_variables
        group = group_of(variables)
        return gradients if group is None else mean_over_members(gradients, variables, group)

    def _update(self, batch):
        return self._update_by(self.optimizer, batch)

    def _local_update(self, batch):
        return self._update_by(self._leaving_adding, batch)

    def _update_by(self, optimizer, batch):
        gradients = self.gradients(batch)
        pairs = zip(gradients, self.model.trainable_variables, strict=True)
        present = [(g, v) for g, v in pairs if g is not None]
        optimizer.apply([g for g, _ in present], [v for _, v in present])
        return optimizer.iterations.value


def _scatter(times):
    """Returns the spread of times as a fraction of their median; of five without the extremes."""
    middle = np.sort(times)[1:-1] if len(times) == _RUNS else times
    return float(np.ptp(middle) / np.median(times))


def _reason(error):
    """Returns the message of an error in a model as one line, without its place in the program."""
    of_layer = re.search(r"\x1b\[1m(.+?)\x1b\[0m", str(error), re.DOTALL)
    if of_layer:
        return " ".join(of_layer[1].split())
    lines = [line for line in str(error).splitlines() if line.strip()]
    # Calls, files and nodes are indented. The last of the other lines says what is wrong.
    return ([line for line in lines if not line[0].isspace()] or lines)[-1].strip()


def _standing_still(optimizer):
    """Returns an optimizer that does the same work, and changes no weights.

    Labels that stand for those of the data would lead the weights to values for which computation
    takes another time. A wrapper that exchanges gradients is not part of an optimizer's saved
    configuration, so the copy does not exchange.
    """
    # Keras finds only its own and registered classes by their names.
    classes = [original_class(one) for one in (optimizer, inner_optimizer(optimizer))]
    custom = {cls.__name__: cls for cls in classes}
    try:
        saved = keras.optimizers.serialize(optimizer)
        inner = saved["config"].get("inner_optimizer", saved)
        inner["config"]["learning_rate"] = 0.0
        if inner["config"].get("gradient_accumulation_steps"):
            inner["config"]["gradient_accumulation_steps"] = None  # every step makes an update
        return keras.optimizers.deserialize(saved, custom_objects=custom)
    except Exception as error:
        raise ValueError(
            "A plan must be able to copy the model's optimizer from its config, as Keras does "
            f"when it loads one. Received: {optimizer!r}, which fails with: "
            f"{type(error).__name__}: {error} Make its get_config return the arguments of its "
            "constructor, or compile with an optimizer of Keras."
        ) from error


def require_plannable(model, unknown_size=None):
    """Raises ValueError for a model that cannot be measured, with a remedy."""
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"A plan needs a Keras model. Received: {model!r} of type {type(model).__name__}. "
            "Return a compiled keras.Model."
        )
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            "A plan needs a compiled model, because it measures updates, too. Received: "
            f'{model.name!r}, which is not compiled. Call for example model.compile("sgd", '
            'loss="mse") before it is saved or returned.'
        )
    if not model.built or not getattr(model, "inputs", None):
        raise ValueError(
            f"A plan needs to know the model's inputs. Received: {model.name!r}, which was not "
            "made from a keras.Input. Begin a Sequential with a keras.Input. For a subclassed "
            "model, return keras.Model(inputs, model(inputs)), compiled, with inputs = "
            "keras.Input(shape)."
        )
    if not model.trainable_variables:
        raise ValueError(
            f"A plan needs a model that can be trained. Received: {model.name!r}, which has no "
            "trainable weights."
        )
    for spec in tf.nest.flatten(_inputs(model)):
        if unknown_size is None and None in spec.shape[1:]:
            raise ValueError(
                f"A plan needs inputs of known size to measure steps. Received: {model.name!r}, "
                f"with an input of shape {tuple(spec.shape)}. Give a value for None, for example "
                "--unknown-size 128."
            )


def _inputs(model):
    """Returns the inputs that a model is called with: structure of Keras tensors."""
    if isinstance(model, keras.Sequential):
        return model.inputs[0]
    return inputs_of(model)


def _with_end(part):
    """Returns `part` with one more result: a tensor that is ready when all others are."""

    def run(batch):
        results = part(batch)
        tensors = tf.nest.flatten(results, expand_composites=True)
        firsts = [tf.reshape(tensor, [-1])[:1] for tensor in tensors if tensor is not None]
        return results, tf.concat([tf.cast(first, tf.float32) for first in firsts], 0)

    return run


def _run(part, batch):
    _, end = part(batch)
    end.numpy()
