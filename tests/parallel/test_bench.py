"""`tf-onebit bench` between workers."""

import json

from tests.support.launch import run_job


def test_collectives_are_measured_between_the_workers(tmp_path):
    path = tmp_path / "bench.json"
    command = ["-m", "tf_onebit._cli", "bench", "--values", "65536", "--json", str(path)]
    status, _, output = run_job("horovod", 2, command)
    assert status == 0, output
    # One of them prints.
    assert output.count("Collectives") == output.count("One of 2 workers, 65,536 values") == 1
    content = json.loads(path.read_text())
    assert content["workers"] == 2
    for kind in ("all_to_all", "all_gather", "all_reduce"):
        assert kind in output
        assert 1e-5 < content["links"][kind]["latency_seconds"] < 1
        assert 1e6 < content["links"][kind]["bytes_per_second"] < 1e12
