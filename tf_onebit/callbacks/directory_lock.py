"""The lock on a directory of backups, which only one job may use at a time."""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import socket
import time
import warnings

_WAIT_SECONDS = 10  # for a job that is just ending
_POLL_SECONDS = 0.1
_IN_USE = errno.EAGAIN, errno.EACCES
# The locks of this process: file descriptors by path. A `fit` that ended in an error still holds
# its lock, because callbacks are not told. The next `fit` takes the lock over.
_held: dict[str, int] = {}
os.register_at_fork(after_in_child=_held.clear)


class DirectoryLock:
    """A lock that the first process of a job holds, in a file that names its owner.

    It is a POSIX lock, which the system releases when the process ends in any way. So a killed job
    does not block others, and neither do processes that it has started.

    Args:
        path: path of the file.
        job: string that names the job.
    """

    def __init__(self, path, job):
        self._path, self._job = path.resolve(), job

    def acquire(self):
        """Takes the lock, and writes its owner into the file.

        Raises:
            OSError: if another running job holds it, or the file cannot be written.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        while not self._acquired(may_wait=time.monotonic() < deadline):
            time.sleep(_POLL_SECONDS)
        owner = {
            "job": self._job,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.datetime.now().isoformat(" ", "seconds"),
        }
        descriptor = _held[self._path]
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
        os.fsync(descriptor)

    def is_of_this_job(self):
        """Tells whether the file names this job. Its other processes call this, too."""
        descriptor = _held.get(self._path)
        owner = _owner(self._path) if descriptor is None else _read(descriptor)
        return owner.get("job") == self._job

    def require(self):
        """Takes the lock again if its file has been removed.

        Raises:
            OSError: if another job has the directory, which is possible where locks do not work.
        """
        descriptor = _held.get(self._path)
        if descriptor is None or not _is_file(descriptor, self._path):
            self.acquire()
        elif (owner := _read(descriptor)).get("job") != self._job:
            raise _in_use(owner)

    def release(self):
        """Removes the file and releases the lock, if this process holds it."""
        descriptor = _held.pop(self._path, None)
        if descriptor is None:
            return
        with contextlib.suppress(OSError):
            if _is_file(descriptor, self._path) and _read(descriptor).get("job") == self._job:
                self._path.unlink()
        os.close(descriptor)

    def _acquired(self, may_wait):
        descriptor = _held.get(self._path)
        if descriptor is not None:
            if _is_file(descriptor, self._path):
                return True
            os.close(_held.pop(self._path))  # its file has been removed
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _IN_USE:
                owner = _read(descriptor)
                os.close(descriptor)
                if may_wait:
                    return False
                raise _in_use(owner) from None
            warnings.warn(
                f"The file system of {self._path.parent} has no locks ({error.strerror}). Make "
                "sure that no two jobs use the directory at the same time.",
                stacklevel=2,
            )
        if not _is_file(descriptor, self._path):  # its holder has removed it meanwhile
            os.close(descriptor)
            return False
        _held[self._path] = descriptor
        return True


def _in_use(owner):
    told = ", ".join(f"{name} {value}" for name, value in owner.items())
    return OSError(f"another job uses it ({told}). End that job, or name another directory")


def _is_file(descriptor, path):
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _read(descriptor):
    """Reads the file of an open lock.

    It uses the open descriptor: closing another one of this file would release the lock.
    """
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        owner = {}
    return owner if isinstance(owner, dict) else {}


def _owner(path):
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return {}
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)
