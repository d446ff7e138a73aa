"""The examples run: keras_fit with every engine, the speech recipe with workers of two speeds."""

import json
import re

import pytest

from tests.parallel.launch import run_job

EXAMPLE = ["examples/keras_fit/train.py", "--epochs", "3"]


@pytest.mark.parametrize(
    "engine, options",
    [
        ("multi_worker", []),
        ("mirrored", ["--exchange", "threshold", "--coding", "golomb_rice"]),
        ("horovod", []),
        ("horovod", ["--bmuf", "--sync-period", "4", "--block-momentum", "0.5"]),
        ("horovod", ["--exchange", "threshold", "--target-density", "0.01", "--asynchronous"]),
    ],
)
def test_digits_are_learned(engine, options, tmp_path):
    command = [*EXAMPLE, "--engine", engine, "--backup", str(tmp_path / "backups"), *options]
    status, _, output = run_job({"multi_worker": "tensorflow"}.get(engine, engine), 2, command)
    assert status == 0, output
    (accuracy,) = re.findall(r"held-out accuracy: (\d\.\d+)", output)
    assert float(accuracy) > 0.7


def test_the_recipe_of_the_paper_learns_with_asynchronous_workers(tmp_path):
    command = ["examples/speech/recipe.py", "--workers", "2", "--epochs", "2"]
    command += ["--asynchronous", "--shares", "3", "1", "--results", str(tmp_path)]
    command += ["--hours", "0.05", "--held-out-minutes", "1", "--targets", "205"]
    command += ["--depth", "1", "--width", "64", "--blocks-per-epoch", "2"]
    status, _, output = run_job("alone", 1, command)
    assert status == 0, output
    results = json.loads((tmp_path / "recipe.json").read_text())
    assert [result["workers"] for result in results] == [1, 1, 2]
    cross_entropies = [result["held_out_cross_entropy"][-1] for result in results]
    assert cross_entropies == sorted(cross_entropies, reverse=True)
    assert (tmp_path / "model.weights.h5").exists()
