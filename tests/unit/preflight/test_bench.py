"""`tf-onebit bench` with one process."""

import json

import pytest

from tf_onebit import _cli as cli


def test_takes_the_time_of_every_stage(capsys, tmp_path):
    path = tmp_path / "bench.json"
    assert cli.main(["bench", "--values", "65536", "--json", str(path)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("Alone, as one of 2 workers, 65,536 values, ns per value")
    assert "No other workers: collectives are not measured." in output
    content = json.loads(path.read_text())
    stages = content["nanoseconds_per_value"]
    # Before each collective, and at the end.
    assert {name: len(times) for name, times in stages.items()} == {
        "full precision": 2,
        "1-bit": 3,
        "threshold": 2,
        "threshold, Golomb-Rice": 2,
    }
    assert all(0 < sum(times) < 1000 for times in stages.values())
    assert content["workers"] == 1 and content["links"] == {}


def test_refuses_files_that_cannot_be_written(capsys, tmp_path):
    assert cli.main(["bench", "--json", str(tmp_path)]) == 1
    assert "file cannot be written to. Received" in capsys.readouterr().err


def test_refuses_too_few_values(capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main(["bench", "--values", "12"])
    assert exit.value.code == 2
    assert "at least 2048: '12'" in capsys.readouterr().err
