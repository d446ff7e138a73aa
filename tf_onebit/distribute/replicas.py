"""Mapping of the replicas of `tf.distribute` to the workers of an exchange."""

import tensorflow as tf

from tf_onebit._framework_internals.tf_strategies import regroup
from tf_onebit.collectives.ordered_sum import added_in_order


def exchange(context, gradient_exchange, gradients, variables, exchanging=None, are_alike=False):
    """Exchanges gradients in a replica context.

    If several devices form one worker, their gradients are first added in full precision.

    Args:
        context: `tf.distribute.ReplicaContext`.
        gradient_exchange: `GradientExchange`.
        gradients: list of this replica's gradients.
        variables: list of their variables.
        exchanging: method of `gradient_exchange` to call. Default: `gradient_exchange` itself.
        are_alike: whether the devices of a worker have the same gradients already.

    Returns:
        List of exchanged gradients for this replica.
    """
    exchanging = exchanging or gradient_exchange

    def merged(strategy, gradients):
        by_device = _by_device(strategy, gradients)
        workers = len(gradient_exchange.workers.group.ranks)
        if len(by_device) > workers:
            of_workers = [gradient_exchange.workers.of_worker(i, by_device) for i in range(workers)]
            by_worker = [own[0] if are_alike else _sums(own) for own in of_workers]
            exchanged = exchanging(by_worker, variables) * (len(by_device) // workers)
        else:
            exchanged = exchanging(by_device, variables)
        return regrouped(exchanged)

    return context.merge_call(merged, (list(gradients),))


def regrouped(by_device):
    """Returns lists of tensors, one per device of this process, as one list of all replicas."""
    return regroup(tuple(map(list, by_device)))


def branch(context, predicate, then, otherwise, gradients):
    """Calls one of two functions on all replicas of this process, which decide together.

    Args:
        context: `tf.distribute.ReplicaContext`.
        predicate: function from the gradients of the first replica to a boolean scalar.
        then, otherwise: functions of a list of gradients.
        gradients: list of this replica's gradients.
    """

    def merged(strategy, gradients):
        def on_replicas(function):
            def call():
                strategy.extended.call_for_each_replica(function, (gradients,))
                return True

            return call

        first = _by_device(strategy, gradients)[0]
        tf.cond(predicate(first), on_replicas(then), on_replicas(otherwise))

    context.merge_call(merged, (list(gradients),))


def all_finite(context, gradient_exchange, gradients):
    """Tells whether the gradients of all replicas of all workers are finite: boolean scalar."""

    def merged(strategy, gradients):
        by_device = _by_device(strategy, gradients)
        each = len(by_device) // len(gradient_exchange.workers.engine.ranks)
        of_workers = [by_device[i : i + each] for i in range(0, len(by_device), each)]
        (finite, *_) = gradient_exchange.all_finite([sum(own, []) for own in of_workers])
        return finite

    return context.merge_call(merged, (list(gradients),))


def _by_device(strategy, gradients):
    """Returns lists of gradients, one per device of this process."""
    columns = [strategy.experimental_local_results(gradient) for gradient in gradients]
    return [list(row) for row in zip(*columns, strict=True)]


def _sums(by_device):
    return [sum_of_replicas(column) for column in zip(*by_device, strict=True)]


def sum_of_replicas(gradients):
    """Sums one gradient over the devices of this process.

    Args:
        gradients: list of tensors, of `tf.IndexedSlices`, or of None, one per device.
    """
    if len(gradients) == 1 or gradients[0] is None:
        return gradients[0]
    if isinstance(gradients[0], tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([gradient.values for gradient in gradients], axis=0),
            tf.concat([gradient.indices for gradient in gradients], axis=0),
            gradients[0].dense_shape,
        )
    return added_in_order(gradients)
