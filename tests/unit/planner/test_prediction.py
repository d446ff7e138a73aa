"""Predictions about methods, and the advice that follows from them."""

import dataclasses
import math

import pytest

from tf_onebit.planner import (
    Bucket,
    Collective,
    Computation,
    Link,
    Method,
    advise,
    interpolated,
    narrowed,
    predict,
    regrouped,
    uniform_links,
    with_more_workers,
    within_nodes,
)

COMPUTATION = Computation(0.1, 0.2, 0.02)
SIZES = [1_000_000] * 8
MEASURED = {32: Computation(0.05, 0.1, 0.02), 64: COMPUTATION, 128: Computation(0.2, 0.4, 0.02)}


def method(name, bytes_per_value, work=0.0, **arguments):
    buckets = [
        Bucket(size, (Collective(work / 2, "all_gather", bytes_per_value * size),), work / 2)
        for size in SIZES
    ]
    return Method(name, buckets, **arguments)


FULL = method("full precision", 4.0)
ONE_BIT = method("1-bit", 0.15, work=0.001)
BLOCKS = method("blocks of 16, 1-bit", 0.15, work=0.002, sync_period=16)
METHODS = [FULL, ONE_BIT, dataclasses.replace(ONE_BIT, name="1-bit, delayed", delay=1), BLOCKS]


def test_speed_up_is_of_all_workers_together():
    for one in METHODS:
        prediction = predict(one, COMPUTATION, uniform_links(125e6, 1e-3), 4)
        assert prediction.speed_up == pytest.approx(4 * 0.32 / prediction.step_seconds)
        assert prediction.step_seconds >= prediction.computation_seconds == COMPUTATION.seconds


def test_parts_are_told_however_they_overlap():
    prediction = predict(FULL, COMPUTATION, uniform_links(125e6, 1e-3), 2)
    assert prediction.sending_seconds == pytest.approx(8 * (1e-3 + 4e6 / 125e6))
    assert prediction.coding_seconds == 0
    assert predict(ONE_BIT, COMPUTATION, uniform_links(125e6, 0.0), 2).coding_seconds == (
        pytest.approx(8 * 0.001)
    )


def test_an_exchange_that_adds_takes_the_place_of_the_update():
    links = uniform_links(125e9, 0.0)
    computation = Computation(0.1, 0.2, 0.5, local_update_seconds=0.03)
    adding = dataclasses.replace(ONE_BIT, adds=True)
    prediction = predict(adding, computation, links, 2)
    assert prediction.step_seconds == pytest.approx(0.33 + 8 * 0.001, rel=1e-3)
    assert prediction.computation_seconds == pytest.approx(0.33)
    assert prediction.coding_seconds == pytest.approx(8 * 0.001)
    # One worker alone makes the whole update.
    assert prediction.speed_up == pytest.approx(2 * 0.8 / prediction.step_seconds)
    assert predict(ONE_BIT, computation, links, 2).step_seconds > 0.8


def test_local_updates_are_made_while_gradients_are_sent_and_added_after_the_last():
    # The first message takes as long as the second gradient and its update.
    links = uniform_links(1.0, 0.0)
    adding = Method("1-bit", 2 * [Bucket(1, (Collective(0.0, "all_gather", 2.0),), 1.0)], adds=True)
    computation = Computation(1.0, 2.0, 9.0, local_update_seconds=2.0)
    assert predict(adding, computation, links, 2).step_seconds == pytest.approx(1 + 2 + 4 + 2)
    checked = computation.without_overlap()
    assert predict(adding, checked, links, 2).step_seconds == pytest.approx(3 + 1 + 4 + 2)


def test_late_gradients_cannot_come_faster_than_links_let_them():
    bucket = Bucket(1e5, (Collective(0.0, "all_to_all", 1e3), Collective(0.0, "all_gather", 1e3)))
    for latency in (1.1e-3, 2e-3, 20e-3):
        links = uniform_links(125e6, latency)
        late = predict(Method("late", [bucket], delay=1), Computation(0.0007, 0.0004), links, 2)
        assert late.step_seconds == pytest.approx(late.sending_seconds, rel=0.01)


