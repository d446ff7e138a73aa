"""Plan: measurements of a model, this machine and its links, and advice from them."""

import dataclasses

from tf_onebit._preflight.doubts import doubts_about
from tf_onebit._preflight.effects import as_computed, as_exchanged, with_notes
from tf_onebit._preflight.groups import measure_members, predict_groups
from tf_onebit._preflight.measurements import measure
from tf_onebit._preflight.program import lines_for, lines_for_groups
from tf_onebit.planner import advise, advise_groups, interpolated, predict


@dataclasses.dataclass(frozen=True)
class Plan:
    """Results of `tf-onebit plan`, with times in seconds.

    Attributes:
        per_replica_batch_size: number of samples of a worker in a step.
        sizes: number of values of each gradient.
        computations: dictionary: `planner.Computation` by number of samples.
        alone_seconds: computation of a step of one worker while the others wait.
        links: dictionary: `planner.Link` by kind of collective.
        measured_workers: number of workers that links were measured between, or 1 if links are
            assumed.
        predictions: list of `planner.Prediction`.
        advice: dictionary: `planner.Advice` by number of workers.
        programs: dictionary: lines of Python that follow the advice, by number of workers.
        doubts: list of sentences on unreliable times.
        members: dictionary: `Member` by number of members of a group.
        group_advice: dictionary: `planner.GroupAdvice` by number of workers.
    """

    per_replica_batch_size: int
    sizes: list
    computations: dict
    alone_seconds: float
    links: dict
    measured_workers: int
    predictions: list
    advice: dict
    programs: dict
    doubts: list
    members: dict = dataclasses.field(default_factory=dict)
    group_advice: dict = dataclasses.field(default_factory=dict)


def make_plan(make_model, workers, links, links_within, options):
    """Measures a model, predicts times of its steps, and recommends a method.

    Args:
        make_model: function that returns a Keras model, compiled. The first one is not changed.
            Others are split among the members of groups.
        workers: `Links` or `Alone`.
        links: dictionary of `planner.Link`, or None to measure them.
        links_within: the same between the members of a group.
        options: the command's arguments, from `argparse`.

    Returns:
        `Plan`.

    Raises:
        ValueError: for a model that cannot be measured, or not be split as asked for.
    """
    least = max(2, workers.world_size)
    world_sizes = sorted(set(options.workers or [least, 2 * least, 4 * least]))
    members = measure_members(make_model, workers, world_sizes, options)
    model = make_model()
    measured = measure(model, workers, links, links_within, world_sizes, options)
    optimizer = model.optimizer
    in_groups = predict_groups(
        members, optimizer, workers, world_sizes, measured, links_within, options
    )
    size, alone = measured.per_replica_batch_size, measured.alone_seconds
    computations = {n: as_computed(c, optimizer) for n, c in measured.computations.items()}
    methods = {n: as_exchanged(measured.methods[n], n, optimizer) for n in world_sizes}
    computation = interpolated(computations, size)
    whole = {
        n: {
            method.name: predict(method, computation, measured.links_of(n), n, alone)
            for method in methods[n]
        }
        for n in world_sizes
    }
    advice = {
        n: advise(
            methods[n],
            {size: computation} if measured.has_sparse else computations,
            measured.links_of(n),
            n,
            size,
            measured.sizes,
            alone,
        )
        for n in world_sizes
    }
    chosen = {n: _named(methods[n], one.method) for n, one in advice.items()}
    programs = {n: lines_for(chosen[n], one.bucket_bytes) for n, one in advice.items()}
    group_advice = {}
    for n, pairs in in_groups.items():
        predictions = [prediction for _, prediction in pairs]
        one = group_advice[n] = advise_groups(whole[n][advice[n].method], predictions)
        if one.members > 1:
            of_size = [method for method, p in pairs if p.members == one.members]
            programs[n] = lines_for_groups(_named(of_size, one.method), one.members, size)
    predictions = [
        prediction
        for n in world_sizes
        for prediction in (*whole[n].values(), *(p for _, p in in_groups.get(n, ())))
    ]
    return Plan(
        size,
        measured.sizes,
        measured.computations,
        alone,
        measured.links,
        measured.measured_workers,
        predictions,
        {n: with_notes(one, chosen[n], model) for n, one in advice.items()},
        programs,
        doubts_about(measured.computations, measured.scatter, members),
        members,
        group_advice,
    )


def _named(methods, name):
    return next(method for method in methods if method.name == name)
