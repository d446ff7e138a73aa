"""Advice on model parallelism, from predictions of both kinds of parallelism."""

import dataclasses
from collections.abc import Sequence

from tf_onebit._formatting import format_milliseconds
from tf_onebit.planner.gain import pays
from tf_onebit.planner.paper_models import ModelParallelism
from tf_onebit.planner.prediction import Prediction


@dataclasses.dataclass(frozen=True)
class GroupAdvice:
    """Recommendation of `advise_groups`.

    Attributes:
        members: number of members of a group, or 1 if model parallelism does not pay.
        method: name of the method of exchange between groups, or of all workers.
        sentences: the same in words: list of strings.
    """

    members: int
    method: str
    sentences: list[str]


def advise_groups(whole: Prediction, groups: Sequence[Prediction]) -> GroupAdvice:
    """Compares model parallelism with data parallelism between as many workers.

    All predictions are for the same number of samples of all workers together, and so train alike.
    Model parallelism is recommended if it makes a step at least a tenth faster. The advice tells
    with how many members the papers' model finds computation and communication equal.

    Args:
        whole: `Prediction` of workers that hold the whole model each, with the method that is
            recommended for them.
        groups: list of `Prediction` of groups, at least one, from those with the fewest members
            and the method that changes training least.

    Returns:
        `GroupAdvice`.

    Raises:
        ValueError: without groups, and for other numbers of workers.

    Example:
        >>> from tf_onebit.planner import Activations, Collective, Computation, Method
        >>> from tf_onebit.planner import advise_groups, links_of_groups, predict, uniform_links
        >>> links = links_of_groups(uniform_links(125e6, 1e-3), within=uniform_links(10e9, 1e-5))
        >>> method, whole = Method("full precision", []), Computation(0.1, 0.2)
        >>> message = (Collective(0.0, "all_gather within group", 1e6),)
        >>> pair = Activations(2, forward=message, backward=message)
        >>> alone = predict(method, whole, links, 2)
        >>> both = predict(method, Computation(0.05, 0.1), links, 1, 0.3, activations=pair)
        >>> advise_groups(alone, [both]).members
        2
    """
    others = {prediction.workers for prediction in groups}
    if others != {whole.workers}:
        raise ValueError(
            "Both kinds of parallelism are compared with the same number of workers, "
            f"{whole.workers}. Received: groups of {sorted(others)} workers in all."
        )
    fastest = min(prediction.step_seconds for prediction in groups)
    best = next(one for one in groups if not pays(one.step_seconds, fastest))
    times = (
        f"{_in_words(best)} take {format_milliseconds(best.step_seconds)} per step, and "
        f"{whole.workers} workers with {whole.method} that hold the whole model each take "
        f"{format_milliseconds(whole.step_seconds)}, with as many samples in all"
    )
    if pays(whole.step_seconds, best.step_seconds):
        sentence = f"Model parallelism pays: {times}."
        sentences = [sentence, *_equal_times(best), _LARGER_MINIBATCHES]
        return GroupAdvice(best.members, best.method, sentences)
    sentence = f"Model parallelism does not make steps a tenth faster: {times}."
    return GroupAdvice(1, whole.method, [sentence, *_equal_times(best), _WHERE_IT_PAYS])


_LARGER_MINIBATCHES = (
    "If the minibatch can grow without loss of accuracy, plan for more samples per worker, too: "
    "that favours workers that hold the whole model."
)
_WHERE_IT_PAYS = (
    "It pays if the minibatch cannot grow and the model is large, or if a process has too little "
    "memory for the whole model."
)


def _equal_times(prediction: Prediction) -> list[str]:
    """Returns a sentence on the members that compute as long as they communicate, if any do."""
    if not prediction.waiting_seconds:
        return []
    # Both times of the samples of a group, if one member did all and sent all of it.
    members = prediction.members
    calculation_seconds = members * prediction.alone_seconds
    communication_seconds = members / (members - 1) * prediction.waiting_seconds
    model = ModelParallelism(
        parameters=1,
        operations_per_second=1 / calculation_seconds,
        bytes_per_second=1 / communication_seconds,
        minibatch_size=1,
        activations=1,
        activation_bytes=1,
    )
    return [
        "Members of a group compute as long as they communicate if there are "
        f"{model.optimal_workers():,.1f} of them (Seide et al. 2014b, section 3.1)."
    ]


def _in_words(prediction: Prediction) -> str:
    if prediction.groups == 1:
        return f"{prediction.members} members of one group"
    return f"{prediction.groups} groups of {prediction.members} members with {prediction.method}"