def test_bottleneck_is_what_is_longest():
    slow, fast = uniform_links(12.5e6, 1e-3), uniform_links(1e12, 0.0)
    assert predict(FULL, COMPUTATION, slow, 2).bottleneck == "sending"
    assert predict(FULL, COMPUTATION, fast, 2).bottleneck == "computation"
    laborious = method("laborious", 0.1, work=0.1)
    assert predict(laborious, COMPUTATION, fast, 2).bottleneck == "coding"
    # This holds even if computation is hidden behind it.
    delayed = dataclasses.replace(ONE_BIT, delay=1)
    link_bound = predict(delayed, COMPUTATION, uniform_links(2.4e6, 0.0), 2)
    assert link_bound.step_seconds == pytest.approx(0.5, rel=0.01)
    assert link_bound.bottleneck == "sending"


def test_blocks_are_paid_by_all_their_steps():
    links = uniform_links(125e6, 0.0)
    at_once = sum(bucket.sent_bytes for bucket in BLOCKS.buckets) / 125e6
    work = sum(bucket.all_work_seconds for bucket in BLOCKS.buckets)
    block = predict(BLOCKS, COMPUTATION, links, 2).step_seconds - COMPUTATION.seconds
    assert max(at_once, work) < 16 * block <= at_once + work
    assert predict(BLOCKS, COMPUTATION, links, 2).sent_bytes == pytest.approx(0.15 * 8e6 / 16)


def test_one_worker_exchanges_nothing():
    prediction = predict(FULL, COMPUTATION, uniform_links(1.0, 1.0), 1)
    assert prediction.step_seconds == COMPUTATION.seconds
    assert prediction.speed_up == 1 and prediction.sent_bytes == 0


def test_speed_up_is_over_a_worker_that_shares_with_nobody():
    links = uniform_links(125e6, 1e-3)
    crowded = predict(ONE_BIT, COMPUTATION, links, 4, alone_seconds=COMPUTATION.seconds / 2)
    apart = predict(ONE_BIT, COMPUTATION, links, 4)
    assert crowded.speed_up == pytest.approx(apart.speed_up / 2)
    assert crowded.step_seconds == apart.step_seconds


def test_workers_of_a_node_add_up_first():
    links = uniform_links(12.5e6, 1e-3) | {"within node": Link(0.0, 10e9)}
    nodes = predict(ONE_BIT, COMPUTATION, links, 2, workers_per_node=4)
    assert nodes.workers == 8
    assert nodes.speed_up == pytest.approx(8 * COMPUTATION.seconds / nodes.step_seconds)
    # Two nodes exchange as much as two workers would.
    assert nodes.sent_bytes == pytest.approx(0.15 * 8e6 + 2 * 3 / 4 * 4 * 8e6)
    one_node = predict(ONE_BIT, COMPUTATION, links, 1, workers_per_node=4)
    assert one_node.workers == 4 and one_node.coding_seconds == 0
    assert one_node.sent_bytes == pytest.approx(2 * 3 / 4 * 4 * 8e6)
    assert predict(ONE_BIT, COMPUTATION, links, 1, workers_per_node=1).sent_bytes == 0


def test_workers_of_a_node_add_up_in_every_step_of_a_block():
    links = uniform_links(12.5e6, 1e-3) | {"within node": Link(0.0, 10e9)}
    blocks = dataclasses.replace(ONE_BIT, sync_period=16)
    nodes = predict(blocks, COMPUTATION, links, 2, workers_per_node=4)
    within = 2 * 3 / 4 * 4 * 8e6
    assert nodes.sent_bytes == pytest.approx(within + 0.15 * 8e6 / 16)
    one_node, every_step = (
        predict(method, COMPUTATION, links, 1, workers_per_node=4) for method in (blocks, ONE_BIT)
    )
    assert one_node.sent_bytes == pytest.approx(within)
    assert one_node.step_seconds == pytest.approx(every_step.step_seconds)
    block_seconds = predict(blocks, COMPUTATION, links, 2).step_seconds - COMPUTATION.seconds
    assert nodes.step_seconds == pytest.approx(one_node.step_seconds + block_seconds)


