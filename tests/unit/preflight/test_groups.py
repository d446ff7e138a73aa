"""`tf-onebit plan --members`: members of model-parallel groups, and what the plan tells of them."""

import contextlib
import io
import json
import re

import keras
import pytest

from tf_onebit import _cli as cli
from tf_onebit._measurement import Alone
from tf_onebit._preflight.block_ends import Blocks
from tf_onebit._preflight.jobs import workers_of_job
from tf_onebit._preflight.member import measure_member
from tf_onebit._preflight.program import lines_for_groups
from tf_onebit.exchanges import OneBit
from tf_onebit.planner import Method

MODEL = "tests.support.planned:make_large_model"
ARGUMENTS = ["plan", MODEL, "--per-replica-batch-size", "4", "--workers", "2", "4"]


@pytest.fixture(scope="module")
def planned_groups(tmp_path_factory):
    """Returns the output of a plan for groups, and its results."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    arguments = [*ARGUMENTS, "--members", "2", "--json", str(path)]
    arguments += ["--bandwidth-within", "100gbit", "--latency-within", "0.01"]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert cli.main(arguments) == 0
    return output.getvalue(), json.loads(path.read_text())


def test_groups_are_planned_for_each_number_of_workers_that_they_divide(planned_groups):
    output, content = planned_groups
    of_groups = [p for p in content["predictions"] if p["members"] == 2]
    assert {p["method"] for p in of_groups if p["workers"] == 2} == {"no exchange"}
    methods = {p["method"] for p in of_groups if p["workers"] == 4}
    assert methods >= {"full precision", "1-bit", "1-bit, delayed", "blocks of 16, 1-bit"}
    assert "  1x2, no exchange " in output and "  2x2, 1-bit " in output
    # One group of eight samples and two of eight have as many as two and four workers of four.
    assert "Groups of 2: a step of 8 samples takes" in output
    assert output.count("Model parallelism ") == 2
    assert list(content["group_advice"]) == ["2", "4"]


def test_what_groups_send_is_predicted_from_the_split_model(planned_groups):
    _, content = planned_groups
    member, rows = content["members"]["2"], 8
    # The first two layers are a pair: the outputs of the second are added up, in both directions.
    # Each member has the bias of the second and all of the third, so their gradients are added up.
    pair, copies = 4 * rows * 64, 4 * (64 + 64 * 40 + 40)
    sent = {
        name: [one["sent_bytes"] for one in member["activations"][name]]
        for name in ("forward", "backward")
    }
    assert sent == {"forward": [pair], "backward": [pair, copies]}
    between = {
        p["method"]: p["sent_bytes"] - 2 * pair - copies
        for p in content["predictions"]
        if (p["members"], p["workers"]) == (2, 4)
    }
    parts = 4 * (16 * 2048 + 2048 + 2048 * 64) + copies
    assert between["full precision"] == pytest.approx(parts, rel=0.01)
    assert between["blocks of 16, full precision"] == pytest.approx(parts / 16, rel=0.01)


def test_a_member_holds_its_part_of_all_that_belongs_to_a_layer(planned_groups):
    _, content = planned_groups
    member = content["members"]["2"]
    # Weights, gradients and velocities have the same sizes.
    whole = 3 * 4 * sum(content["sizes"])
    assert member["whole_bytes"] == pytest.approx(whole, abs=100)
    assert member["held_bytes"] < 0.55 * whole


def test_outputs_that_are_gathered_send_parts():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(512)])
    model.compile("sgd", loss="mse")
    member = measure_member(model, 4, 8, Alone(), None, Blocks(16))
    forward, backward = member.activations.forward, member.activations.backward
    assert [(one.kind, one.sent_bytes) for one in (*forward, *backward)] == [
        ("all_gather within group", 3 / 4 * 8 * 512 * 4),
        ("all_to_all within group", 3 / 4 * 8 * 512 * 4),
    ]
    assert [spec.shape for spec in member.specs] == [(256, 128), (128,)]
    assert member.computation.seconds > 0


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (MODEL, ["--members", "3"], "--members 3, which divides none of the numbers of workers 2"),
        (
            "tests.support.planned:make_model",
            ["--members", "2"],
            "no layer can be split. Received: --members 2, and .*it has 1088 weights, fewer",
        ),
        (
            "tests.support.planned:make_large_model_with_lamb",
            ["--members", "2"],
            "the optimizer Lamb, whose updates depend on the whole weight",
        ),
        (
            "tests.support.planned:make_large_model_of_fixed_batches",
            ["--members", "2"],
            r"in one batch of 8. Received: --members 2, and .* batches of 6",
        ),
        (MODEL, ["--latency-within", "1"], "--latency-within 1 without --bandwidth-within"),
    ],
)
def test_says_why_groups_cannot_be_planned_for(capsys, model, arguments, message):
    assert cli.main(["plan", model, *ARGUMENTS[2:], *arguments]) == 1
    errors = " ".join(capsys.readouterr().err.split())
    assert re.search(message, errors), errors


def test_links_of_groups_need_a_job_of_horovods(monkeypatch):
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(
        ValueError, match="Received: --members or .* in a job with TF_CONFIG. Start"
    ):
        workers_of_job(in_groups=True)


def test_the_lines_to_write_split_the_model():
    lines = lines_for_groups(Method("1-bit", [], delay=1, template=OneBit()), 2, 64)
    assert lines[0] == (
        "exchange = tf_onebit.WarmStart(tf_onebit.Delayed(tf_onebit.OneBit()), steps=1000)"
    )
    assert "groups = tf_onebit.model_parallel.Groups(2)" in lines
    assert any(line.startswith("batch_size = 128 ") for line in lines)
    compile("\n".join(lines), "program", "exec")
    in_blocks = lines_for_groups(Method("blocks", [], sync_period=8, template=OneBit()), 2, 64)
    assert in_blocks[0] == "exchange = tf_onebit.Local()"
    assert any("BlockMomentum(sync_period=8, exchange=tf_onebit.OneBit())" in x for x in in_blocks)
