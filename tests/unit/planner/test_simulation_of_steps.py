"""The simulation of steps against cases that were worked out by hand."""

import time

import numpy as np
import pytest

from tf_onebit.planner import (
    Activations,
    Bucket,
    Collective,
    Computation,
    Link,
    Worker,
    simulate,
    within_nodes,
)

COMPUTATION = Computation(1.0, 2.0, 0.5)


def bucket(size, sent_bytes, work=0.0, after=0.0, kind="all_gather"):
    return Bucket(size, (Collective(work, kind, sent_bytes),), after)


def worker(rate=1.0, latency=0.0, work=0.0, computation=COMPUTATION):
    return Worker(computation, {"all_gather": Link(latency, rate, work)})


def step_seconds(buckets, workers=None, **arguments):
    return simulate(workers or [(worker(), 2)], buckets, **arguments).mean_step_seconds


def test_without_an_exchange_a_step_is_its_computation():
    assert step_seconds([]) == pytest.approx(COMPUTATION.seconds)


def test_one_bucket_is_sent_after_all_is_computed():
    assert step_seconds([bucket(1, 4.0)]) == pytest.approx(1 + 2 + 4 + 0.5)


def test_early_buckets_are_sent_while_others_are_computed():
    # The first is ready after 1 + 1, and sent by 3. Then the second follows.
    assert step_seconds([bucket(1, 1.0), bucket(1, 1.0)]) == pytest.approx(1 + 2 + 1 + 0.5)
    # Three seconds for each: the second waits for the first.
    assert step_seconds([bucket(1, 3.0), bucket(1, 3.0)]) == pytest.approx(2 + 3 + 3 + 0.5)


def test_buckets_come_in_proportion_to_their_sizes():
    # The first, a quarter, is ready at 1 + 0.5 and sent by 3.5. The second ends at 4.5.
    assert step_seconds([bucket(1, 2.0), bucket(3, 1.0)]) == pytest.approx(3.5 + 1 + 0.5)


def test_work_of_the_exchange_takes_the_time_of_computation():
    assert step_seconds([bucket(1, 0.0, work=0.25, after=0.5)]) == pytest.approx(3.5 + 0.75)
    assert step_seconds([bucket(1, 4.0, work=0.25, after=0.5)]) == pytest.approx(3.5 + 4.75)


def test_sending_slows_computation_down():
    # The first is sent for a second. Meanwhile the second bucket's half has half of the processor.
    slowed = step_seconds([bucket(1, 1.0), bucket(1, 0.0)], [(worker(work=0.5), 2)])
    assert slowed == pytest.approx(3.5 + 0.5)


def test_each_collective_takes_work_beside_its_bytes():
    # Of the second that sending takes, 0.25 go to the byte, and 0.5 to the collective itself.
    links = {"all_gather": Link(0.0, 1.0, work_seconds_per_byte=0.25, work_seconds=0.5)}
    slowed = step_seconds([bucket(1, 1.0), bucket(1, 0.0)], [(Worker(COMPUTATION, links), 2)])
    assert slowed == pytest.approx(3.5 + 0.75)


def test_latency_counts_for_each_collective():
    late = Bucket(1, 3 * (Collective(0.0, "all_gather", 0.0),))
    assert step_seconds([late], [(worker(latency=0.1), 2)]) == pytest.approx(3.5 + 0.3)


def test_delayed_exchange_overlaps_with_the_next_step():
    hidden = step_seconds([bucket(1, 3.0)], steps=5, delay=1)
    assert hidden == pytest.approx(COMPUTATION.seconds)
    run = simulate([(worker(), 2)], [bucket(1, 8.0)], steps=6, delay=1)
    assert run.step_seconds[-1] == pytest.approx(8.0)


def test_the_slowest_link_decides():
    uneven = [worker(), worker(rate=0.25)]
    assert step_seconds([bucket(1, 1.0)], uneven) == pytest.approx(3.5 + 4)


def test_stragglers_hold_up_all():
    slowdowns = np.ones([3, 4])
    slowdowns[2, 1] = 2.0
    run = simulate([(worker(), 4)], [bucket(1, 1.0)], steps=3, slowdowns=slowdowns)
    # The update of the straggler is late as well, and the others' next step is unknown.
    np.testing.assert_allclose(run.step_seconds, [4.5, 4.5, 6 + 1 + 1.0])


def test_alike_workers_are_like_each_of_them():
    buckets = [bucket(2, 0.5, 0.1, 0.2), bucket(1, 0.7, 0.1, 0.2), bucket(1, 0.1)]
    of_all = simulate(5 * [worker(work=0.3)], buckets).step_seconds
    np.testing.assert_allclose(simulate([(worker(work=0.3), 5)], buckets).step_seconds, of_all)


