"""Jobs with split models that end in an error, or go on with another number of processes."""

import re

import pytest

from tests.support.launch import horovodrun
from tests.support.nightly import nightly_rows

PROGRAM = ["-m", "tests.parallel.train_in_groups"]


def test_saving_on_one_process_alone_ends_in_an_error():
    """Also where members train in blocks: then groups may come late, but members may not."""
    job = horovodrun(2, [*PROGRAM, "save_alone_in_blocks", "", "2"])
    assert job.returncode != 0
    assert "Worker 1 has begun another epoch. Worker 0 is here: model.save" in job.output
    assert "Use the same callbacks that end training (EarlyStopping) or save models" in job.output


def test_members_with_different_data_end_in_an_error():
    job = horovodrun(2, [*PROGRAM, "other_data"])
    assert job.returncode != 0
    assert "Received: a batch on rank 0, and another one on rank 1 of the same group" in job.output


@pytest.mark.parametrize(
    "world_size, action",
    [
        *((4, "exit"), *nightly_rows((2, "exit"), (2, "kill"), (4, "kill"))),
        *nightly_rows((2, "kill_in_blocks"), (4, "exit_in_blocks"), (4, "kill_in_blocks")),
    ],
)
def test_a_member_that_dies_ends_the_job(world_size, action):
    """Which process horovodrun names is not asserted: the others end within milliseconds."""
    job = horovodrun(world_size, [*PROGRAM, action], timeout_seconds=90)
    assert job.returncode != 0
    assert "rank 1 dies" in job.output, job.output
    assert re.search(r"Process \d exit with status code \d+\.", job.output), job.output
    assert "steps, loss" not in job.output  # no process has ended as if all were well


MIDDLE = (
    r"Worker [123] waits between two steps.* Worker [02] is still in the middle of its epoch after "
    "5 seconds.* Give them the same number of batches"
)


@pytest.mark.nightly
@pytest.mark.parametrize("action", ["uneven_members", "uneven_groups", "uneven_members_in_blocks"])
def test_numbers_of_batches_that_nobody_knows_end_the_job(action):
    job = horovodrun(4, [*PROGRAM, action], HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="5")
    assert job.returncode != 0
    assert re.search(MIDDLE, job.output), job.output


def test_saving_within_an_epoch_needs_the_same_number_of_batches_in_all_groups():
    job = horovodrun(4, [*PROGRAM, "save_in_uneven_groups_in_blocks"])
    assert job.returncode != 0
    places = r"(model\.save on worker [01]|the end of an epoch on worker [23])"
    assert re.search(f"Received: {places}, and something else on another group", job.output)
    assert "Give all groups the same number of batches, or save and evaluate at" in job.output


def resumed(action, directory):
    """Returns the output of a job of two processes, which goes on from one of four."""
    losses, digests = [], set()
    for world_size, epochs in ((4, 1), (2, 2)):
        job = horovodrun(world_size, [*PROGRAM, action, directory, str(epochs)])
        told = re.findall(r"rank \d: (\d+) steps, loss ([\d.]+)", job.output)
        assert len(told) == world_size, job.output
        assert {steps for steps, _ in told} == {str(20 * epochs)}
        losses.append(max(float(loss) for _, loss in told))
        begins = set(re.findall(r"begins with (\w+)", job.output))
        assert begins == digests or not digests  # with the weights that the other job had
        digests = set(re.findall(r"ends with (\w+)", job.output))
        assert len(begins) == len(digests) == 1
    assert losses[1] < losses[0] - 0.2
    return job.output


def test_training_goes_on_with_another_number_of_groups(tmp_path):
    """Each process takes the parts of its own member, and the unsent gradients of its peers."""
    resumed("resume", str(tmp_path))


@pytest.mark.nightly
def test_training_with_another_number_of_groups_is_that_of_an_unsplit_model(tmp_path):
    output = resumed("resume_in_full_precision", str(tmp_path))
    distances = re.findall(r"rank \d: ([\d.]+) from an unsplit model", output)
    assert len(distances) == 2 and max(map(float, distances)) < 1e-6