@pytest.mark.parametrize(
    "call, needed",
    [
        (lambda: predict(FULL, COMPUTATION, uniform_links(1.0, 0.0), 0), "one worker"),
        (lambda: predict(FULL, COMPUTATION, uniform_links(1.0, 0.0), 2, None, 0), "one worker"),
        (lambda: within_nodes(FULL.buckets, 0), "one worker"),
        (lambda: with_more_workers(uniform_links(1.0, 0.0), 2, 0), "2 workers"),
        (lambda: advise(METHODS, MEASURED, uniform_links(1.0, 0.0), 0, 64, SIZES), "2 workers"),
    ],
)
def test_refuses_no_workers(call, needed):
    with pytest.raises(ValueError, match=f"at least {needed}. Received: workers=0"):
        call()


def test_refuses_one_worker_where_latency_was_measured_between_two():
    with pytest.raises(ValueError, match="at least 2 workers. Received: workers=1"):
        with_more_workers(uniform_links(1.0, 0.0), 1, 4)


def test_refuses_methods_that_cannot_be():
    for name, value in (("delay", -1), ("sync_period", 0), ("bucket_bytes", 0), ("delay", 0.5)):
        message = f"{name} must be a whole number, at least .*Received: {name}={value}"
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(FULL, **{name: value})
    with pytest.raises(ValueError, match="value_bytes must be a positive.*value_bytes=0"):
        narrowed("nothing", FULL, 0)
    with pytest.raises(ValueError, match="full_bytes must be a positive.*full_bytes=0"):
        narrowed("everything", FULL, 1, 0)
    with pytest.raises(ValueError, match="bucket_bytes must be a whole.*bucket_bytes=0"):
        regrouped(FULL, SIZES, 0)


def test_refuses_what_has_not_been_measured():
    links = uniform_links(1.0, 0.0)
    with pytest.raises(ValueError, match=r"has to be measured first. Received: measured=\{\}"):
        interpolated({}, 64)
    with pytest.raises(ValueError, match="per_replica_batch_size must be a positive.*=nan"):
        interpolated(MEASURED, math.nan)
    with pytest.raises(ValueError, match=r"full precision first. Received: methods=\[\]"):
        advise([], MEASURED, links, 2, 64, SIZES)
    with pytest.raises(ValueError, match=r"computation.seconds must be a positive.*=0"):
        advise(METHODS, {64: Computation(0, 0)}, links, 2, 64, SIZES)


def test_narrower_values_send_less_and_compute_the_same():
    half = narrowed("float16", FULL, 2)
    assert [b.sent_bytes for b in half.buckets] == [b.sent_bytes / 2 for b in FULL.buckets]
    assert [b.all_work_seconds for b in half.buckets] == [b.all_work_seconds for b in FULL.buckets]
    of_half = narrowed("8 bit", half, 1, full_bytes=2)
    assert [b.sent_bytes for b in of_half.buckets] == [b.sent_bytes / 4 for b in FULL.buckets]


def test_regrouped_buckets_are_as_large_as_asked_for_and_have_the_same_in_all():
    again = regrouped(ONE_BIT, SIZES, bucket_bytes=8_000_000)
    assert [bucket.size for bucket in again.buckets] == 4 * [2_000_000]
    for attribute in ("sent_bytes", "all_work_seconds"):
        totals = [sum(getattr(b, attribute) for b in m.buckets) for m in (ONE_BIT, again)]
        assert totals[0] == pytest.approx(totals[1])


def test_latency_grows_with_the_logarithm_of_workers_and_bandwidth_stays():
    measured = uniform_links(1e6, 0.1)
    links = with_more_workers(measured, 2, 8)
    assert links["all_gather"].latency_seconds == pytest.approx(0.3)
    assert links["all_gather"].bytes_per_second == 1e6
    in_between = with_more_workers(with_more_workers(measured, 2, 4), 4, 8)
    assert in_between["all_gather"].latency_seconds == pytest.approx(0.3)
    assert with_more_workers(measured, 8, 2) == measured


