"""Which lists of variables one op can update."""

import tensorflow as tf

from tests.support.programs import run_python
from tf_onebit.ops.variables import can_update

ON_TWO_DEVICES = """
import tensorflow as tf
from tf_onebit.ops.variables import can_update

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.device("CPU:0"):
    first = [tf.Variable(tf.zeros([3])) for _ in range(2)]
with tf.device("CPU:1"):
    second = tf.Variable(tf.zeros([3]))
print(can_update(first), can_update([*first, second]))
"""


def test_variables_are_different_ones_of_float32():
    variables = [tf.Variable(tf.zeros([3])) for _ in range(2)]
    assert can_update([]) and can_update(variables)
    assert not can_update([*variables, variables[0]])
    assert not can_update([*variables, tf.Variable(tf.zeros([3], tf.float16))])


def test_variables_are_on_one_device():
    status, output, errors = run_python(ON_TWO_DEVICES, in_fork=True)
    assert status == 0, errors
    assert output.split() == ["True", "False"]
