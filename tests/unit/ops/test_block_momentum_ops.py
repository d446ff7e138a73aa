"""The ops of blockwise model-update filtering against their equations, to the last bit."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.programs import start_python
from tf_onebit import ops

SHAPES = [(1,), (31,), (0,), (), (33,), (10, 100), (3, 5, 7)]
ETA, BEGAN_ETA, ZETA = 0.9, 0.5, 0.8

every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
every_momentum = pytest.mark.parametrize("nesterov", [True, False])
every_mean = pytest.mark.parametrize("relative", [False, True])


def numpy_type(dtype):
    return tf.as_dtype(dtype).as_numpy_dtype


def state_type(dtype):
    return "float64" if dtype == "float64" else "float32"


def short(rng, scale=1.0):
    """Returns random values of few digits. Any type holds them, and their halves add up exactly."""
    return [np.round(rng.normal(size=shape) * scale * 16) / 16 for shape in SHAPES]


def variables_of(values, dtype):
    return [tf.Variable(array_of(value).astype(numpy_type(dtype))) for value in values]


def tensors_of(values, dtype):
    return [tf.constant(array_of(value).astype(numpy_type(dtype))) for value in values]


def array_of(value):
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def exact(values):
    """Returns the values of variables or tensors in float64."""
    return [array_of(value).astype(np.float64) for value in values]


def assert_close(received, expected, dtype):
    """Asserts that values about 1 agree within two roundings to `dtype`."""
    eps = (
        float(tf.experimental.numpy.finfo(numpy_type(dtype)).eps) if dtype != "bfloat16" else 2**-7
    )
    for value, of in zip(received, expected, strict=True):
        assert value.dtype == dtype and value.shape == of.shape
        np.testing.assert_allclose(*exact([value, of]), rtol=2 * eps, atol=2 * eps)


def assert_same_bits(received, expected):
    for value, of in zip(received, expected, strict=True):
        assert value.dtype == of.dtype and value.shape == of.shape
        assert array_of(value).tobytes() == array_of(of).tobytes()


class Block:
    """The variables of a training that is in a block, with random state."""

    def __init__(self, rng, dtype, draw=short):
        self.variables = variables_of(draw(rng), dtype)
        self.model = variables_of(draw(rng), state_type(dtype))
        self.deltas = variables_of(draw(rng, 0.25), state_type(dtype))
        self.means = tensors_of(draw(rng), dtype)

    def update(self, eta=ETA, zeta=ZETA, look_ahead=BEGAN_ETA, nesterov=True, relative=False):
        lists = (self.means, self.variables, self.model, self.deltas)
        ops.block_update(*lists, eta, zeta, look_ahead, nesterov, relative)

    def difference(self, scale, look_ahead):
        return ops.block_difference(self.variables, self.model, self.deltas, scale, look_ahead)


def long(rng, scale=1.0):
    """Returns random values with as many digits as the type has."""
    return [np.asarray(rng.normal(size=shape) * scale) for shape in SHAPES]


# ---------------------------------------------------------------------------------- differences


@every_dtype
@pytest.mark.parametrize("look_ahead", [0.5, 0.0])
def test_difference_is_what_has_been_trained(rng, dtype, look_ahead):
    block = Block(rng, dtype)
    expected = [
        -0.3 * (variable - (model + look_ahead * delta))
        for variable, model, delta in zip(
            exact(block.variables), exact(block.model), exact(block.deltas), strict=True
        )
    ]
    assert_close(block.difference(-0.3, look_ahead), expected, dtype)


@every_dtype
def test_without_deltas_a_block_begins_with_the_model(rng, dtype):
    block = Block(rng, dtype, long)
    without = ops.block_difference(block.variables, block.model, [], 0.25, 0.5)
    assert_same_bits(without, block.difference(0.25, 0.0))
    # To the bit, even without finite deltas.
    block.deltas = variables_of([np.full(shape, np.inf) for shape in SHAPES], state_type(dtype))
    assert_same_bits(without, block.difference(0.25, 0.0))


@every_dtype
@pytest.mark.parametrize("look_ahead", [0.9, 0.0])
def test_begin_has_the_precision_of_the_variables(rng, dtype, look_ahead):
    block = Block(rng, dtype, long)
    state = numpy_type(state_type(dtype))
    for variable, model, delta in zip(block.variables, block.model, block.deltas, strict=True):
        begin = model.numpy() + state(look_ahead) * delta.numpy()
        variable.assign(begin.astype(numpy_type(dtype)))
    for difference in block.difference(1.0, look_ahead):
        assert not np.any(exact([difference])[0])


# ---------------------------------------------------------------------------------- block updates


@every_dtype
@every_momentum
@every_mean
@pytest.mark.parametrize("zeta", [1.0, ZETA])
def test_block_update_is_that_of_the_paper(rng, dtype, nesterov, relative, zeta):
    block = Block(rng, dtype)
    lists = map(exact, (block.means, block.model, block.deltas))
    expected = []
    for mean, model, delta in zip(*lists, strict=True):
        begin = (model + BEGAN_ETA * delta).astype(numpy_type(dtype)).astype(np.float64)
        update = mean if relative else mean - begin
        base = begin + zeta * update
        new_delta = ETA * delta + zeta * update
        ahead = base + ETA * (new_delta if nesterov else delta)
        expected.append((ahead, base if nesterov else ahead, new_delta))
    block.update(zeta=zeta, nesterov=nesterov, relative=relative)
    variables, models, deltas = zip(*expected, strict=True)
    assert_close(block.variables, variables, dtype)
    assert_close(block.model, models, state_type(dtype))
    assert_close(block.deltas, deltas, state_type(dtype))


@every_dtype
@every_momentum
@every_mean
@pytest.mark.parametrize("zeta", [1.0, ZETA])
def test_the_next_block_begins_with_the_variables_to_the_bit(rng, dtype, nesterov, relative, zeta):
    block = Block(rng, dtype, long)
    block.update(zeta=zeta, nesterov=nesterov, relative=relative)
    for difference in block.difference(1.0, ETA if nesterov else 0.0):
        assert not np.any(exact([difference])[0])


ZEROS = [np.array([0.0, -0.0, 0.0, -0.0, 1.0] * 13)]


@every_dtype
@every_momentum
def test_without_momentum_the_mean_is_taken_over_to_the_bit(rng, dtype, nesterov):
    block = Block(rng, dtype, long)
    block.variables += variables_of(ZEROS, dtype)
    for states in (block.model, block.deltas):
        states += variables_of(ZEROS[::-1], state_type(dtype))
    block.means += tensors_of(ZEROS, dtype)
    block.update(eta=0.0, zeta=1.0, nesterov=nesterov)
    assert_same_bits(block.variables, block.means)
    assert_same_bits(block.model, [tf.cast(mean, state_type(dtype)) for mean in block.means])


@every_dtype
@every_momentum
def test_with_a_learning_rate_of_one_the_mean_is_not_rounded(rng, dtype, nesterov):
    block = Block(rng, dtype, long)
    deltas = [delta.numpy() for delta in block.deltas]
    block.update(zeta=1.0, nesterov=nesterov)
    state = numpy_type(state_type(dtype))
    for mean, model, delta in zip(block.means, block.model, deltas, strict=True):
        expected = array_of(mean).astype(state) + (0 if nesterov else state(ETA) * delta)
        np.testing.assert_array_equal(model, expected)


@every_mean
def test_first_block_of_one_worker_is_plain_training(rng, relative):
    """The momentum is zero, so the variables stay as they are, by means or by differences."""
    block = Block(rng, "float32")
    block.deltas = variables_of(map(np.zeros, SHAPES), "float32")
    trained = exact(block.variables)
    block.means = block.difference(1.0, 0.0) if relative else tensors_of(trained, "float32")
    block.update(eta=0.0, zeta=1.0, look_ahead=0.0, relative=relative)
    for variable, value in zip(block.variables, trained, strict=True):
        np.testing.assert_array_equal(variable, value)


@every_dtype
@every_momentum
def test_a_late_update_keeps_what_was_learned_meanwhile(rng, dtype, nesterov):
    late, whole = (Block(np.random.default_rng(1), dtype) for _ in range(2))
    changes = late.difference(0.25, BEGAN_ETA)
    learned = tensors_of(short(rng, 0.5), dtype)
    for variable, value in zip(late.variables, learned, strict=True):
        variable.assign_add(value)
    lists = (late.means, changes, late.variables, late.model, late.deltas)
    ops.late_block_update(*lists, ETA, ZETA, BEGAN_ETA, 0.5, 0.25, nesterov)
    whole.means = [0.5 * mean for mean in whole.means]
    whole.update(nesterov=nesterov, relative=True)
    expected = [a + b for a, b in zip(exact(whole.variables), exact(learned), strict=True)]
    for variable, value in zip(late.variables, expected, strict=True):
        tolerance = 4 * np.spacing(np.abs(value).max(initial=1).astype(numpy_type(dtype)))
        np.testing.assert_allclose(*exact([variable, value]), atol=float(tolerance))
    assert_same_bits(late.model, whole.model)
    assert_same_bits(late.deltas, whole.deltas)


@every_dtype
def test_a_late_update_of_a_worker_that_sent_nothing_keeps_all_it_has_learned(rng, dtype):
    block = Block(rng, dtype)
    lists = (block.means, block.difference(0.0, BEGAN_ETA), block.variables)
    learned = exact(block.difference(1.0, BEGAN_ETA))
    before = exact(block.variables)
    zeros = [tf.zeros_like(mean) for mean in block.means]
    ops.late_block_update(
        zeros, *lists[1:], block.model, block.deltas, 0.0, 1.0, BEGAN_ETA, 1.0, 0.0, True
    )
    for variable, value in zip(block.variables, before, strict=True):
        tolerance = 4 * np.spacing(np.abs(value).max(initial=1).astype(numpy_type(dtype)))
        np.testing.assert_allclose(*exact([variable, value]), atol=float(tolerance))
    assert any(np.any(value) for value in learned)


# ---------------------------------------------------------------------------------- moments


@every_dtype
@every_mean
@pytest.mark.parametrize("kappa", [0.0, 1.7])
@pytest.mark.parametrize("floor", [-1.0, 0.0, 0.3])
def test_moments_update_is_that_of_the_paper(rng, dtype, relative, kappa, floor):
    moments = variables_of(short(rng), dtype)
    begins, means = [np.abs(v) for v in short(rng)], short(rng)
    expected = []
    for mean, begin in zip(means, begins, strict=True):
        bar = begin + mean if relative else mean
        moment = bar + kappa * (bar - begin)
        expected.append(np.maximum(moment, floor * begin) if floor >= 0 else moment)
    states = variables_of(begins, state_type(dtype))
    ops.moments_update(tensors_of(means, dtype), moments, states, kappa, floor, relative)
    assert_close(moments, expected, dtype)
    # They begin like the variables, in a longer type.
    assert_same_bits(states, [tf.cast(moment, state_type(dtype)) for moment in moments])


@every_dtype
def test_moments_that_are_not_extrapolated_are_the_means_to_the_bit(rng, dtype):
    means = tensors_of(long(rng) + ZEROS, dtype)
    moments, begins = variables_of(means, dtype), variables_of(means, state_type(dtype))
    for begin in begins:
        begin.assign(tf.fill(begin.shape, tf.constant(np.inf, begin.dtype)))
    ops.moments_update(means, moments, begins, 0.0, -1.0, False)
    assert_same_bits(moments, means)


def test_a_moment_that_is_not_a_number_is_not_hidden_by_the_floor():
    moment, begin = tf.Variable([0.0, 0.0]), tf.Variable([1.0, np.nan])
    ops.moments_update([tf.constant([np.nan, 1.0])], [moment], [begin], 1.0, 0.5, False)
    assert np.isnan(moment).all() and np.isnan(begin).all()


# ---------------------------------------------------------------------------------- memory


def address_of(variable):
    return np.from_dlpack(variable.read_value()).ctypes.data


def update_block(means, states):
    ops.block_update(means, *([state] for state in states), ETA, ZETA, BEGAN_ETA, True, False)


def update_moments(means, states):
    ops.moments_update(means, [states[0]], [states[1]], ETA, -1.0, False)


def three_variables(rng):
    return [tf.Variable(tf.constant(rng.normal(size=1000), tf.float32) * 1.0) for _ in range(3)]


every_update = pytest.mark.parametrize(
    ("update", "used"), [(update_block, 3), (update_moments, 2)], ids=["block", "moments"]
)


@every_update
def test_updates_are_in_place(rng, update, used):
    states = three_variables(rng)[:used]
    update([tf.ones([1000])], states)  # takes memory of its own, where a constant was shared
    addresses = [address_of(state) for state in states]
    before = [state.numpy() for state in states]
    update([tf.zeros([1000])], states)
    assert [address_of(state) for state in states] == addresses
    assert all((state.numpy() != old).all() for state, old in zip(states, before, strict=True))


@every_update
def test_values_that_somebody_still_reads_are_left_to_them(rng, update, used):
    states = three_variables(rng)[:used]
    update([tf.ones([1000])], states)
    still_read = [state.read_value() for state in states]
    before = [value.numpy().copy() for value in still_read]
    update([tf.zeros([1000])], states)
    for value, old, state in zip(still_read, before, states, strict=True):
        np.testing.assert_array_equal(value, old)
        assert (state.numpy() != old).all()


@every_update
@pytest.mark.parametrize("source", [0, 1, 2])
def test_means_may_be_what_a_variable_holds(rng, update, used, source):
    states = three_variables(rng)
    copies = [tf.Variable(state.numpy()) for state in states]
    mean = states[source].read_value()
    copied_mean = tf.constant(mean.numpy())
    update([mean], states[:used])
    update([copied_mean], copies[:used])
    assert_same_bits(states, copies)
    assert_same_bits([mean], [copied_mean])


# ---------------------------------------------------------------------------------- graphs


def test_large_variables_are_updated_like_their_parts(rng):
    """Threads share the values of one variable. Nothing is left out or done twice."""
    whole = [rng.normal(size=600_007).astype(np.float32) for _ in range(4)]
    # Pieces have fewer values than a thread works on at a time.
    cuts = range(99_999, 600_007, 99_999)
    results = []
    for pieces in ([[values] for values in whole], [np.split(values, cuts) for values in whole]):
        means, *states = pieces
        states = [variables_of(values, "float32") for values in states]
        ops.block_update(means, *states, ETA, ZETA, BEGAN_ETA, True, False)
        ops.moments_update(means, *states[:2], ETA, 0.1, True)
        lists = [*states, ops.block_difference(*states, ZETA, ETA)]
        lists.append(ops.block_difference(*states[:2], [], ZETA, ETA))
        results.append([tf.concat(values, 0) for values in lists])
    assert_same_bits(*results)


def test_one_graph_serves_all_blocks(rng):
    block, eager = (Block(np.random.default_rng(3), "float32") for _ in range(2))
    beginnings = exact(block.means)
    traces = []

    @tf.function
    def end_block(eta, zeta, look_ahead, scale):
        traces.append(1)
        block.update(eta, zeta, look_ahead)
        differences = block.difference(scale, eta)
        assert [tuple(difference.shape) for difference in differences] == SHAPES
        ops.moments_update(block.means, block.variables, block.model, eta, -1.0, False)
        return differences

    for numbers in [(0.1, 1.0, 0.0, 1.0), (0.7, 0.9, 0.1, 0.3)]:
        received = end_block(*(tf.constant(number, tf.float64) for number in numbers))
        eager.update(*numbers[:3])
        assert_same_bits(received, eager.difference(numbers[3], numbers[0]))
        ops.moments_update(eager.means, eager.variables, eager.model, numbers[0], -1.0, False)
        assert_same_bits(block.variables, eager.variables)
        assert_same_bits(block.deltas, eager.deltas)
    assert len(traces) == 1
    assert_same_bits(tensors_of(beginnings, "float32"), block.means)


def test_numbers_beside_tensors_are_not_rounded():
    weights, model = tf.Variable([0.0], dtype=tf.float64), tf.Variable([-1.0], dtype=tf.float64)
    (difference,) = ops.block_difference([weights], [model], [], 0.1, tf.constant(0.0, tf.float64))
    assert float(difference[0]) == 0.1


def test_a_variable_is_whatever_has_a_handle():
    class Wrapped:
        def __init__(self, value):
            variable = tf.Variable(value)
            self.handle, self.shape, self.dtype = variable.handle, (2,), "float32"
            self.value = variable

    variable, model = Wrapped([1.0, 3.0]), Wrapped([0.0, 1.0])
    (difference,) = ops.block_difference([variable], [model], [], 1.0, 0.0)
    assert difference.numpy().tolist() == [1.0, 2.0]


PRINT_DIGEST = """
import hashlib, sys
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from tf_onebit import ops

digest = hashlib.sha256()
rng = np.random.default_rng(5)
# Many stripes for threads to share, of which some are shorter.
sizes = [600_007, 300_000, 77]
draw = lambda dtype: [tf.cast(rng.normal(size=size), dtype) for size in sizes]
for dtype in ("float32", "float64", "float16", "bfloat16"):
    state = "float64" if dtype == "float64" else "float32"
    variables, model, deltas = (list(map(tf.Variable, draw(t))) for t in (dtype, state, state))
    ops.block_update(draw(dtype), variables, model, deltas, 0.9, 0.8, 0.5, True, False)
    ops.moments_update(draw(dtype), variables, model, 0.9, 0.1, True)
    differences = ops.block_difference(variables, model, deltas, 0.3, 0.9)
    for values in (*variables, *model, *deltas, *differences):
        digest.update(np.asarray(values).tobytes())
print(digest.hexdigest())
"""


def test_threads_change_no_bit():
    programs = [start_python(PRINT_DIGEST, threads, in_fork=True) for threads in (1, 3)]
    digests = []
    for program in programs:
        output, errors = program.communicate(timeout=120)
        assert program.returncode == 0, errors
        digests.append(output.strip())
    assert digests[0] == digests[1]
    assert len(digests[0]) == 64
