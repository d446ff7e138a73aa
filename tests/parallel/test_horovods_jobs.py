"""A job of its own, for actions that are possible only once in a job."""

import pathlib

from tests.support.launch import horovodrun

PROGRAM = str(pathlib.Path(__file__).with_name("train_as_with_horovod.py"))


def test_a_program_for_horovod_ends_with_what_to_write():
    job = horovodrun(2, [PROGRAM])
    for line in (
        "0: the last sum is 2, and 1 came last",
        "1: the last sum is 1, and 1 came last",
        "1: by itself it has itself",
        "0: the weight is -0.5",
        "1: the weight is -0.5",
        "RuntimeError: join cannot answer an exchange of gradients",
    ):
        assert line in job.output
    assert "AutoGraph could not transform" not in job.output
    assert job.returncode != 0
