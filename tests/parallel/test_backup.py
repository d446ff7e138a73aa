"""A run that is killed and started again ends with the same bits as one that was not."""

import shutil

import numpy as np
import pytest

from tests.support.bits import assert_same_bits
from tests.support.launch import run_job
from tests.support.nightly import nightly


def train(engine, directory, output, *arguments, world_size=2):
    """Runs `train_with_backup`. Returns its exit status and what it printed."""
    command = ["-m", "tests.parallel.train_with_backup", "--engine", engine, *arguments]
    command += ["--directory", str(directory), "--output", str(output)]
    job = run_job(engine, world_size, command)
    return job.returncode, job.output


def assert_success(ended):
    status, output = ended
    assert status == 0, output


def results(output):
    """Returns the last loss, the weights and the optimizer's state of every rank."""
    return [list(np.load(path).values()) for path in sorted(output.glob("*.npz"))]


def assert_same_results(run, other):
    for mine, theirs in zip(run, other, strict=True):
        assert_same_bits(mine, theirs)


def train_and_kill(engine, folder, *arguments):
    """Trains undisturbed, and then until it is killed, both in the same processes.

    Returns:
        The folders of the killed run's backups, and of the undisturbed run's results.
    """
    backups, expected = folder / "backups", folder / "expected"
    arguments = [*arguments, "--undisturbed", str(expected)]
    status, output = train(engine, backups, folder / "unfinished", *arguments)
    assert status != 0
    assert results(expected) and not results(folder / "unfinished"), output
    assert not (expected / "backups").exists()  # they are not needed any more
    assert list(backups.glob("backup-*")), output
    return backups, expected


def train_and_copy(engine, folder, *arguments):
    """Trains a model that is built, and keeps the files that a kill would have left behind.

    Returns:
        The folders of these files, and of the run's results.
    """
    backups, expected = folder / "backups", folder / "expected"
    arguments = [*arguments, "--copy", str(backups), "--built"]
    assert_success(train(engine, folder / "training", expected, *arguments))
    assert list(backups.glob("backup-*"))
    return backups, expected


# The engine, where a kill would end the run, and how it trains. The models of some are built when
# they are resumed, and others in their first step.
CASES = {
    "alone": ("alone", ["--die-at", "14"], ["--save-freq", "4", "--steps-per-execution", "2"]),
    "horovod": ("horovod", ["--die-at", "20"], ["--save-freq", "3", "--delayed", "--built"]),
    "tensorflow": ("tensorflow", ["--die-at", "13"], ["--save-freq", "4", "--own", "--delayed"]),
    # Blocks of four steps, in epochs of nine: the last backup is in the middle of the fourth block.
    "a_block": ("horovod", ["--die-at", "16"], ["--save-freq", "3", "--bmuf", "--built"]),
    # There the first fragment is under way, which has begun after the same step.
    "a_fragment": (
        "tensorflow",
        ["--die-at", "16"],
        ["--save-freq", "3", "--bmuf", "--overlap", "--built"],
    ),
    # The state is that before the trial.
    "a_trial": ("tensorflow", ["--die-in-trial", "3"], ["--save-freq", "3", "--tune", "--built"]),
}


@pytest.mark.parametrize(
    "case", ["tensorflow", "a_fragment", *nightly("horovod", "alone", "a_block", "a_trial")]
)
def test_resumed_run_has_the_same_bits(case, tmp_path):
    engine, death, arguments = CASES[case]
    directory, expected = train_and_copy(engine, tmp_path, *arguments, *death)
    assert_success(train(engine, directory, tmp_path / "output", *arguments))
    assert_same_results(results(tmp_path / "output"), results(expected))


@pytest.mark.parametrize("engine", ["alone", *nightly("tensorflow")])
def test_run_that_was_killed_while_it_saved_has_the_same_bits(engine, tmp_path):
    arguments = ["--data", "dataset", "--save-freq", "2", "--steps-per-execution", "2", "--built"]
    # Rank 0 flushes two files when it begins: one to test the folder, and the lock. For a backup it
    # flushes four: its state, then the manifest and two directories when all workers are done.
    death = ["--die-at-file", "28"]
    directory, expected = train_and_kill(engine, tmp_path, *arguments, *death)
    assert list(directory.glob("unfinished-*"))
    assert_success(train(engine, directory, tmp_path / "output", *arguments))
    assert_same_results(results(tmp_path / "output"), results(expected))


KILLED = {
    "horovod": (20, ["--data", "sequence", "--save-freq", "3"]),
    "mirrored": (13, ["--save-freq", "3"]),
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Returns a function that copies the backups of two workers, one of which was killed.

    That function returns the folder with the results of an undisturbed run.
    """
    finished = {}

    def copy(engine, backups):
        if engine not in finished:
            step, arguments = KILLED[engine]
            folder = tmp_path_factory.mktemp(engine)
            finished[engine] = train_and_kill(engine, folder, *arguments, "--die-at", str(step))
        directory, expected = finished[engine]
        assert not list(directory.glob("unfinished-*"))
        shutil.copytree(directory, backups)
        return expected

    return copy


def newest(directory):
    return max(directory.glob("backup-*"))


@pytest.mark.nightly
def test_killed_run_of_two_devices_has_the_same_bits(killed, tmp_path):
    expected = killed("mirrored", tmp_path / "backups")
    arguments = KILLED["mirrored"][1]
    assert_success(train("mirrored", tmp_path / "backups", tmp_path / "output", *arguments))
    assert_same_results(results(tmp_path / "output"), results(expected))


@pytest.mark.nightly
def test_killed_run_of_an_exchange_of_ones_own_has_the_same_bits(tmp_path):
    arguments = ["--save-freq", "3", "--own"]
    directory, expected = train_and_kill("mirrored", tmp_path, *arguments, "--die-at", "13")
    assert_success(train("mirrored", directory, tmp_path / "output", *arguments))
    assert_same_results(results(tmp_path / "output"), results(expected))


def test_killed_run_has_the_same_bits_from_the_backup_before_a_truncated_one(killed, tmp_path):
    expected = killed("horovod", tmp_path / "damaged")
    # Only rank 1 finds the damage, but both must go on from the same place.
    damaged = newest(tmp_path / "damaged") / "process_1.npz"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    ended = train("horovod", tmp_path / "damaged", tmp_path / "output", *KILLED["horovod"][1])
    assert_success(ended)
    assert "A backup cannot be used" in ended[1]
    assert_same_results(results(tmp_path / "output"), results(expected))


def test_resumed_by_one_worker_more(killed, tmp_path):
    killed("horovod", tmp_path / "backups")
    arguments = [*KILLED["horovod"][1], "--built"]
    ended = train("horovod", tmp_path / "backups", tmp_path / "output", *arguments, world_size=3)
    assert_success(ended)
    assert "Resuming a run of 2 workers with 3" in ended[1]
    weights = [rank[1] for rank in results(tmp_path / "output")]
    assert len(weights) == 3
    assert_same_bits([weights[0]], [weights[1]])


@pytest.mark.nightly
def test_resumed_with_more_devices(killed, tmp_path):
    killed("mirrored", tmp_path / "backups")
    arguments = [*KILLED["mirrored"][1], "--devices", "3"]
    ended = train("mirrored", tmp_path / "backups", tmp_path / "output", *arguments)
    assert_success(ended)
    assert "Resuming a run of 2 workers with 3" in ended[1]