def test_computation_lies_between_what_was_measured():
    assert interpolated(MEASURED, 64) == COMPUTATION
    assert interpolated(MEASURED, 96).seconds == pytest.approx(0.47)
    assert interpolated(MEASURED, 256).seconds == pytest.approx(1.22)
    assert interpolated(MEASURED, 1).seconds >= 0
    assert interpolated({64: COMPUTATION}, 7) == COMPUTATION


def advice(rate, methods=METHODS, batch_size=64):
    return advise(methods, MEASURED, uniform_links(rate, 1e-4), 2, batch_size, SIZES)


def test_says_plainly_when_compression_does_not_pay():
    result = advice(1e11)
    assert not result.sending_less_pays and result.method == "full precision"
    assert result.sentences[0].startswith("Compression will not pay: in full precision a step")


def test_says_plainly_when_one_worker_is_faster():
    for methods in ([FULL], METHODS):
        result = advice(1e5, methods)
        (sentence,) = [s for s in result.sentences if s.startswith("One worker alone is as fast")]
        assert f"2 workers with {result.method} are 0." in sentence
    assert not any("One worker alone" in s for s in advice(125e6).sentences)


def test_recommends_the_mildest_method_that_is_fast():
    result = advice(125e6)
    assert result.sending_less_pays and result.method == "1-bit"
    assert result.sentences[0].startswith("Sending less pays: in full precision a step takes")
    assert "1-bit: " in result.sentences[1]


def test_recommends_nothing_that_is_hardly_faster_than_full_precision():
    """It is a tenth slower than the fastest, which is a tenth faster than full precision."""
    one_bit, fast = (
        Method(name, [Bucket(1e6, (), seconds)])
        for name, seconds in (("1-bit", 0.36), ("threshold", 0.3))
    )
    full = Method("full precision", [Bucket(1e6, (), 0.39)])
    assert advice(125e6, [full, one_bit, fast]).method == "threshold"
    faster = dataclasses.replace(one_bit, buckets=[Bucket(1e6, (), 0.31)])
    assert advice(125e6, [full, faster, fast]).method == "1-bit"


def test_recommends_delay_or_blocks_where_links_are_slow():
    assert advice(4e6).method == "1-bit, delayed"
    assert advice(1e5).method == "blocks of 16, 1-bit"


def test_recommends_larger_minibatches_where_an_exchange_costs_much():
    full_precision = [FULL]
    assert advice(1e11, full_precision).per_replica_batch_size == 32
    costly = advice(12.5e6, full_precision)
    assert costly.per_replica_batch_size == 128
    assert any("the largest measured number" in sentence for sentence in costly.sentences)


def test_recommends_a_sync_period_with_which_blocks_cost_little():
    periods = [advice(rate).sync_period for rate in (1e9, 1e7, 1e5)]
    assert periods == sorted(periods) and periods[0] < periods[-1]
    slow = dataclasses.replace(BLOCKS, sync_period=periods[-1])
    step = predict(slow, COMPUTATION, uniform_links(1e5, 1e-4), 2).step_seconds
    assert step <= 1.05 * COMPUTATION.seconds


def test_the_sync_period_is_that_of_the_method_that_is_recommended():
    laborious = dataclasses.replace(FULL, name="blocks of 16, full precision", sync_period=16)
    links = uniform_links(1e5, 1e-4)
    both = advise([FULL, laborious, BLOCKS], MEASURED, links, 2, 64, SIZES)
    alone = advise([FULL, BLOCKS], MEASURED, links, 2, 64, SIZES)
    assert both.method == alone.method == BLOCKS.name
    assert both.sync_period == alone.sync_period


def test_recommends_buckets_that_overlap():
    large = 2**30
    one_bucket = dataclasses.replace(regrouped(FULL, SIZES, large), bucket_bytes=large)
    assert len(one_bucket.buckets) == 1
    assert advice(200e6, [one_bucket]).bucket_bytes == 4 * 2**20
    # The same buckets gain nothing, and nor do others if the exchange takes no time.
    same = dataclasses.replace(FULL, bucket_bytes=4 * 2**20)
    assert advice(200e6, [same]).bucket_bytes is None
    assert advice(1e11, [one_bucket]).bucket_bytes is None
    # A flag that is sent before all of them does not matter.
    flag = Bucket(0, 2 * (Collective(0.0, "all_gather", 4),))
    checked = dataclasses.replace(one_bucket, buckets=[flag, *one_bucket.buckets])
    assert advice(200e6, [checked]).bucket_bytes == 4 * 2**20


