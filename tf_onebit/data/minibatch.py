"""Minibatches of this process, as iterators that Keras' train function takes."""

import itertools

import tensorflow as tf


class MinibatchSpec(tf.TypeSpec):
    """Type of a `Minibatch`, with which one graph of a step serves minibatches of any size."""

    def __init__(self, element_spec, replicas, strategy):
        self._element_spec = element_spec
        self._replicas = replicas
        self._strategy = strategy
        # A flat list: packing a structure takes as long as drawing its tensors. The graph of a
        # step packs it once, when it is traced.
        self._components = tf.nest.flatten(element_spec) * replicas
        structure = tf.nest.map_structure(lambda leaf: None, element_spec)
        self._key = replicas, repr(structure), tuple(self._components)
        self._hash = hash(self._key)

    value_type = property(lambda self: Minibatch)
    _component_specs = property(lambda self: self._components)

    # TensorFlow's own method compares all that is serialized, in every step.
    def __eq__(self, other):
        return self is other or (isinstance(other, MinibatchSpec) and self._key == other._key)

    def __hash__(self):
        return self._hash

    def is_subtype_of(self, other):
        return self == other

    def most_specific_common_supertype(self, others):
        return self if all(self == other for other in others) else None

    def parts_of(self, components):
        """Yields the batch of each replica."""
        length = len(components) // self._replicas
        for i in range(self._replicas):
            leaves = components[i * length : (i + 1) * length]
            yield tf.nest.pack_sequence_as(self._element_spec, leaves)

    def _serialize(self):
        return (self._element_spec, self._replicas, self._strategy)

    def _to_components(self, value):
        return value.drawn()

    def _from_components(self, components):
        return Minibatch(self, lambda: components)


class Minibatch(tf.data.Iterator):
    """One minibatch, which is read before the step that trains on it begins.

    So no step runs only to find the end of the data. Such a step would still be counted, decay
    the weights, and do all else that does not depend on data.

    Args:
        spec: `MinibatchSpec`.
        draw: function that returns one list: the tensors of a batch for each replica of this
            process. It may be called more than once in a step.
    """

    def __init__(self, spec, draw):
        self._spec = spec
        self.drawn = draw

    @property
    def _type_spec(self):
        return self._spec

    @property
    def element_spec(self):
        return self._spec._element_spec

    def get_next(self):
        parts = self._spec.parts_of(self.drawn())
        if self._spec._strategy is None:
            return next(parts)
        return self._spec._strategy.experimental_distribute_values_from_function(
            lambda context: next(parts)
        )

    def get_next_as_optional(self):
        raise NotImplementedError(
            "With several steps per execution, each step must draw one minibatch."
        )

    def __next__(self):
        return self.get_next()


class Minibatches:
    """Minibatches for a model that runs several steps in a call (`steps_per_execution`).

    Args:
        spec: `MinibatchSpec`.
        draw: function that returns the tensors of the next minibatch, or None at the end.
    """

    def __init__(self, spec, draw):
        self._spec = spec
        self._draw = draw

    def __iter__(self):
        return self

    def __next__(self):
        tensors = self._draw()
        if tensors is None:
            raise StopIteration
        return Minibatch(self._spec, lambda: tensors).get_next()


class Peek:
    """Minibatches for a trial.

    Attributes:
        samples: number of samples of all of them, over all workers.
        sizes: list of the number of samples of each.
    """

    def __init__(self, minibatch_of, place, cuts):
        self._minibatch_of = minibatch_of
        self._place = place
        self._cuts = cuts
        self.samples = cuts[-1] - cuts[0]
        self.sizes = [stop - start for start, stop in itertools.pairwise(cuts)]

    def __len__(self):
        return len(self._cuts) - 1

    def __iter__(self):
        for start, stop in itertools.pairwise(self._cuts):
            yield self._minibatch_of(self._place, start, stop)
