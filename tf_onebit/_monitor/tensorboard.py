"""TensorBoard scalars over steps."""

import time

import tensorflow as tf

# `tf.summary.scalar` would need TensorBoard to be installed where the job runs.
_SCALAR = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"}, data_class=1)
# Between two training steps the code that writes has left the caches. A second scalar right after
# the first costs a fifth of it, so scalars are written together.
_SECONDS_BETWEEN_WRITES = 1.0


class Scalars:
    """A writer of scalars into a folder of logs, at most once per second.

    Args:
        log_dir: path of the folder.
    """

    def __init__(self, log_dir):
        self._writer = tf.summary.create_file_writer(str(log_dir))
        self._pending = []
        self._written = time.monotonic()

    def add(self, step, scalars):
        """Adds the scalars of a step: dictionary from tags to floats."""
        if scalars:
            self._pending.append((step, scalars))
        if time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self._write()

    def close(self):
        """Writes the pending scalars, and closes the writer."""
        self._write()
        self._writer.close()

    def _write(self):
        # Keras' TensorBoard callback would leave out summaries of steps other than its own.
        with self._writer.as_default(), tf.summary.record_if(True):
            for step, scalars in self._pending:
                tf.summary.experimental.write_raw_pb(_summary(scalars), step)
        self._pending = []
        self._written = time.monotonic()


def _summary(scalars):
    """Serializes the scalars of a step.

    The message is made by hand: all scalars together take less time than one `tf.summary.scalar`.
    """
    summary = tf.compat.v1.Summary()
    for tag, value in scalars.items():
        scalar = summary.value.add(tag=tag, metadata=_SCALAR).tensor
        scalar.dtype = tf.float32.as_datatype_enum
        scalar.float_val.append(value)
    return summary.SerializeToString()
