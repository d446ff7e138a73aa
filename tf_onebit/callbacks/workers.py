"""The processes of a job, as callbacks find them."""

import hashlib
import json

import numpy as np
import tensorflow as tf

from tf_onebit.collectives.horovod_size import horovod_size_or_1
from tf_onebit.collectives.requests import AllGather, one_request
from tf_onebit.exchanges.handshake import gather_texts, handshake
from tf_onebit.training.model_optimizers import gradient_exchanges_of

# One name and shape for all that callbacks meet for: workers at different places meet, too.
_SCOPE = "tf_onebit/callbacks"
_DIGEST_WORDS = 4
_NUMBERS = 8


class Workers:
    """The processes of a job, as a model's optimizers know them.

    Whatever they meet for, they say on what occasion: those that differ are told so, instead of
    taking each other's numbers for what they are not.

    Args:
        model: Keras model.
        purpose: what a callback does with them, as "BackupAndRestore saves".

    Raises:
        ValueError: if Horovod connects several workers, and the model's optimizer does not.
    """

    def __init__(self, model, purpose):
        exchanges = gradient_exchanges_of(model)
        engine = exchanges[0].engine if exchanges else None
        if engine is None and horovod_size_or_1() > 1:
            raise ValueError(
                f"{purpose} the workers of a job through their optimizer. Received: "
                f"{horovod_size_or_1()} workers of Horovod, and a model whose optimizer does not "
                "connect them. Compile it with tf_onebit.horovod.DistributedOptimizer."
            )
        self.in_strategy = model._distribute_strategy is not None
        # Where all workers are in this process, it is alone.
        alone = engine is None or len(engine.ranks) == engine.world_size
        self._engine = None if alone else engine
        self.rank = self._engine.ranks[0] if self._engine else 0
        self.count = self._engine.world_size if self._engine else 1
        self.world_size = engine.world_size if engine else 1

    def place_among(self, count):
        """Of an earlier run's processes, the one whose variables this one takes over."""
        return self.rank if count == self.count else 0

    def all_true(self, value, occasion):
        return bool(np.all(self.gather([int(value)], occasion)))

    def any_true(self, value, occasion):
        """Tells whether one of the workers says so. All ask after the same step."""
        engine = self._engine
        return bool(np.any(self._gather([int(value)], occasion, engine and engine.run)))

    def wait_for_all(self, occasion):
        self.gather([], occasion)

    def of_first(self, numbers, occasion):
        """What rank 0 gives for a list of whole numbers, which is as long on all."""
        return self.gather(numbers, occasion)[0].tolist()

    def first_problem(self, problem, occasion):
        """The problem of the first worker that has one, on all of them, or "" if none has.

        Args:
            problem: string, "" for none.
            occasion: at which they tell, as in `gather`.
        """
        text = problem.encode()
        (lengths,) = self.gather([len(text)], occasion).T
        if not lengths.any():
            return ""
        return next(filter(None, self._texts(text, lengths))).decode()

    def require_alike(self, callback, settings):
        """Raises ValueError on all workers if a callback's settings differ between them.

        Args:
            callback: its name.
            settings: dictionary of what JSON can hold.
        """
        if self._engine is not None:
            mine = [(f"{name} of {callback}", json.dumps(v)) for name, v in settings.items()]
            self._engine.meet([handshake(callback, mine)])

    def mean(self, value, occasion):
        """The mean of a float over the processes, to the same bits on all."""
        parts = np.array([value], np.float64).view(np.int32).tolist()
        gathered = np.ascontiguousarray(self.gather(parts, occasion), np.int32)
        return float(np.mean(gathered.view(np.float64)))

    def gather(self, numbers, occasion):
        """The numbers of all processes.

        Args:
            numbers: list of int32, `_NUMBERS` at most, as many on all.
            occasion: at which all of them meet, in a few words, as "backup after 7 batches of
                epoch 1".

        Returns:
            NumPy array `[count, len(numbers)]`.

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
            f"Workers meet at different places: {told}. Every worker must have the same number of "
            "batches, and the same callbacks. Give all of them equally many samples, or pass "
            "steps_per_epoch to fit."
        )

    def _texts(self, text, lengths):
        """The texts of all processes: list of bytes."""
        if self._engine is None:
            return [text]
        return self._engine.run([gather_texts(text, lengths.tolist(), f"{_SCOPE}/text")])[0]


def by_rank(values):
    """Words for what each worker has, those with the same together."""
    ranks = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return "; ".join(
        f"rank{'s' if len(those) > 1 else ''} {', '.join(map(str, those))}: {value}"
        for value, those in ranks.items()
    )


def may_differ_in_steps(model):
    """Tells whether the workers of a job may make different numbers of steps."""
    return any(map(_trains_apart, gradient_exchanges_of(model)))


def require_together(model, callback):
    """Raises ValueError where the workers of a job do not make every step together.

    Args:
        model: Keras model.
        callback: name of the callback whose decisions all make at the same step.
    """
    for exchange in gradient_exchanges_of(model):
        if _trains_apart(exchange):
            raise ValueError(
                f"{callback} needs workers that make every step together. Received: an optimizer "
                f"with the exchange {type(exchange.template).__name__}, whose workers train apart. "
                "Use another exchange, with DistributedOptimizer or a strategy, or leave it out."
            )


def _trains_apart(exchange):
    alone = exchange.engine.world_size == 1 and not exchange.is_asynchronous
    return not (exchange.is_in_step or alone)
