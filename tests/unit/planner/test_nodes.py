"""Methods of nodes whose workers share an exchange: what they send, and how long it takes."""

import pytest

from tf_onebit.planner import (
    Bucket,
    Collective,
    Computation,
    Method,
    by_node,
    links_of_nodes,
    predict,
    uniform_links,
)

SIZE = 1e6
BUCKET = Bucket(
    SIZE, (Collective(0.04, "all_to_all", 2e5), Collective(0.02, "all_gather", 1e5)), 0.08
)
ONE_BIT = Method("1-bit", [BUCKET], adds=True)


def sent(method, place):
    (bucket,) = method.buckets
    return sum(c.sent_bytes for c in bucket.collectives if c.kind.endswith(place))


@pytest.mark.parametrize("per_node", [1, 2, 8])
def test_a_node_sends_what_a_worker_of_its_own_would(per_node):
    shared = by_node(ONE_BIT, per_node)
    assert per_node * sent(shared, "between nodes") == pytest.approx(BUCKET.sent_bytes)
    # A reduce-scatter and an all-gather.
    assert sent(shared, "within node") == pytest.approx(8 * SIZE * (1 - 1 / per_node))
    assert not shared.adds and shared.workers_per_node == per_node


def test_workers_of_a_node_share_the_work():
    work = (2e-9, 3e-9)
    (bucket,) = by_node(ONE_BIT, 4, work).buckets
    assert bucket.all_work_seconds == pytest.approx(BUCKET.all_work_seconds / 4 + SIZE * sum(work))
    (of_updates,) = by_node(ONE_BIT, 4, work, exchanges_updates=True).buckets
    # The mean gradients are gathered, before workers know their updates.
    more = of_updates.all_work_seconds - bucket.all_work_seconds
    assert more == pytest.approx(SIZE * 3e-9)
    assert of_updates.sent_bytes - bucket.sent_bytes == pytest.approx(4 * SIZE * 3 / 4)


def test_nodes_pay_where_links_between_them_are_slow():
    computation, ethernet = Computation(0.01, 0.02), uniform_links(12.5e6, 1e-4)
    for within, is_faster in ((uniform_links(10e9, 1e-6), True), (ethernet, False)):
        links = links_of_nodes(ethernet, within, ethernet)
        alone, shared = (
            predict(method, computation, links, 8) for method in (ONE_BIT, by_node(ONE_BIT, 4))
        )
        assert (shared.step_seconds < alone.step_seconds) == is_faster
        assert shared.workers == 8


def test_blocks_have_no_exchange_to_share():
    with pytest.raises(ValueError, match="the method 'blocks' with sync_period=16"):
        by_node(Method("blocks", [BUCKET], sync_period=16), 2)
