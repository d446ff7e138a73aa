"""`tf-onebit plan` between workers."""

import json

import pytest

from tests.support import ranks
from tests.support.launch import processes_with, run_job
from tests.support.nightly import nightly, nightly_rows
from tf_onebit._measurement import Links

PLAN = ["-m", "tf_onebit._cli", "plan"]
OPTIONS = ["--per-replica-batch-size", "4", "--workers", "2", "4"]
# Processes that hold one model together are those of a Horovod job.
MODELS = {
    "horovod": ["tests.support.planned:make_large_model", "--members", "2"],
    "tensorflow": ["tests.support.planned:make_model"],
}


@pytest.mark.parametrize("engine", ["horovod", *nightly("tensorflow")])
def test_links_are_measured_between_the_workers(engine, tmp_path):
    path = tmp_path / "plan.json"
    command = [*PLAN, *MODELS[engine], *OPTIONS, "--json", str(path)]
    status, seconds, output = run_job(engine, 2, command)
    assert status == 0, output
    # One of them prints.
    assert output.count("measured between 2 workers") == output.count("Advice for 2 workers") == 1
    content = json.loads(path.read_text())
    assert content["measured_workers"] == 2
    for kind in ("all_to_all", "all_gather", "all_reduce"):
        link = content["links"][kind]
        assert 1e-5 < link["latency_seconds"] < 1
        assert 1e6 < link["bytes_per_second"] < 1e12
        assert 0 <= link["work_seconds_per_byte"] < 1e-6
        assert 0 <= link["work_seconds"] < 1
    assert sum(link["work_seconds"] for link in content["links"].values()) > 0
    assert {p["workers"] for p in content["predictions"]} == {2, 4}
    pairs = [p for p in content["predictions"] if p["members"] == 2]
    assert {p["workers"] for p in pairs} == ({2, 4} if engine == "horovod" else set())
    for pair in pairs[:1]:  # a single group, whose three sums travel on the measured links
        link = content["links"]["all_reduce"]
        sending = 3 * link["latency_seconds"] + pair["sent_bytes"] / link["bytes_per_second"]
        assert pair["sending_seconds"] == pytest.approx(sending)
        assert pair["step_seconds"] > pair["computation_seconds"] + 0.99 * sending
    assert seconds < 60
    assert not processes_with(path)


@pytest.mark.workers(4)
def test_links_within_groups_and_between_them_are_told_apart(world_size):
    within, between = Links(ranks.engine()).divided(2)
    group, member = divmod(ranks.rank(), 2)
    assert within.all([ranks.rank()]).ravel().tolist() == [2 * group, 2 * group + 1]
    assert between.all([ranks.rank()]).ravel().tolist() == [member, member + 2]


@pytest.mark.parametrize(
    ("engine", "function"),
    [
        ("horovod", "fail_on_the_second_worker"),
        *nightly_rows(("tensorflow", "fail"), ("tensorflow", "fail_on_the_second_worker")),
    ],
)
def test_a_model_that_fails_ends_the_job(engine, function, tmp_path):
    path = tmp_path / "plan.json"
    command = [*PLAN, f"tests.support.planned:{function}", *OPTIONS, "--json", str(path)]
    status, _, output = run_job(engine, 2, command)
    assert status != 0
    assert "Received: RuntimeError: no such corpus" in output
    assert not path.exists() and not processes_with(path)
