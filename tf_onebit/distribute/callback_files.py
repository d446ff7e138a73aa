"""Files that callbacks write: all workers run the same ones, and one worker may write each file."""

import contextlib
import os
import pathlib
import random
import shutil
import tempfile
import zlib

import keras
import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, one_request

# Keras' callbacks that write, and which of their attributes says where.
_PLACES = {
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.TensorBoard: "log_dir",
    keras.callbacks.BackupAndRestore: "backup_dir",
}
# A file that worker 0 makes for a moment.
_MARK = ".tf_onebit_{}"


def write_apart(callbacks, engine):
    """Has Keras' callbacks write where they say on worker 0 only, during one `fit`.

    Workers that name the same place, in the same file system, write to a folder that is removed: to
    save a model may take all workers. Those that see another file system write there.

    Args:
        callbacks: what `fit` was given.
        engine: `Engine` of the workers, all of which call this.
    """
    writers = [c for c in _listed(callbacks) if _place_of(c) is not None]
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
        # Marks stay until all have looked for them.
        engine.meet([one_request(AllGather(tf.constant([0]), "tf_onebit/files_seen"))], "fit")


def _absolute(place):
    return place if _is_remote(place) else os.path.abspath(place)


def _is_remote(place):
    return "://" in place  # as of a bucket, which all see


@contextlib.contextmanager
def _mark(place):
    """Context in which a file shows that a place is in this file system: gives its number, or 0."""
    if _is_remote(place):
        yield 0
        return
    folder = next(parent for parent in pathlib.Path(place).parents if parent.is_dir())
    number = random.SystemRandom().randrange(1, 2**62)
    mark = folder / _MARK.format(number)
    try:
        mark.touch()
    except OSError:  # which whoever writes there will meet, and tell
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


def _listed(callbacks):
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks.callbacks
    return [c for c in keras.tree.flatten(callbacks) if c is not None]


def _is_within(path, place):
    rest = path.removeprefix(place)
    return path.startswith(place) and (not rest or rest[0] in f"{os.sep}.")


def _place_of(callback):
    return next((place for cls, place in _PLACES.items() if isinstance(callback, cls)), None)


def _checksum(text):
    return zlib.crc32(text.encode())


class _Elsewhere:
    """Writes to a folder of its own until training has ended.

    A mixin for a callback that writes.
    """

    _folder = None

    @staticmethod
    def begin(callback):
        """Makes a callback one of this class, until training has ended."""
        cls = type(callback)
        callback.__class__ = type(cls.__name__, (_Elsewhere, cls), {"_class": cls})
        # BackupAndRestore first reads what worker 0 has written.
        if not isinstance(callback, keras.callbacks.BackupAndRestore):
            callback._go()

    def _go(self):
        place = os.fspath(getattr(self, _place_of(self)))
        self._folder = tempfile.TemporaryDirectory(prefix="tf_onebit_", ignore_cleanup_errors=True)
        other = os.path.join(self._folder.name, os.path.basename(place) or "files")
        # Paths of single files are made from it as soon as a callback is.
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
        self.__class__ = self._class

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
        """Models of all epochs could fill a disk."""
        if not isinstance(self, keras.callbacks.ModelCheckpoint):
            return
        for path in pathlib.Path(self._folder.name).iterdir():
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
