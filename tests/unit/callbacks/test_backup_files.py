"""Files of backups under kills, damage and full disks."""

import json
import os
import shutil

import numpy as np
import pytest

from tf_onebit.callbacks.backup_files import BackupFiles

STATE = {"weights": np.arange(6.0).reshape(2, 3), "random": np.array("seed")}
FIELDS = {"workers": 1, "epoch": 2, "batch": 4, "steps": None, "model": [{"layer": "dense"}]}


def begun(directory, job="ab"):
    files = BackupFiles(directory)
    files.require_writable()
    files.begin(job, is_first=True)
    return files


def save(files, number):
    checksum = files.write(number, 0, STATE | {"number": np.array(number)})
    files.complete(number, [checksum], FIELDS)


def read(files, number):
    manifest = files.read_manifest(number)
    return manifest, files.read_process(manifest, 0)


@pytest.fixture
def files(tmp_path):
    """Returns a directory with two backups."""
    files = begun(tmp_path / "backups")
    for number in (1, 2):
        save(files, number)
    yield files
    files.end(removes=False)


def test_what_was_written_is_read(files):
    manifest, state = read(files, 2)
    assert FIELDS.items() <= manifest.items()
    assert manifest["processes"] == 1 and manifest["job"] == "ab"
    assert state.keys() == {*STATE, "number"}
    np.testing.assert_array_equal(state["weights"], STATE["weights"])


def damaged(content):
    """Yields a file's content with one bit flipped, for each of its bits."""
    for byte in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[byte] ^= 1 << bit
            yield bytes(flipped)


def test_no_flipped_bit_in_a_manifest_passes_for_another_backup(files):
    path = files.path(2) / "manifest.json"
    content = path.read_bytes()
    expected, refused = files.read_manifest(2), 0
    for flipped in damaged(content):
        path.write_bytes(flipped)
        try:
            assert files.read_manifest(2) == expected
        except (ValueError, KeyError, AttributeError, TypeError):
            refused += 1
    assert refused > 7 * len(content)  # spaces between words may change


def test_a_flipped_bit_in_the_state_is_an_error(files):
    path = files.path(2) / "process_0.npz"
    content = bytearray(path.read_bytes())
    for byte in range(0, len(content), 17):
        content[byte] ^= 1
        path.write_bytes(content)
        content[byte] ^= 1
        with pytest.raises(ValueError, match=r"its process_0.npz is damaged"):
            read(files, 2)


def write_second_as_version_1(files, **changes):
    manifest = {"format": "tf_onebit backup 1", "version": "0", "number": 2, "processes": 1}
    manifest |= {name: FIELDS[name] for name in ("workers", "epoch", "batch", "steps")} | changes
    (files.path(2) / "manifest.json").write_text(json.dumps(manifest))


def test_backups_of_version_1_are_read(files):
    write_second_as_version_1(files)
    manifest, state = read(files, 2)
    assert (manifest["epoch"], manifest["batch"]) == (2, 4)
    assert state["number"] == 2


@pytest.mark.parametrize(
    "name, value", [("batch", None), ("epoch", -1), ("processes", 0), ("steps", "4"), ("number", 3)]
)
def test_every_field_of_a_manifest_is_checked(files, name, value):
    write_second_as_version_1(files, **{name: value})
    with pytest.raises(ValueError, match=f"{name} is|it is number 3"):
        files.read_manifest(2)


class Killed(BaseException):
    pass


def killed_at(number, monkeypatch):
    """Lets the process die before a certain change to the disk, counted from 1."""
    calls = 0

    def counting(function):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == number:
                raise Killed
            return function(*arguments, **options)

        return call

    for name in ("fsync", "rename", "unlink", "rmdir", "mkdir"):
        monkeypatch.setattr(os, name, counting(getattr(os, name)))


def save_third(files):
    save(files, 3)


def end(files):
    files.end(removes=True)


def replace_second(files):
    (files.path(2) / "manifest.json").write_text("")  # damaged
    save(files, 2)


def whole(files):
    """Returns the numbers of the backups that can be read, newest first."""
    numbers = []
    for number in filter(None, files.newest()):
        try:
            assert read(files, number)[1]["number"] == number
            numbers.append(number)
        except (ValueError, OSError):
            pass
    return numbers


@pytest.mark.parametrize(
    "change, newest, damaged",
    [(save_third, [2, 3], []), (replace_second, [1, 2], [2]), (end, [2, 0], [])],
)
def test_a_kill_at_any_moment_leaves_backups_that_can_be_used(
    change, newest, damaged, files, tmp_path, monkeypatch
):
    """At the end of training there may be none, but never a half-removed one."""
    (files.path(1) / "more").mkdir()  # must be removed before the backup
    shutil.copytree(files.directory, tmp_path / "original")
    for point in range(1, 100):
        with monkeypatch.context() as patch:
            killed_at(point, patch)
            try:
                change(files)
                break
            except Killed:
                pass
        numbers = whole(files)
        assert next(iter(numbers), 0) in newest
        assert {*files.newest()} - {*numbers, *damaged} <= {0}
        begun(files.directory, "cd").end(removes=False)  # removes leftovers
        assert {path.name.split("-")[0] for path in files.directory.iterdir()} <= {"backup"}
        shutil.rmtree(files.directory)
        shutil.copytree(tmp_path / "original", files.directory)
        files.begin("ab", is_first=True)
    assert 5 < point < 99
