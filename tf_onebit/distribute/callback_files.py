"""Files that callbacks write: all workers run the same ones, and one worker may write each file."""

import contextlib
import os
import pathlib
import shutil
import tempfile
import zlib

import keras
import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, ask

# Keras' callbacks that write, and which of their attributes says where.
_PLACES = {
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.TensorBoard: "log_dir",
    keras.callbacks.BackupAndRestore: "backup_dir",
}


def write_apart(callbacks, engine):
    """Has Keras' callbacks write where they say on worker 0 only, during one `fit`.

    On other workers those that name the same place write to a folder that is removed: to save a
    model may take all of them.

    Args:
        callbacks: what `fit` was given.
        engine: `Engine` of the workers, all of which call this.
    """
    writers = [c for c in _listed(callbacks) if _place_of(c) is not None]
    for callback in writers:
        _come_back(callback)  # from a fit that was interrupted
    (rank,) = engine.ranks
    rows = [[rank, _checksum(os.path.abspath(getattr(c, _place_of(c))))] for c in writers]
    mine = tf.constant(rows or tf.zeros([0, 2], tf.int64), tf.int64)
    (places,) = engine.meet([ask(AllGather(mine, "tf_onebit/files", uneven=True))], "fit")
    of_first = {checksum for owner, checksum in places.numpy().tolist() if owner == 0}
    if rank == 0:
        return
    for callback, (_, checksum) in zip(writers, rows, strict=True):
        if checksum in of_first:
            cls = type(callback)
            callback.__class__ = type(cls.__name__, (_Elsewhere, cls), {"_class": cls})
            if not isinstance(callback, keras.callbacks.BackupAndRestore):
                callback._go()


def _listed(callbacks):
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks.callbacks
    return [c for c in keras.tree.flatten(callbacks) if c is not None]


def _place_of(callback):
    return next((place for cls, place in _PLACES.items() if isinstance(callback, cls)), None)


def _checksum(text):
    return zlib.crc32(text.encode())


def _come_back(callback):
    if isinstance(callback, _Elsewhere):
        callback._come_back()


class _Elsewhere:
    """Writes to a folder of its own until training has ended.

    A mixin for a callback that writes.
    """

    _folder = None

    def _go(self):
        place = os.fspath(getattr(self, _place_of(self)))
        self._folder = tempfile.TemporaryDirectory(prefix="tf_onebit_", ignore_cleanup_errors=True)
        other = os.path.join(self._folder.name, os.path.basename(place) or "files")
        # Paths of single files are made from it as soon as a callback is.
        self._paths = {
            name: path
            for name, path in vars(self).items()
            if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(place)
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
        # BackupAndRestore reads what worker 0 has written, before that writes again.
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
