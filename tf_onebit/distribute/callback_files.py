"""Files that callbacks write: all workers run the callbacks, but only one may write each file."""

import contextlib
import os
import pathlib
import random
import shutil
import tempfile
import zlib

import keras
import tensorflow as tf

from tf_onebit._framework_internals.class_changes import become, overlay
from tf_onebit.collectives.requests import AllGather, one_request

# Keras' callbacks that write, and the attributes that hold their paths.
_PLACES = {
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.TensorBoard: "log_dir",
    keras.callbacks.BackupAndRestore: "backup_dir",
}
# Name of a file that exists on worker 0 for a moment.
_MARK = ".tf_onebit_{}"


def write_apart(callbacks, engine):
    """Redirects the files that Keras' callbacks write on workers other than 0, during one `fit`.

    Workers that share a path with worker 0, in the same file system, write to a temporary folder.
    They must write, too, because saving a model may take all workers. Workers with another file
    system write to their own.

    Args:
        callbacks: list of the callbacks of `fit`.
        engine: `Engine` of the workers, all of which call this function.
    """
    writers = [c for c in callbacks if _place_of(c) is not None]
    for callback in writers:
        if isinstance(callback, _Elsewhere):  # from a fit that was interrupted
            callback._come_back()
    places = [_absolute(os.fspath(getattr(c, _place_of(c)))) for c in writers]
    (rank,) = engine.ranks
    with contextlib.ExitStack() as stack:
        rows = [
            [rank, _checksum(place), stack.enter_context(_mark(place)) if rank == 0 else 0]
            for place in places
        ]
        mine = tf.reshape(tf.constant(rows, tf.int64), [len(rows), 3])
        request = AllGather(mine, "tf_onebit/files", uneven=True)
        (everyones,) = engine.meet([one_request(request)], "fit")
        marks = {name: mark for owner, name, mark in everyones.numpy().tolist() if owner == 0}
        for callback, place in zip(writers, places, strict=True):
            if rank != 0 and _is_marked(place, marks.get(_checksum(place))):
                _Elsewhere.begin(callback)
        # The marks must exist until all workers have looked for them.
        engine.meet([one_request(AllGather(tf.constant([0]), "tf_onebit/files_seen"))], "fit")


def _absolute(place):
    return place if _is_remote(place) else os.path.abspath(place)


def _is_remote(place):
    return "://" in place  # such as a bucket, which all workers see


@contextlib.contextmanager
def _mark(place):
    """Keeps a mark file near a path during the context; yields its number, or 0 without a file.

    Remote paths, and folders that cannot be written to, get no file.
    """
    if _is_remote(place):
        yield 0
        return
    folder = next(parent for parent in pathlib.Path(place).parents if parent.is_dir())
    number = random.SystemRandom().randrange(1, 2**62)
    mark = folder / _MARK.format(number)
    try:
        mark.touch()
    except OSError:  # the callback that writes there reports the same error
        yield 0
        return
    try:
        yield number
    finally:
        mark.unlink(missing_ok=True)


def _is_marked(place, number):
    if _is_remote(place):
        return number is not None
    return any((parent / _MARK.format(number)).exists() for parent in pathlib.Path(place).parents)


def _is_within(path, place):
    rest = path.removeprefix(place)
    return path.startswith(place) and (not rest or rest[0] in f"{os.sep}.")


def _place_of(callback):
    return next((place for cls, place in _PLACES.items() if isinstance(callback, cls)), None)


def _checksum(text):
    return zlib.crc32(text.encode())


class _Elsewhere:
    """Mixin that redirects a callback's files to a temporary folder during training."""

    _folder = None
    _class = None

    @staticmethod
    def begin(callback):
        """Adds this mixin to a callback until training has ended."""
        overlay(callback, _Elsewhere, _class=type(callback))
        # BackupAndRestore first reads the files of worker 0.
        if not isinstance(callback, keras.callbacks.BackupAndRestore):
            callback._go()

    def _go(self):
        place = os.fspath(getattr(self, _place_of(self)))
        self._folder = tempfile.TemporaryDirectory(prefix="tf_onebit_", ignore_cleanup_errors=True)
        other = os.path.join(self._folder.name, os.path.basename(place) or "files")
        # Callbacks derive paths of single files from this one when they are made.
        self._paths = {
            name: path
            for name, path in vars(self).items()
            if isinstance(path, (str, os.PathLike)) and _is_within(os.fspath(path), place)
        }
        for name, path in self._paths.items():
            setattr(self, name, other + os.fspath(path).removeprefix(place))

    def _come_back(self):
        if self._folder is not None:
            self._folder.cleanup()
            for name, path in self._paths.items():
                setattr(self, name, path)
            del self._folder, self._paths
        become(self, self._class)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        if self._folder is None:
            self._go()

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self._forget_models()

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self._forget_models()

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        self._come_back()

    def _forget_models(self):
        """Removes saved models, which could fill a disk over many epochs."""
        if not isinstance(self, keras.callbacks.ModelCheckpoint):
            return
        for path in pathlib.Path(self._folder.name).iterdir():
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
