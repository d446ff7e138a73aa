"""Jobs with split models that end in an error, or go on with another number of processes."""

import re

from tests.support.launch import horovodrun

PROGRAM = ["-m", "tests.parallel.train_in_groups"]


def test_saving_on_one_process_alone_ends_in_an_error():
    """Also where members train in blocks: then groups may come late, but members may not."""
    job = horovodrun(2, [*PROGRAM, "save_alone", "", "2"])
    assert job.returncode != 0
    assert "Worker 1 has begun another epoch. Worker 0 is here: model.save" in job.output
    assert "Use the same callbacks that end training (EarlyStopping) or save models" in job.output


def test_members_with_different_data_end_in_an_error():
    job = horovodrun(2, [*PROGRAM, "other_data"])
    assert job.returncode != 0
    assert "Received: a batch on rank 0, and another one on rank 1 of the same group" in job.output


def test_training_goes_on_with_another_number_of_groups(tmp_path):
    """Each process takes the parts of its own member, and the unsent gradients of its peers."""
    losses = []
    for world_size, epochs in ((4, 1), (2, 2)):
        job = horovodrun(world_size, [*PROGRAM, "resume", str(tmp_path), str(epochs)])
        told = re.findall(r"rank \d: (\d+) steps, loss ([\d.]+)", job.output)
        assert len(told) == world_size, job.output
        assert {steps for steps, _ in told} == {str(20 * epochs)}
        losses.append(max(float(loss) for _, loss in told))
    assert losses[1] < losses[0] - 0.2
