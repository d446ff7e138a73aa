"""Model parallelism: the devices of one process hold one model together."""

import json

import pytest

from tests.support.launch import run_apart, run_job

MODULE = "tests.parallel.train_in_device_groups"


@pytest.fixture(scope="module")
def result():
    return run_apart(MODULE)


def test_weights_are_those_of_the_unsplit_model(result):
    """In two groups, with gradients that are clipped by the norm of all of them."""
    assert result["global_clipnorm"] < 1e-6


@pytest.mark.nightly
def test_weights_are_those_of_the_unsplit_model_in_more_cases():
    """In one, groups are fewer than before: the mean of their momenta is that of one model."""
    distances = run_apart(MODULE, "more")
    assert distances == pytest.approx(dict.fromkeys(distances, 0.0), abs=1e-6)


def test_peers_hold_the_same_bits(result):
    first, second, *others = result["digests"]
    assert others == [first, second]
    assert first[0] != second[0]  # parts
    assert first[1] == second[1]  # copies


def test_each_device_has_and_computes_its_part(result):
    places = result["places"]
    assert places["shapes"] == [[32, 16], [32, 16]]
    devices = [f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in range(4)]
    assert places["kernel"] == places["slot"] == places["residuals"] == devices
    assert len(set(places["products"].values())) == 1 and set(places["products"]) == set("0123")
    assert places["described"] == "Dense, 1056 weights, of which each device holds 528"


def test_a_file_is_that_of_a_plain_model_and_training_goes_on_from_it(result):
    file = result["file"]
    assert file["classes"] == [True] * 3
    assert file["outputs"] < 1e-6 and file["again"] < 1e-6
    assert file["losses"][0] == pytest.approx(file["losses"][1], abs=1e-6)
    assert file["later"] < 1e-6
    assert file["merged"] == 0.0 and file["is_merged"]


@pytest.mark.nightly
def test_a_delayed_run_resumes_with_the_same_bits(tmp_path):
    assert run_apart(MODULE, "resume", str(tmp_path)) == [True, 40]


ERRORS = {
    "outside": "a call of the model outside of them. Use model.predict",
    "unsplit": "Call tf_onebit.model_parallel.split(model, strategy.model_groups) first",
    "other scope": "Make the model elsewhere, or pass the model_groups of its strategy",
    "not divided": "model_parallel must divide the number of devices of a process",
    "no number": "Received: model_parallel=0. Use 2 for pairs",
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_say_what_to_do(case, result):
    assert ERRORS[case] in result["errors"][case]


@pytest.mark.nightly
def test_processes_with_two_devices_each_train_one_model(tmp_path):
    """In every step or in blocks, and with the same bits after an interruption."""
    job = run_job("tensorflow", 2, ["-m", MODULE, "cluster", str(tmp_path)], timeout_seconds=240)
    assert job.returncode == 0, job.output
    lines = [line for line in job.output.splitlines() if line.endswith("}")]
    first, second = (json.loads(line[line.index("{") :]) for line in lines)
    for result in (first, second):
        assert result["mlp"] < 1e-6 and result["blocks"] < 1e-6
        assert result["resumed"] == [True, 40]
    assert first["digests"] == second["digests"]
    assert first["digests"][0][0] != first["digests"][1][0]  # parts
    assert first["digests"][0][1] == first["digests"][1][1]  # copies
    assert max(first["outputs"], second["outputs"]) < 1e-6
