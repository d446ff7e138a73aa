"""`tf-onebit plan` between workers."""

import json

import pytest

from tests.support import ranks
from tests.support.launch import processes_with, run_job
from tests.support.nightly import nightly, nightly_rows
from tf_onebit._measurement import Links
from tf_onebit._preflight.nodes import NodeLinks

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


@pytest.mark.workers(4, engines=["nodes"])
def test_links_within_nodes_and_between_them_are_measured(world_size):
    workers = Links(ranks.engine())
    links = NodeLinks(2).measured(workers)
    assert links.measured_nodes == 2
    for measured in (links.within, links.between):
        assert all(1e5 < link.bytes_per_second < 1e12 for link in measured.values())
    assert NodeLinks(4).measured(workers) == NodeLinks(4)  # this job has no such nodes


@pytest.mark.nightly
def test_nodes_are_planned_with_the_links_of_the_job(tmp_path):
    path = tmp_path / "plan.json"
    options = ["--per-replica-batch-size", "4", "--workers", "4", "--workers-per-node", "2"]
    model = "tests.support.planned:make_large_model"
    job = run_job("nodes", 4, [*PLAN, model, *options, "--json", str(path)])
    assert job.returncode == 0, job.output
    assert job.output.count("links within and between 2 nodes") == 1
    by_name = {p["method"]: p for p in json.loads(path.read_text())["predictions"]}
    alone, shared = by_name["full precision"], by_name["full precision, by node"]
    # Of S values, 2 * 3 / 4 without nodes. With nodes 2 * 1 / 2 within, and 2 * 1 / 2 of a half.
    assert alone["sent_bytes"] == pytest.approx(shared["sent_bytes"], rel=0.01)
    assert shared["workers"] == 4 and shared["sending_seconds"] > 0


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
