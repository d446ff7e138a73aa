"""The files of backups: where they are, and how they are written, read and removed."""

import contextlib
import json
import os
import pathlib
import re
import shutil

import numpy as np

from tf_onebit._version import __version__

_FORMAT = "tf_onebit backup 1"
_MANIFEST = "manifest.json"
_KEPT = 2  # the second in case that the first turns out to be damaged


class BackupFiles:
    """The files of the backups in a directory::

        backup-00000007/       a complete backup
            manifest.json      what it is of
            process_0.npz      the state of each process
        unfinished-00000008/   one that is being written
        replica-0.weights.h5   the model as a worker had it that lost another

    Args:
        directory: of all processes of a job.
    """

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)

    def path(self, number):
        return self.directory / f"backup-{number:08d}"

    def newest(self):
        """The numbers of the newest complete backups, newest first: list, with 0 for none."""
        numbers = [int(path.name.split("-")[1]) for path in self._backups()]
        return (numbers + [0] * _KEPT)[:_KEPT]

    def write(self, number, rank, state):
        """Writes the state of a process, a dictionary of NumPy arrays, of a backup to come."""
        unfinished = self._unfinished(number)
        unfinished.mkdir(parents=True, exist_ok=True)
        with _process(unfinished, rank).open("wb") as file:
            np.savez(file, **state)
            _flush(file)

    def has_all(self, number, processes):
        """Whether so many processes have written their states of a backup to come."""
        unfinished = self._unfinished(number)
        return all(_process(unfinished, rank).exists() for rank in range(processes))

    def complete(self, number, fields):
        """Makes a backup of what all processes have written, and removes those it replaces.

        Args:
            number: of the backup.
            fields: dictionary of what JSON can hold: what it is of.
        """
        target, unfinished = self.path(number), self._unfinished(number)
        manifest = {"format": _FORMAT, "version": __version__, "number": number} | fields
        with (unfinished / _MANIFEST).open("w") as file:
            json.dump(manifest, file)
            _flush(file)
        if target.exists():  # damaged: it was not resumed from
            shutil.rmtree(target)
        unfinished.rename(target)
        for old in self._backups()[_KEPT:]:
            shutil.rmtree(old)

    def read_manifest(self, number):
        """The fields of a complete backup: dictionary."""
        manifest = json.loads((self.path(number) / _MANIFEST).read_text())
        if manifest.get("format") != _FORMAT:
            raise ValueError(f"it is no backup of this version: {manifest.get('format')!r}")
        return manifest

    def read_process(self, number, rank):
        """The state of a process in a complete backup: dictionary of NumPy arrays."""
        with np.load(_process(self.path(number), rank)) as file:
            return dict(file)

    def write_replica(self, rank, save):
        """Has `save` write the weights of a worker's model to a path, which is returned."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"replica-{rank}.weights.h5"
        unfinished = self.directory / f"unfinished-{path.name}"
        save(unfinished)
        unfinished.rename(path)
        return path

    def remove_all(self):
        """Removes all that backups have made in the directory, and it if nothing else is there."""
        for path in self._own(r"(backup|unfinished)-\d{8}"):
            shutil.rmtree(path)
        for path in self._own(r"replica-\d+\.weights\.h5"):
            path.unlink()
        with contextlib.suppress(OSError):  # others' files are in it, or it never was
            self.directory.rmdir()

    def _unfinished(self, number):
        return self.directory / f"unfinished-{number:08d}"

    def _backups(self):
        """Directories of complete backups, newest first."""
        return sorted(self._own(r"backup-\d{8}"), reverse=True)

    def _own(self, name):
        """What a backup has made in the directory, and not somebody else: by a pattern."""
        return [path for path in self.directory.glob("*") if re.fullmatch(name, path.name)]


def _process(backup, rank):
    return backup / f"process_{rank}.npz"


def _flush(file):
    file.flush()
    os.fsync(file.fileno())
