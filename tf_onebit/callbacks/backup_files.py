"""The files of backups: where they are, and how they are written, read and removed.

At any moment a process may be killed, a disk may be full, and a bit may be wrong. So a directory
gets its final name when it is complete, and loses it before it is removed. All its files have
checksums.
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
_KEPT = 2  # the second replaces the first if that is damaged


class BackupFiles:
    """The files of the backups in a directory.

    The directory contains::

        lock                        names the job that uses the directory
        backup-00000007/            a complete backup
            manifest.json           its description, and checksums
            process_0.npz           the state of each process
        unfinished-00000008-<job>/  a backup that is being written
        removed-00000005/           a backup that is being removed
        replica-0.weights.h5        the model of a worker that lost another worker

    The first process of a job holds the lock. Only it completes and removes backups.

    Args:
        directory: path, the same for all processes of a job.
    """

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self._job = self._lock = None

    def path(self, number):
        return self.directory / f"backup-{number:08d}"

    def require_writable(self):
        """Creates the directory, and raises OSError if this process cannot write in it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.directory) as file:
            file.write(b"0")
            _flush(file)

    def begin(self, job, is_first):
        """Begins to use the directory for a job.

        Args:
            job: name of the job: hexadecimal digits.
            is_first: whether this is the job's first process, which locks the directory and removes
                unfinished files of an earlier job.

        Raises:
            OSError: for the first process, if another running job uses the directory.
        """
        self._job = job
        self._lock = DirectoryLock(self.directory / "lock", job)
        if is_first:
            self._lock.acquire()
            for path in self._own(_REMAINS):
                _remove(path)

    def is_of_this_job(self):
        """Tells whether this process finds the lock file of this job in the directory."""
        return self._lock.is_of_this_job()

    def newest(self):
        """Returns the numbers of the newest complete backups, newest first.

        Returns:
            List of two ints. Missing backups are 0.
        """
        numbers = [int(path.name.split("-")[1]) for path in self._backups()]
        return (numbers + [0] * _KEPT)[:_KEPT]

    def write(self, number, rank, state):
        """Writes the state of a process into a backup that is not complete yet.

        Args:
            number: number of the backup.
            rank: rank of the process.
            state: dictionary of NumPy arrays.

        Returns:
            The checksum of the written file: bytes.
        """
        unfinished = self._unfinished(number)
        unfinished.mkdir(parents=True, exist_ok=True)
        path = _process(unfinished, rank)
        with path.open("wb") as file:
            np.savez(file, **state)
            _flush(file)
        return _checksum(path)

    def complete(self, number, checksums, fields):
        """Completes a backup that all processes have written, and removes the older ones.

        Args:
            number: number of the backup.
            checksums: list of the checksums that `write` returned, by process.
            fields: description of the backup: dictionary of JSON values.

        Raises:
            OSError: if a file is missing or cannot be written, or another job has the directory.
        """
        self._lock.require()
        target, unfinished = self.path(number), self._unfinished(number)
        for rank in range(len(checksums)):
            _process(unfinished, rank).stat()  # raises OSError if the file is missing
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
        with contextlib.suppress(OSError):  # the backup is complete even if this fails
            for old in self._backups()[_KEPT:]:
                self._discard(old)

    def abandon(self, number):
        """Removes the files of a backup that will not be completed."""
        _remove(self._unfinished(number))

    def read_manifest(self, number):
        """Reads the description of a complete backup: dictionary.

        Raises:
            ValueError: if it is damaged or of another version.
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
        """Reads the state of a process in a complete backup: dictionary of NumPy arrays.

        Raises:
            ValueError: if it is damaged.
        """
        path = _process(self.path(manifest["number"]), rank)
        checksums = manifest.get("checksums")  # not in all versions
        if checksums is not None and _checksum(path).hex() != checksums[rank]:
            raise ValueError(f"its {path.name} is damaged: it has another checksum")
        with np.load(path) as file:
            return dict(file)

    def write_replica(self, rank, save):
        """Writes the weights of a worker's model by calling `save(path)`. Returns the path."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"replica-{rank}.weights.h5"
        unfinished = self.directory / f"unfinished-{path.name}"
        save(unfinished)
        unfinished.rename(path)
        return path

    def end(self, removes):
        """Releases the directory.

        Args:
            removes: whether all files of backups are removed, and the directory if it is then
                empty. The oldest backup goes first: a job that is killed meanwhile still has the
                newest.
        """
        with contextlib.suppress(OSError):  # another job may have it, if locks do not work
            self._lock.require()
            for path in reversed(self._backups()) if removes else ():
                self._discard(path)
            for path in self._own(r"replica-\d+\.weights\.h5") if removes else ():
                path.unlink()
        self._lock.release()
        if removes:
            with contextlib.suppress(OSError):  # the directory has other files
                self.directory.rmdir()

    def _discard(self, path):
        """Removes a directory under another name, so that its own never names a part of it."""
        removed = self.directory / f"removed-{path.name.split('-')[1]}"
        _remove(removed)
        path.rename(removed)
        _remove(removed)

    def _unfinished(self, number):
        return self.directory / f"unfinished-{number:08d}-{self._job}"

    def _backups(self):
        """Returns the directories of complete backups, newest first: list."""
        return sorted(self._own(r"backup-\d{8}"), reverse=True)

    def _own(self, name):
        """Returns the paths in the directory whose whole name matches a pattern: list."""
        return [path for path in self.directory.glob("*") if re.fullmatch(name, path.name)]


def _require_fields(manifest, number):
    """Raises ValueError unless a manifest has the fields that are read, of the right types."""
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
    """Removes a renamed file or directory. The next job removes what remains after an error."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