def test_nodes_add_up_before_they_exchange():
    links = {"all_gather": Link(0.0, 1.0), "within node": Link(0.0, 100.0)}
    buckets = within_nodes([bucket(10.0, 5.0)], workers_per_node=4)
    # 2 (G - 1) / G of 40 bytes.
    assert buckets[0].sent_bytes == 5.0 + 60.0
    run = simulate([(Worker(COMPUTATION, links), 2)], buckets)
    assert run.mean_step_seconds == pytest.approx(3.5 + 0.6 + 5.0)


def member(forward=(), backward=(), computation=COMPUTATION, latency=0.0):
    """Returns a worker that waits for messages of these sizes, at one byte per second."""
    passes = (
        tuple(Collective(0.0, "all_gather within group", size) for size in sizes)
        for sizes in (forward, backward)
    )
    links = {"all_gather": Link(0.0, 1.0), "all_gather within group": Link(latency, 1.0)}
    return Worker(computation, links, Activations(2, *passes))


def test_members_wait_for_each_of_their_messages():
    waiting = member([0.5, 0.5], [0.25, 0.25, 0.25], latency=0.1)
    assert step_seconds([], [(waiting, 2)]) == pytest.approx(3.5 + 1.0 + 0.75 + 5 * 0.1)


def test_gradients_wait_for_the_activations_before_them():
    # The pass begins with a message until 1 + 1, and half of it is computed at 3. The gradients
    # that are ready then are sent until 7. The second message waits for them, until 8. The other
    # half takes until 9, and the last gradients are sent until 9.5.
    gradients = [bucket(1, 4.0), bucket(1, 0.5)]
    assert step_seconds(gradients, [(member([], [1.0, 1.0]), 2)]) == pytest.approx(9.5 + 0.5)
    # A message that is shorter than the computation before it does not hold up gradients.
    gradients = [bucket(1, 0.5), bucket(1, 0.5)]
    assert step_seconds(gradients, [(member([], [1.0]), 2)]) == pytest.approx(1 + 1 + 2 + 1.0)


def test_late_gradients_are_sent_while_members_wait_for_activations():
    late = simulate([(member([1.0, 1.0]), 2)], [bucket(1, 2.0)], steps=6, delay=1)
    # The gradients take two seconds. The update and half of the forward pass hide one of them, and
    # for the other one the first message waits.
    assert late.step_seconds[-1] == pytest.approx(3.5 + 1.0 + 1.0 + 1.0)
    # The message of a backward pass comes before it: the update and the forward pass hide more.
    late = simulate([(member([], [1.0]), 2)], [bucket(1, 2.0)], steps=6, delay=1)
    assert late.step_seconds[-1] == pytest.approx(3.5 + 1.0 + 0.5)


def test_a_thousand_workers_with_stragglers_are_quick():
    slowdowns = np.random.default_rng(1).lognormal(0, 0.1, [3, 1000])
    buckets = 8 * [bucket(1, 0.01, 0.01, 0.01)]
    start = time.process_time()
    run = simulate([(worker(), 1000)], buckets, steps=3, slowdowns=slowdowns)
    assert run.mean_step_seconds > 1.2 * COMPUTATION.seconds
    assert time.process_time() - start < 60  # it ends; benchmarks/plan.py has the figure


@pytest.mark.parametrize(
    "workers, arguments, message",
    [
        ([], {}, "at least one worker. Received: workers="),
        ([(worker(), 0)], {}, "at least one worker. Received: workers="),
        ([(worker(), 2.5)], {}, "and whole ones. Received: workers=2.5"),
        ([worker()], {"steps": 0}, "steps must be a whole number, at least 1. Received: steps=0"),
        ([worker()], {"delay": -1}, "delay must be a whole number, at least 0. Received: delay=-1"),
        ([worker()], {"slowdowns": np.ones([2, 2])}, r"\[3, 1\]. Received: .* \(2, 2\)"),
        ([worker()], {"slowdowns": [[1], [-1], [2]]}, "must be a positive number.*slowdowns=-1"),
        ([worker()], {"slowdowns": [[1], [np.nan], [2]]}, "positive number.*slowdowns=nan"),
    ],
)
def test_refuses_what_is_no_job(workers, arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate(workers, [], **arguments)


def test_refuses_links_without_bandwidth():
    with pytest.raises(ValueError, match="bytes_per_second must be positive.*Received: .*=0"):
        Link(0.0, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Link(-1.0, 1.0),
        lambda: Link(0, 1.0, work_seconds=-1),
        lambda: Computation(-1.0, 0.0),
        lambda: bucket(1, -4),
        lambda: Computation(np.inf, 0.0),
        lambda: bucket(1, np.nan),
    ],
)
def test_refuses_amounts_that_are_negative_or_not_finite(make):
    with pytest.raises(ValueError, match=r"at least 0. Received: \w+=(-|inf|nan)"):
        make()


def test_refuses_collectives_without_a_link():
    message = r"links for \['all_gather'\], and a collective of the kind 'within node'"
    with pytest.raises(ValueError, match=message):
        simulate([worker()], within_nodes([bucket(1, 4)], 2))