def test_recommends_no_buckets_where_not_all_can_share_them():
    sparse = Bucket(1e6, 3 * (Collective(0.0, "all_gather", 1e3),))
    mixed = dataclasses.replace(FULL, buckets=[*FULL.buckets, sparse], bucket_bytes=2**30)
    assert advice(200e6, [mixed]).bucket_bytes is None


def test_blocks_are_not_called_compression():
    blocks = dataclasses.replace(FULL, name="blocks of 16, full precision", sync_period=16)
    result = advice(125e6, [FULL, blocks])
    assert result.method == blocks.name
    assert result.sentences[0].startswith("Sending less pays")


# ------------------------------------------------------------------------------ parts of a block


def in_blocks(seconds_on_link, fragments=1, work=0.0, **arguments):
    """Returns the extra seconds of a block of 16 steps of 0.32 s, whose model takes as long."""
    bucket = Bucket(1e6, (Collective(work, "all_gather", 125e6 * seconds_on_link),))
    if isinstance(fragments, int):
        fragments = (1 / fragments,) * fragments
    blocks = Method("blocks", [bucket], sync_period=16, fragments=fragments, **arguments)
    prediction = predict(blocks, COMPUTATION, uniform_links(125e6, 0.0), 2)
    return 16 * (prediction.step_seconds - COMPUTATION.seconds)


def test_fragments_alone_wait_as_long_for_less_at_a_time():
    assert in_blocks(2.0, fragments=4) == pytest.approx(in_blocks(2.0)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "seconds_on_link, fragments, overlap, expected",
    [
        (1.0, 1, 4, 0.0),  # the link needs less than 4 steps
        (2.0, 1, 4, 2.0 - 4 * 0.32),
        (4.0, 4, 3, 4 * (1.0 - 3 * 0.32)),
        (4.0, (0.5, 0.25, 0.25), 4, 2.0 - 4 * 0.32),  # the others arrive in time
        (4.0, 4, 4, 0.0),
        (8.0, 4, 16, 8.0 - 16 * 0.32),  # the link is never free
    ],
)
def test_overlap_hides_what_the_link_needs(seconds_on_link, fragments, overlap, expected):
    extra = in_blocks(seconds_on_link, fragments=fragments, overlap=overlap)
    assert extra == pytest.approx(expected, abs=1e-6)


def test_overlap_hides_no_work():
    assert in_blocks(0.1, work=0.5, fragments=4, overlap=8) == pytest.approx(0.5)


def test_a_small_fragment_waits_for_every_collective():
    bucket = Bucket(10, (Collective(0.0, "all_to_all", 1), Collective(0.0, "all_gather", 1)))
    blocks = [Method("blocks", [bucket], sync_period=16, fragments=(1 / n,) * n) for n in (1, 4)]
    links = uniform_links(125e6, 0.1)
    whole, parts = (predict(one, COMPUTATION, links, 2).step_seconds for one in blocks)
    assert 16 * (parts - COMPUTATION.seconds) == pytest.approx(4 * 0.2, rel=1e-3)
    assert 16 * (whole - COMPUTATION.seconds) == pytest.approx(0.2, rel=1e-3)


def test_a_period_is_advised_only_where_no_fragments_take_turns():
    links = uniform_links(125e6, 1e-3)
    for turns, advised in [({}, True), ({"overlap": 4}, False), ({"fragments": (0.5, 0.5)}, False)]:
        methods = [FULL, dataclasses.replace(BLOCKS, **turns)]
        advice = advise(methods, MEASURED, links, 2, 64, SIZES)
        assert (advice.sync_period is not None) == advised


@pytest.mark.parametrize("turns", [{"overlap": 4}, {"fragments": (0.5, 0.5)}], ids=str)
def test_fragments_need_blocks(turns):
    with pytest.raises(ValueError, match="belong to blocks. Received: sync_period=None"):
        dataclasses.replace(ONE_BIT, **turns)
