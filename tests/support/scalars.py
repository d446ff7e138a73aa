"""The scalars that TensorBoard would show for a folder."""

import tensorflow as tf


def scalars_in(folder):
    """Returns (step, name, value) of all scalars in the files of a folder, in order."""
    scalars = []
    for step, value in _values_in(folder):
        array = tf.make_ndarray(value.tensor)
        if array.shape == () and array.dtype.kind == "f":  # neither histograms nor graphs
            scalars.append((step, value.tag, float(array)))
    return sorted(scalars)


def descriptions_in(folder):
    """Returns the descriptions of each tag in the files of a folder, in order: dictionary."""
    descriptions = {}
    for _, value in _values_in(folder):
        descriptions.setdefault(value.tag, []).append(value.metadata.summary_description)
    return descriptions


def _values_in(folder):
    for file in folder.glob("events.*"):
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                yield event.step, value


def scalars_named(name, folder):
    """Returns the values of a scalar in a folder, by steps: list of floats."""
    return [value for _, other, value in scalars_in(folder) if other == name]
