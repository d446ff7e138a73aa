"""Arguments that the ops of blockwise model-update filtering refuse."""

import numpy as np
import pytest
import tensorflow as tf

from tests.unit.ops.test_ops_errors import refuses
from tf_onebit import ops


def zeros(*shapes, dtype=tf.float32):
    return [tf.Variable(tf.zeros(shape, dtype)) for shape in shapes]


LISTS = ["means", "variables", "globals", "deltas", "begins"]


def arguments(shapes=((2, 3), (4,)), dtype=tf.float32):
    given = {name: zeros(*shapes, dtype=dtype) for name in LISTS}
    return {**given, "means": [value.read_value() for value in given["means"]]}


def call_update(given, numbers=(0.5, 1.0, 0.5)):
    lists = [given[name] for name in ("means", "variables", "globals", "deltas")]
    ops.block_update(*lists, *numbers, nesterov=True, relative=False)


def call_moments(given, numbers=(0.5, 0.5)):
    lists = [given[name] for name in ("means", "variables", "begins")]
    ops.moments_update(*lists, *numbers, relative=False)


def call_difference(given, numbers=(0.5, 0.5)):
    lists = [given[name] for name in ("variables", "globals", "deltas")]
    ops.block_difference(*lists, *numbers)


CALLS = {
    "update": (call_update, ["variables", "globals", "deltas"], 3),
    "moments": (call_moments, ["variables", "begins"], 2),
    "difference": (call_difference, ["variables", "globals", "deltas"], 2),
}
every_call = pytest.mark.parametrize("call", [call for call, _, _ in CALLS.values()], ids=CALLS)
every_list = pytest.mark.parametrize(
    ("call", "name"), [(call, name) for call, names, _ in CALLS.values() for name in names]
)
every_state = pytest.mark.parametrize(
    ("call", "name"), [(call, name) for call, names, _ in CALLS.values() for name in names[1:]]
)
every_number = pytest.mark.parametrize(
    ("call", "index", "count"),
    [(call, index, count) for call, _, count in CALLS.values() for index in range(count)],
)


@every_call
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_the_arguments_that_are_altered_below_are_taken(call, dtype):
    call(arguments(dtype=dtype))


@pytest.mark.parametrize("call", [call_update, call_moments])
def test_a_variable_of_another_shape_is_refused(call):
    given = arguments()
    given["variables"] = zeros((2, 3), (1, 4))
    with refuses(r"variables\[1\] must have shape \[4\], as means\[1\] has. .*: shape=\[1,4\]"):
        call(given)


@every_state
def test_state_of_another_shape_is_refused(call, name):
    given = arguments()
    given[name] = zeros((3, 2), (4,))
    with refuses(rf"{name}\[0\] must have shape \[2,3\], as .*\[0\] has. .*: shape=\[3,2\]"):
        call(given)
    assert not any(np.any(value) for values in given.values() for value in values)
    call(arguments())


def test_a_shape_that_changed_since_the_graph_was_made_is_refused():
    variable, model = (tf.Variable([0.0], shape=[None]) for _ in range(2))
    wrapped = type("", (), {"handle": variable.handle, "shape": (1,), "dtype": "float32"})
    variable.assign([0.0, 0.0])
    with refuses(r"variables\[0\] must have shape \[1\], as .*shapes\[0\] has. .*: shape=\[2\]"):
        ops.block_difference([wrapped], [model], [], 1.0, 0.0)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32])
@every_state
def test_state_of_the_variables_own_short_type_is_refused(call, name, dtype):
    variables = dtype if dtype != tf.float32 else tf.float64
    expected = "double" if variables == tf.float64 else "float"
    given = arguments(dtype=variables)
    for other in LISTS[2:]:
        given[other] = zeros((2, 3), (4,), dtype=dtype if other == name else expected)
    received = {tf.float16: "half", tf.bfloat16: "bfloat16", tf.float32: "float"}[dtype]
    with refuses(rf"{name}\[0\] must be a {expected} variable. Received: dtype={received}"):
        call(given)


@every_call
def test_variables_of_several_types_are_refused(call):
    given = arguments()
    given["variables"][1:] = zeros((4,), dtype=tf.float16)
    with refuses(r"variables\[1\] must be a float variable. Received: dtype=half"):
        call(given)


# The second name makes an anonymous variable, which exists and has no value.
@every_list
@pytest.mark.parametrize("shared_name", ["none", "cd2c89b7-88b7-44c8-ad83-06c2a9158347"])
def test_a_variable_that_is_not_initialized_is_refused(call, name, shared_name):
    given = arguments()
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[4], shared_name=shared_name)
    given[name][1] = type("", (), {"handle": handle, "shape": (4,), "dtype": tf.float32})
    with refuses(rf"{name}\[1\] must be an initialized variable.* Received: "):
        call(given)


@every_list
def test_a_variable_twice_is_refused(call, name):
    given = arguments([(4,), (4,)])
    given[name][1] = given["variables"][0]
    with refuses(rf"All variables must be different ones. Received: {name}\[1\] a second time"):
        call(given)
    call(arguments())


@every_number
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e39])
def test_numbers_that_are_not_finite_are_refused(call, index, count, number):
    numbers = [0.5] * count
    numbers[index] = number
    given = arguments()
    with refuses(r"coefficients, \[.*\], must be finite as float. Received: coefficients=\[.*0.5"):
        call(given, numbers)
    if number == 1e39:
        call(arguments(dtype=tf.float64), numbers)


@every_number
def test_several_numbers_in_the_place_of_one_are_refused(call, index, count):
    with refuses("[Ss]hape"):
        call(arguments(), [[0.5, 0.5] if i == index else 0.5 for i in range(count)])
    with refuses(rf"coefficients must be {count} numbers, \[.*\]. Received: shape=\[{count},2\]"):
        call(arguments(), [[0.5, 0.5]] * count)


@every_list
def test_lists_of_several_lengths_are_refused(call, name):
    given = arguments()
    given[name] = given[name][:1]
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="1|one"):
        call(given)


def test_an_empty_list_is_refused():
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError, IndexError)):
        ops.block_difference([], [], [], 1.0, 0.0)
    with refuses("N"):
        ops.block_update([], [], [], [], 0.5, 1.0, 0.5, True, False)
