"""The processes of a job, for callbacks."""

import hashlib
import json

import numpy as np
import tensorflow as tf

from tf_onebit._framework_internals.keras_models import strategy_of
from tf_onebit._shares import group_of
from tf_onebit._training.model_optimizers import gradient_exchanges_of
from tf_onebit.collectives.horovod_size import horovod_size_or_1
from tf_onebit.collectives.requests import AllGather, one_request
from tf_onebit.exchanges.handshake import gather_texts, handshake

# All gathers of callbacks have one name and shape, so that workers at different places meet, too.
_SCOPE = "tf_onebit/callbacks"
_DIGEST_WORDS = 4
_NUMBERS = 8


class Workers:
    """The processes of a job that a model's optimizers connect.

    Processes name the occasion of every gather. If the occasions differ, all raise an error,
    instead of taking each other's numbers for something else.

    Args:
        model: Keras model.
        purpose: begin of the error's "... the workers of a job", such as "BackupAndRestore saves".

    Attributes:
        in_strategy: whether the model is in the scope of a strategy.
        rank: rank of this process, 0 if it is alone.
        count: number of processes.
        world_size: number of workers. A process that is alone may have several.
        members: number of processes in a model-parallel group, 1 without groups.
        member: number of this process within its group.

    Raises:
        ValueError: if Horovod connects several workers, and the model's optimizer does not.
    """

    def __init__(self, model, purpose):
        exchanges = gradient_exchanges_of(model)
        engine = exchanges[0].workers.engine if exchanges else None
        if engine is None and horovod_size_or_1() > 1:
            raise ValueError(
                f"{purpose} the workers of a job through their optimizer. Received: "
                f"{horovod_size_or_1()} workers of Horovod, and a model whose optimizer does not "
                "connect them. Compile it with tf_onebit.horovod.DistributedOptimizer."
            )
        self.in_strategy = strategy_of(model) is not None
        # The process is alone if it has all workers.
        alone = engine is None or len(engine.ranks) == engine.world_size
        self._engine = None if alone else engine
        self.rank = self._engine.ranks[0] if self._engine else 0
        self.count = self._engine.world_size if self._engine else 1
        self.world_size = engine.world_size if engine else 1
        group = group_of(model.variables)
        self.members, self.member = (group.processes, group.member) if group else (1, 0)

    def place_among(self, count):
        """Returns which of an earlier run's `count` processes this one takes its variables from."""
        return self.rank if count == self.count else self.member

    def all_true(self, value, occasion):
        return bool(np.all(self.gather([int(value)], occasion)))

    def any_true(self, value, occasion):
        """Tells whether `value` is true on some worker. All call this after the same step."""
        engine = self._engine
        return bool(np.any(self._gather([int(value)], occasion, engine and engine.run)))

    def wait_for_all(self, occasion):
        self.gather([], occasion)

    def of_first(self, numbers, occasion):
        """Returns rank 0's list of whole numbers. All lists must have the same length."""
        return self.gather(numbers, occasion)[0].tolist()

    def first_problem(self, problem, occasion):
        """Returns on all workers the problem of the first that has one, or "" without problems.

        Args:
            problem: string, "" for no problem.
            occasion: as in `gather`.
        """
        text = problem.encode()
        (lengths,) = self.gather([len(text)], occasion).T
        if not lengths.any():
            return ""
        return next(filter(None, self._texts(text, lengths))).decode()

    def require_alike(self, callback, settings):
        """Raises ValueError on all workers if a callback's settings differ between them.

        Args:
            callback: name of the callback.
            settings: dictionary of JSON values.
        """
        if self._engine is not None:
            mine = [(f"{name} of {callback}", json.dumps(v)) for name, v in settings.items()]
            self._engine.meet([handshake(callback, mine)])

    def mean(self, value, occasion):
        """Returns the mean of a float over the processes, with the same bits on all."""
        parts = np.array([value], np.float64).view(np.int32).tolist()
        gathered = np.ascontiguousarray(self.gather(parts, occasion), np.int32)
        return float(np.mean(gathered.view(np.float64)))

    def gather(self, numbers, occasion):
        """Gathers the numbers of all processes.

        Args:
            numbers: list of int32, at most `_NUMBERS`. All lists must have the same length.
            occasion: a few words for the occasion at which all of them meet, such as "backup after
                7 batches of epoch 1".

        Returns:
            NumPy array int32 `[count, len(numbers)]`.

        Raises:
            ValueError: on all workers, if they meet at different occasions.
        """
        return self._gather(numbers, occasion, self._engine and self._engine.meet)

    def _gather(self, numbers, occasion, run):
        if self._engine is None:
            return np.array([numbers], np.int32)
        text = occasion.encode()
        digest = np.frombuffer(hashlib.sha256(text).digest(), np.int32)[:_DIGEST_WORDS]
        message = np.zeros([1, _DIGEST_WORDS + 1 + _NUMBERS], np.int32)
        message[0, :_DIGEST_WORDS], message[0, _DIGEST_WORDS] = digest, len(text)
        message[0, _DIGEST_WORDS + 1 :][: len(numbers)] = numbers
        mine = AllGather(tf.constant(message), _SCOPE)
        gathered = run([one_request(mine)])[0].numpy()
        if (gathered[:, : _DIGEST_WORDS + 1] == gathered[0, : _DIGEST_WORDS + 1]).all():
            return gathered[:, _DIGEST_WORDS + 1 :][:, : len(numbers)]
        occasions = self._texts(text, gathered[:, _DIGEST_WORDS])
        told = by_rank(one.decode() for one in occasions)
        raise ValueError(
            f"Workers wait for each other at different places: {told}. Every worker must have the "
            "same number of batches, and the same callbacks. Give all of them equally many "
            "samples, or pass steps_per_epoch to fit."
        )

    def _texts(self, text, lengths):
        """Gathers the texts of all processes: list of bytes."""
        if self._engine is None:
            return [text]
        return self._engine.run([gather_texts(text, lengths.tolist(), f"{_SCOPE}/text")])[0]


def by_rank(values):
    """Formats the workers' values as text, with ranks of equal values together."""
    ranks = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return "; ".join(
        f"rank{'s' if len(those) > 1 else ''} {', '.join(map(str, those))}: {value}"
        for value, those in ranks.items()
    )


def may_differ_in_steps(model):
    """Tells whether the workers of a job may make different numbers of steps."""
    return any(map(_may_differ_in_steps, gradient_exchanges_of(model)))


def require_together(model, callback):
    """Raises ValueError where the workers of a job do not make every step together.

    Args:
        model: Keras model.
        callback: name of the callback whose decisions all workers make at the same step.
    """
    for exchange in gradient_exchanges_of(model):
        if _may_differ_in_steps(exchange):
            raise ValueError(
                f"{callback} needs workers that make every step together. Received: an optimizer "
                f"with the exchange {type(exchange.template).__name__}, whose workers train apart. "
                "Use another exchange, with DistributedOptimizer or a strategy, or leave it out."
            )


def _may_differ_in_steps(exchange):
    workers = exchange.workers
    alone = workers.engine.world_size == 1 and not exchange.is_asynchronous
    return not (workers.are_in_step or alone)
