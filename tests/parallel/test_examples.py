"""The examples run.

keras_fit runs with every engine. speech runs with workers of two speeds, and with all options that
make decisions during training.
"""

import json
import re
import shlex

import pytest

from tests.support.launch import LAUNCHERS, python, run_job
from tests.support.nightly import nightly_rows

pytestmark = pytest.mark.usefixtures("all_packages")
SPEECH = ["--hours", "0.05", "--held-out-minutes", "1", "--targets", "205"]
EXAMPLE = ["examples/keras_fit/train.py", "--epochs", "3"]


@pytest.mark.parametrize(
    "engine, options",
    [
        ("mirrored", ["--exchange", "threshold", "--coding", "golomb_rice"]),
        *nightly_rows(
            ("multi_worker", []),
            ("horovod", ["--bmuf", "--sync-period", "4", "--block-momentum", "0.5"]),
        ),
    ],
)
def test_digits_are_learned(engine, options, tmp_path):
    command = [*EXAMPLE, "--engine", engine, "--backup", str(tmp_path / "backups"), *options]
    status, _, output = run_job({"multi_worker": "tensorflow"}.get(engine, engine), 2, command)
    assert status == 0, output
    (accuracy,) = re.findall(r"held-out accuracy: (\d\.\d+)", output)
    assert float(accuracy) > 0.7


# The program finds `python` and `horovodrun` in one folder.
WITH_PYTHON = """
import pathlib, runpy, sys

_, sys.executable, *sys.argv = sys.argv
sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def forking_python(tmp_path):
    """Path of a Python that starts programs in forks, beside a `horovodrun` that starts sooner."""
    horovodrun = LAUNCHERS["horovod"][: LAUNCHERS["horovod"].index("-np")]
    for name, command in {"python": python([]), "horovodrun": horovodrun}.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        path.chmod(0o755)
    return str(tmp_path / "bin" / "python")


@pytest.mark.nightly
def test_the_recipe_of_the_paper_learns_with_asynchronous_workers(forking_python, tmp_path):
    command = ["-c", WITH_PYTHON, forking_python]
    command += ["examples/speech/recipe.py", "--workers", "2", "--epochs", "2"]
    command += ["--asynchronous", "--shares", "3", "1", "--results", str(tmp_path)]
    command += [*SPEECH, "--depth", "1", "--width", "64", "--blocks-per-epoch", "2"]
    status, _, output = run_job("alone", 1, command, timeout_seconds=400)  # it makes a corpus
    assert status == 0, output
    results = json.loads((tmp_path / "recipe.json").read_text())
    assert [result["workers"] for result in results] == [1, 1, 2]
    cross_entropies = [result["held_out_cross_entropy"][-1] for result in results]
    assert cross_entropies == sorted(cross_entropies, reverse=True)
    assert (tmp_path / "model.weights.h5").exists()


@pytest.mark.nightly
def test_speech_is_learned_while_minibatch_and_learning_rate_are_decided(tmp_path):
    output = tmp_path / "result.json"
    command = ["examples/speech/train.py", "--preset", "tiny", *SPEECH, "--epochs", "2"]
    command += ["--adagrad", "aggregate", "--momentum", "0.9", "--learning-rate", "0.04"]
    command += ["--delayed", "--warm-start-samples", "2000", "--output", str(output)]
    command += ["--auto-minibatch", "--minibatch-interval", "20000", "--trial-frames", "1500"]
    command += ["--auto-learning-rate", "--evaluation-interval", "10000"]
    status, _, printed = run_job("horovod", 2, command)
    assert status == 0, printed
    results = json.loads(output.read_text())
    first, last = results["held_out_cross_entropy"]
    assert last < first < 5.3  # ln 205
    assert results["bytes_sent_per_step"] < results["parameters"]  # in full precision 4 times that
    # Half of two minibatches of 64: the search compares it with a larger one.
    sizes = results["minibatch_control"]
    assert sizes["global_batch_size"][0] == 64 and sizes["position"][1] >= 20000
    assert [size for size, _ in sizes["trials"][1]] == [64, 128]
    rates = results["learning_rate_control"]
    assert len(rates["criterion"]) == results["frames"][-1] // 10000
    assert output.with_suffix(".minibatches.png").exists()
