"""TensorBoard scalars over steps."""

import functools
import time

import tensorflow as tf

# What TensorBoard tells about a scalar, by its tag or by its group. It sorts groups by their names:
# few scalars come first, and one for each variable last.
DESCRIPTIONS = {
    "exchange/bytes_sent": "bytes that this worker sends per update",
    "exchange/compression_ratio": "bytes of an all-reduce in float32, divided by those sent",
    "exchange/residual_norm": "L2 norm of what this worker has not sent yet",
    "exchange/density": "fraction of values that exceeded the threshold, over all workers",
    "exchange/tau": "the threshold, in units of gradients or of updates",
    "exchange/staleness": "steps by which the slowest worker is behind this one",
    "exchange/delay": "own steps until this worker's updates reach the others",
    "exchange/seconds": "time per update in which some bucket is encoded, sent or decoded",
    "exchange/hidden_share": "part of that time before the last local gradient was ready",
    "exchange/work_seconds": "time per update of encoding, adding up and decoding",
    "exchange/synchronization_seconds": "time from the end of a block until training goes on",
    "step/seconds": "time of an update, including the wait for data",
    "step/predicted_seconds": "time of an update, as the program predicted it",
    "step/learning_rate": "learning rate at this step",
    "step/global_batch_size": "samples of an update on all workers",
    "variables": "L2 norm of what this worker has not sent yet of a variable",
}
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
        self._described = set()  # tags
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
                summary = _summary(scalars, scalars.keys() - self._described)
                tf.summary.experimental.write_raw_pb(summary, step)
                self._described.update(scalars)
        self._pending = []
        self._written = time.monotonic()


def _summary(scalars, new):
    """Serializes the scalars of a step.

    The message is made by hand: all scalars together take less time than one `tf.summary.scalar`.

    Args:
        scalars: dictionary from tags to floats.
        new: the tags to describe. TensorBoard keeps the first description of each.
    """
    summary = tf.compat.v1.Summary()
    for tag, value in scalars.items():
        scalar = summary.value.add(tag=tag, metadata=_metadata(tag if tag in new else None)).tensor
        scalar.dtype = tf.float32.as_datatype_enum
        scalar.float_val.append(value)
    return summary.SerializeToString()


@functools.cache
def _metadata(tag):
    # `tf.summary.scalar` would need TensorBoard to be installed where the job runs.
    return tf.compat.v1.SummaryMetadata(
        plugin_data={"plugin_name": "scalars"},
        data_class=1,
        summary_description=tag and DESCRIPTIONS.get(tag, DESCRIPTIONS.get(tag.partition("/")[0])),
    )
