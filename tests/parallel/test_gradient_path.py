"""The number of functions that a gradient passes. The test keeps the path readable."""

import pathlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support.training import make_model

PACKAGE = pathlib.Path(tf_onebit.__file__).parent
# The most functions and files, where an optimizer gets exchanged gradients, and where they are
# added to the weights while they are decoded. The second path contains the update.
CLIPPED, ADDED = (66, 18), (74, 20)


def holds_gradient(value, depth=0):
    """Tells whether a value is a tensor of numbers, or contains some."""
    if isinstance(value, (tf.Tensor, tf.IndexedSlices)):
        return value.dtype not in (tf.resource, tf.bool)
    if type(value).__module__ == "tf_onebit.collectives.requests":
        value = list(vars(value).values())
    is_list = isinstance(value, (list, tuple)) and depth < 3
    return is_list and any(holds_gradient(one, depth + 1) for one in value)


class Path:
    """The functions of the package that get a gradient or a message, within a context."""

    def __init__(self):
        self.functions = set()

    def _note(self, frame, event, argument):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)) or "<" in code.co_name:
            return
        count = code.co_argcount + code.co_kwonlyargcount
        given = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
        if "<locals>" not in code.co_qualname and any(map(holds_gradient, given)):
            self.functions.add((code.co_filename, code.co_qualname))

    def __enter__(self):
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exception):
        sys.setprofile(None)


@pytest.mark.workers(2)
@pytest.mark.parametrize(
    ("clip", "most"), [({"clipvalue": 1.0}, CLIPPED), ({}, ADDED)], ids=["clipped", "added"]
)
def test_a_gradient_passes_few_functions(clip, most):
    exchange = tf_onebit.WarmStart(tf_onebit.Delayed(tf_onebit.OneBit()), steps=1)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, **clip), exchange)
    model = make_model()
    variables = [variable.value for variable in model.trainable_variables]
    gradients = [tf.constant(np.ones(variable.shape), tf.float32) for variable in variables]
    optimizer.apply(gradients, model.trainable_variables)

    def step(*gradients):
        optimizer.apply(list(gradients), model.trainable_variables)

    with Path() as path:
        tf.function(step, autograph=False).get_concrete_function(*gradients)
    names = sorted(f"{file}: {function}" for file, function in path.functions)
    most_functions, most_files = most
    assert 40 < len(path.functions) <= most_functions, "\n".join(names)
    assert len({file for file, _ in path.functions}) <= most_files, "\n".join(names)
    decoding = "one_bit_decode" if clip else "one_bit_decode_add"
    assert decoding in {function for _, function in path.functions}
