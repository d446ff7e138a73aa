"""`tf-onebit plan --workers-per-node`: nodes whose workers share the exchange with others."""

import contextlib
import io
import json

import pytest

from tf_onebit import _cli as cli
from tf_onebit._measurement import measure_slices
from tf_onebit._preflight.nodes import NodeLinks, in_order, require_nodes
from tf_onebit._preflight.program import lines_for
from tf_onebit.exchanges import OneBit
from tf_onebit.planner import Method, by_node, uniform_links


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Returns the output of a plan for nodes of four workers, and its results."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    arguments = ["plan", "tests.support.planned:make_large_model", "--json", str(path)]
    arguments += ["--per-replica-batch-size", "4", "--workers", "4", "8"]
    arguments += ["--workers-per-node", "4", "--bandwidth", "10mbit", "--bandwidth-within", "1gbit"]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert cli.main(arguments) == 0
    return output.getvalue(), json.loads(path.read_text())


def test_only_jobs_of_several_nodes_have_rows(plan):
    output, content = plan
    names = {n: {p["method"] for p in content["predictions"] if p["workers"] == n} for n in (4, 8)}
    assert not any("by node" in name for name in names[4])
    assert {"full precision, by node", "1-bit, by node", "1-bit, delayed, by node"} <= names[8]
    assert "  1-bit, by node " in output


def test_fast_links_within_nodes_make_full_precision_faster(plan):
    _, content = plan
    seconds = {p["method"]: p["step_seconds"] for p in content["predictions"] if p["workers"] == 8}
    # Between two nodes each worker sends a quarter of the values, and without nodes 14 / 8 of them.
    assert seconds["full precision, by node"] < 0.3 * seconds["full precision"]


def test_the_lines_to_write_have_groups():
    lines = lines_for(by_node(Method("1-bit", [], template=OneBit()), 4), None)
    assert lines[1:] == [
        'hvd.init(process_sets="dynamic")',
        'optimizer = hvd.DistributedOptimizer(optimizer, exchange, groups="node")',
    ]


def test_methods_of_nodes_change_training_less():
    alone = [Method(name, []) for name in ("full precision", "1-bit", "threshold")]
    shared = [by_node(method, 2) for method in alone]
    assert [method.name for method in in_order(alone, shared)] == [
        *("full precision", "full precision, by node"),
        *("1-bit, by node", "1-bit", "threshold, by node", "threshold"),
    ]


def test_workers_must_make_several_nodes():
    require_nodes(1, [3])
    require_nodes(4, [2, 8])
    with pytest.raises(ValueError, match="--workers-per-node 4 for 4, 6 workers.*--workers 8"):
        require_nodes(4, [4, 6])


def test_latency_between_nodes_grows_with_their_number():
    links, between = uniform_links(1e6, 1e-3), uniform_links(2e6, 1e-3)
    nodes = NodeLinks(4, uniform_links(1e9, 1e-5), between, measured_nodes=2)
    grown = nodes.added_to(links, workers=32)["all_gather between nodes"]
    assert (grown.bytes_per_second, grown.latency_seconds) == (2e6, pytest.approx(3e-3))
    assert NodeLinks().added_to(links, 8) is links
    assert NodeLinks(4).added_to(links, 8)["all_gather within node"] == links["all_gather"]


def test_slices_take_time():
    adding, joining = measure_slices(10**6, 4)
    assert 1e-11 < adding < 1e-6 and 1e-11 < joining < 1e-6
