"""The files of backups: where they are, and how they are written, read and removed.

At any moment a process may be killed, a disk may be full, and a bit may be wrong. So a directory
gets its name when it is complete, and loses it before it is removed; and everything in it has a
checksum.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import tempfile

import numpy as np

from tf_onebit._version import __version__
from tf_onebit.callbacks.directory_lock import DirectoryLock

_FORMAT = "tf_onebit backup 2"
_WITHOUT_CHECKSUMS = "tf_onebit backup 1"
_MANIFEST = "manifest.json"
_REMAINS = r"unfinished-\d{8}(-[0-9a-f]+)?|unfinished-replica-\d+\.weights\.h5|removed-\d{8}"
_KEPT = 2  # the second in case that the first turns out to be damaged


class BackupFiles:
    """The files of the backups in a directory::

        lock                        which job uses the directory
        backup-00000007/            a complete backup
            manifest.json           what it is of, and checksums
            process_0.npz           the state of each process
        unfinished-00000008-<job>/  one that is being written
        removed-00000005/           one that is being removed
        replica-0.weights.h5        the model as a worker had it that lost another

    The first process of a job holds the lock. It alone completes and removes backups.

    Args:
        directory: of all processes of a job.
    """

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self._job = self._lock = None

    def path(self, number):
        return self.directory / f"backup-{number:08d}"

    def require_writable(self):
        """Makes the directory. Raises OSError if this process cannot, or cannot write in it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.directory) as file:
            file.write(b"0")
            _flush(file)

    def begin(self, job, is_first):
        """Has a process use the directory for a job.

        Args:
            job: what names the job: hexadecimal digits.
            is_first: whether it is the job's first process, which locks the directory and removes
                what an earlier job has left unfinished.

        Raises:
            OSError: for the first process, if another job that is running uses the directory.
        """
        self._job = job
        self._lock = DirectoryLock(self.directory / "lock", job)
        if is_first:
            self._lock.acquire()
            for path in self._own(_REMAINS):
                _remove(path)

    def is_of_this_job(self):
        """Tells whether this process finds in the directory what the first has written."""
        return self._lock.is_of_this_job()

    def newest(self):
        """The numbers of the newest complete backups, newest first: list, with 0 for none."""
        numbers = [int(path.name.split("-")[1]) for path in self._backups()]
        return (numbers + [0] * _KEPT)[:_KEPT]

    def write(self, number, rank, state):
        """Writes the state of a process, of a backup to come.

        Args:
            number: of the backup.
            rank: of the process.
            state: dictionary of NumPy arrays.

        Returns:
            The checksum of what was written: bytes.
        """
        unfinished = self._unfinished(number)
        unfinished.mkdir(parents=True, exist_ok=True)
        path = _process(unfinished, rank)
        with path.open("wb") as file:
            np.savez(file, **state)
            _flush(file)
        return _checksum(path)

    def complete(self, number, checksums, fields):
        """Makes a backup of what all processes have written, and removes those it replaces.

        Args:
            number: of the backup.
            checksums: list of what `write` returned in each process.
            fields: dictionary of what JSON can hold: what the backup is of.
        """
        self._lock.require()
        target, unfinished = self.path(number), self._unfinished(number)
        for rank in range(len(checksums)):
            _process(unfinished, rank).stat()  # raises if it is not there
        manifest = json.loads(json.dumps(fields)) | {
            "format": _FORMAT,
            "version": __version__,
            "job": self._job,
            "number": number,
            "processes": len(checksums),
            "checksums": [checksum.hex() for checksum in checksums],
        }
        with (unfinished / _MANIFEST).open("w") as file:
            json.dump({"manifest": manifest, "checksum": _checksum_of_json(manifest)}, file)
            _flush(file)
        _flush_directory(unfinished)
        if target.exists():  # damaged: it was not resumed from
            self._discard(target)
        unfinished.rename(target)
        _flush_directory(self.directory)
        with contextlib.suppress(OSError):  # the backup is complete all the same
            for old in self._backups()[_KEPT:]:
                self._discard(old)

    def abandon(self, number):
        """Removes what has been written of a backup that will not be completed."""
        _remove(self._unfinished(number))

    def read_manifest(self, number):
        """Reads the description of a complete backup: dictionary.

        Raises:
            ValueError: if it is not whole.
        """
        manifest = json.loads((self.path(number) / _MANIFEST).read_bytes())
        if "manifest" in manifest:
            checksum, manifest = manifest["checksum"], manifest["manifest"]
            if checksum != _checksum_of_json(manifest):
                raise ValueError(f"its {_MANIFEST} is damaged: it has another checksum")
            expected = _FORMAT
        else:
            expected = _WITHOUT_CHECKSUMS
        if manifest.get("format") != expected:
            raise ValueError(f"it is no backup of this version: {manifest.get('format')!r}")
        _require_fields(manifest, number)
        return manifest

    def read_process(self, manifest, rank):
        """The state of a process in a complete backup: dictionary of NumPy arrays.

        Raises:
            ValueError: if it is not whole.
        """
        path = _process(self.path(manifest["number"]), rank)
        checksums = manifest.get("checksums")  # not in all versions
        if checksums is not None and _checksum(path).hex() != checksums[rank]:
            raise ValueError(f"its {path.name} is damaged: it has another checksum")
        with np.load(path) as file:
            return dict(file)

    def write_replica(self, rank, save):
        """Has `save` write the weights of a worker's model to a path, which is returned."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"replica-{rank}.weights.h5"
        unfinished = self.directory / f"unfinished-{path.name}"
        save(unfinished)
        unfinished.rename(path)
        return path

    def end(self, removes):
        """Gives the directory back.

        Args:
            removes: whether all that backups have made in it goes, and it, if nothing else is
                there. Oldest first: whoever is killed meanwhile still has the newest.
        """
        with contextlib.suppress(OSError):  # of another job, where nothing can be locked
            self._lock.require()
            for path in reversed(self._backups()) if removes else ():
                self._discard(path)
            for path in self._own(r"replica-\d+\.weights\.h5") if removes else ():
                path.unlink()
        self._lock.release()
        if removes:
            with contextlib.suppress(OSError):  # others' files are in it
                self.directory.rmdir()

    def _discard(self, path):
        """Removes a directory, of which no part is ever found under its own name."""
        removed = self.directory / f"removed-{path.name.split('-')[1]}"
        _remove(removed)
        path.rename(removed)
        _remove(removed)

    def _unfinished(self, number):
        return self.directory / f"unfinished-{number:08d}-{self._job}"

    def _backups(self):
        """Directories of complete backups, newest first."""
        return sorted(self._own(r"backup-\d{8}"), reverse=True)

    def _own(self, name):
        """Lists what backups have made in the directory, by a pattern, and nothing else."""
        return [path for path in self.directory.glob("*") if re.fullmatch(name, path.name)]


def _require_fields(manifest, number):
    """Raises ValueError unless a manifest has what is read of it, of the types it must have."""
    least = {"processes": 1, "workers": 1, "epoch": 0, "batch": 0, "number": number}
    for name, bound in least.items():
        value = manifest.get(name)
        if type(value) is not int or value < bound:
            raise ValueError(f"its {_MANIFEST} is damaged: {name} is {value!r}")
    steps = manifest.get("steps", 0)
    if steps is not None and (type(steps) is not int or steps < 1):
        raise ValueError(f"its {_MANIFEST} is damaged: steps is {steps!r}")
    if manifest["number"] != number:
        raise ValueError(f"it is number {manifest['number']}")


def _process(backup, rank):
    return backup / f"process_{rank}.npz"


def _checksum(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _checksum_of_json(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _flush(file):
    file.flush()
    os.fsync(file.fileno())


def _flush_directory(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path):
    """Removes what has no name of its own any more. What is left of it, the next job removes."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
