"""Predictions for groups of workers that hold one model together, and advice on them."""

import dataclasses

import pytest

from tf_onebit.planner import (
    Activations,
    Bucket,
    Collective,
    Computation,
    Method,
    advise_groups,
    links_of_groups,
    predict,
    uniform_links,
)

WHOLE = Computation(0.1, 0.2, 0.02)
HALF = Computation(0.05, 0.1, 0.01)


def method(sent_bytes, name="full precision", **arguments):
    return Method(name, [Bucket(1e6, (Collective(0.0, "all_gather", sent_bytes),))], **arguments)


def pair(message_bytes=1e5):
    """Returns the activations of two members that gather the outputs of two layers."""
    kinds = ("all_gather within group", "all_to_all within group")
    return Activations(2, *(2 * (Collective(0.0, kind, message_bytes),) for kind in kinds))


def links(between=125e6, within=10e9):
    return links_of_groups(uniform_links(between, 1e-3), within=uniform_links(within, 1e-5))


def of_groups(count, one=None, activations=None, **rates):
    activations = activations or pair()
    return predict(
        one or method(2e6), HALF, links(**rates), count, WHOLE.seconds, activations=activations
    )


def test_all_members_of_all_groups_are_workers():
    groups = of_groups(2)
    assert (groups.workers, groups.groups, groups.members) == (4, 2, 2)
    # A group takes the samples of both members in a step.
    assert groups.speed_up == pytest.approx(4 * WHOLE.seconds / groups.step_seconds)
    assert groups.sent_bytes == 2e6 + 4 * 1e5
    waiting, exchange = 4 * (1e-5 + 1e5 / 10e9), 1e-3 + 2e6 / 125e6
    assert groups.sending_seconds == pytest.approx(waiting + exchange)
    assert groups.step_seconds == pytest.approx(HALF.seconds + waiting + exchange)


def test_a_single_group_exchanges_no_gradients():
    group = of_groups(1)
    assert group.workers == group.members == 2
    assert group.sent_bytes == 4 * 1e5
    assert group.step_seconds == pytest.approx(HALF.seconds + 4 * (1e-5 + 1e5 / 10e9))


def test_groups_have_links_of_their_own():
    assert of_groups(1, between=1.0) == of_groups(1)
    slow = of_groups(1, within=1e6)
    assert slow.step_seconds == pytest.approx(HALF.seconds + 4 * (1e-5 + 1e5 / 1e6))
    assert slow.bottleneck == "sending"


def test_groups_exchange_activations_in_every_step_of_a_block():
    in_blocks = of_groups(2, method(16e6, sync_period=16))
    alone, block_seconds = of_groups(1), 1e-3 + 16e6 / 125e6
    assert in_blocks.sent_bytes == alone.sent_bytes + 1e6
    assert in_blocks.step_seconds == pytest.approx(alone.step_seconds + block_seconds / 16)


def advice(whole_bytes, *groups):
    whole = predict(method(whole_bytes), WHOLE, links(), 4)
    return advise_groups(whole, groups)


def test_says_whether_model_parallelism_pays():
    groups = of_groups(2, method(2e6, "1-bit"))
    pays = advice(20e6, groups)
    assert (pays.members, pays.method) == (2, "1-bit")
    assert pays.sentences[0].startswith(
        "Model parallelism pays: 2 groups of 2 members with 1-bit take 177 ms per step, and 4 "
        "workers with full precision that hold the whole model each take 481 ms, with as many "
    )
    slow = of_groups(2, method(40e6))
    does_not = advice(1e6, slow)
    assert (does_not.members, does_not.method) == (1, "full precision")
    assert does_not.sentences[0].startswith("Model parallelism does not make steps a tenth faster")
    assert "the minibatch cannot grow and the model is large" in does_not.sentences[-1]


def test_tells_with_how_many_members_computation_and_communication_are_equal():
    # Two members wait for four messages of 0.1 s, so all of the activations would take 0.8 s. One
    # worker computes a group's samples in 0.64 s: 0.64 / K = 0.8 (K - 1) / K.
    groups = of_groups(2, within=1e6)
    assert groups.waiting_seconds == pytest.approx(0.4, rel=1e-3)
    told = advice(1e6, groups).sentences[1]
    assert "compute as long as they communicate if there are 1.8 of them" in told
    nothing_sent = of_groups(2, activations=Activations(2))
    assert len(advice(1e6, nothing_sent).sentences) == 2


def test_recommends_the_fewest_members_and_the_mildest_method_that_are_fast():
    pairs = of_groups(2)
    four = predict(
        method(0.0),
        HALF,
        links(),
        1,
        WHOLE.seconds,
        activations=dataclasses.replace(pair(), members=4),
    )
    assert four.workers == pairs.workers and four.step_seconds < pairs.step_seconds
    assert advice(20e6, pairs, four).members == 4
    nearly = dataclasses.replace(pairs, step_seconds=1.05 * four.step_seconds)
    assert advice(20e6, nearly, four).members == 2
    assert "4 members of one group take" in advice(20e6, four).sentences[0]


def test_refuses_what_cannot_be_compared():
    with pytest.raises(ValueError, match=r"workers, 4. Received: groups of \[2\] workers in all"):
        advice(1e6, of_groups(1))
    with pytest.raises(ValueError, match=r"workers, 4. Received: groups of \[\] workers in all"):
        advice(1e6)
    with pytest.raises(ValueError, match="Received: alone_seconds=None. Pass the seconds"):
        predict(method(1e6), HALF, links(), 2, activations=pair())
    with pytest.raises(ValueError, match="members must be a whole number, at least 1.*members=0"):
        Activations(0)
