"""Delayed gives the results of the inner exchange, a step later."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import SHAPES, flat, gradients_of, specs_of
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import count_bytes
from tests.support.transforms import DivideByTotal
from tf_onebit import Delayed, Exchange, FullPrecision, Local, OneBit, Threshold, WarmStart
from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit._training.model_optimizers import flush, without_delay
from tf_onebit.collectives import lockstep
from tf_onebit.collectives.requests import tap_requests
from tf_onebit.exchanges import Bucketed, GradientSpec
from tf_onebit.transforms import Momentum

EXCHANGES = {
    "one_bit": OneBit(min_size=0),
    "buckets_and_excluded": OneBit(bucket_bytes=2000, exclude=["layer_1", "layer_6"]),
    "transforms": OneBit(transforms=[DivideByTotal()]),
    "momentum_and_excluded": OneBit(
        bucket_bytes=2000, transforms=[Momentum(0.9)], exclude=["layer_1", "layer_6"]
    ),
    "full_precision": FullPrecision(),
    # So high that messages have room for all values. The rest waits for another step.
    "threshold": Threshold(20.0),
    "top_k": Threshold(target_density=0.05, selection="top_k", coding="golomb_rice"),
    "golomb_rice": Threshold(20.0, coding="golomb_rice", bucket_bytes=4000),
}
USUAL = ("momentum_and_excluded", "full_precision", "golomb_rice")
every_exchange = pytest.mark.parametrize(
    "name", [*USUAL, *nightly(*(name for name in EXCHANGES if name not in USUAL))]
)


def build(template, world_size, specs=None):
    workers = [Bucketed(template) for _ in range(world_size)]
    for rank, worker in enumerate(workers):
        worker.build(specs or specs_of(SHAPES), rank, world_size, "test")
    return workers


def take(workers, gradients, scale=1.0):
    """Runs one step. Returns the gradients of each rank, or None."""
    if not workers[0].delivers():
        lockstep.run([w.hold(mine) for w, mine in zip(workers, gradients, strict=True)])
        return None
    results = lockstep.run([w.run(mine, scale) for w, mine in zip(workers, gradients, strict=True)])
    return [exchanged for exchanged, _ in results]


def release(workers, scale=1.0):
    """Returns all held gradients, oldest first."""
    like = [tf.zeros(spec.shape, spec.dtype) for spec in workers[0].specs]
    released = []
    for number in range(workers[0].number_held(), 0, -1):
        results = lockstep.run([worker.release(number, like, scale) for worker in workers])
        released.append([exchanged for exchanged, _ in results])
    return released


def random_steps(rng, world_size, steps, shapes=SHAPES):
    return [[gradients_of(rng, shapes) for _ in range(world_size)] for _ in range(steps)]


def assert_same_bits(exchanged, expected):
    assert len(exchanged) == len(expected)
    for mine, others in zip(exchanged, expected, strict=True):
        for tensors, other in zip(mine, others, strict=True):
            assert flat(tensors).tobytes() == flat(other).tobytes()


@every_exchange
@pytest.mark.parametrize("world_size, steps", [(2, 3), *nightly_rows((1, 1), (3, 1))])
def test_gives_what_the_exchange_gives_so_many_steps_later(rng, name, world_size, steps):
    given = random_steps(rng, world_size, 5)
    plain = build(EXCHANGES[name], world_size)
    expected = [take(plain, gradients, 0.5) for gradients in given]
    delayed = build(Delayed(EXCHANGES[name], steps), world_size)
    exchanged = [take(delayed, gradients, 0.5) for gradients in given]
    assert exchanged[:steps] == [None] * steps
    assert_same_bits(exchanged[steps:] + release(delayed, 0.5), expected)
    # Once more, with the residuals from before.
    more = random_steps(rng, world_size, 2)
    assert take(delayed, more[0]) is None
    assert_same_bits(release(delayed), [take(plain, more[0])])


def test_what_comes_late_in_a_backward_pass_travels_in_the_next_step(rng):
    """This is the last third of the values. The last variables come first."""

    def requests_of(generator):
        requests = []
        lockstep.run([tap_requests(generator, requests.append)])
        return [r.name.removeprefix("test/").replace("/delayed/", " ") for r in requests]

    shapes = 8 * [(32, 32)]
    (worker,) = build(Delayed(OneBit(min_size=0, bucket_bytes=4096)), 1, specs_of(shapes))
    first, second = (gradients_of(rng, shapes) for _ in range(2))
    early = [f"bucket_{i} all_to_all" for i in range(6)]
    gathered = [f"bucket_{i} all_gather" for i in range(6)]
    late = [f"bucket_{i} {stage}" for i in (6, 7) for stage in ("all_to_all", "all_gather")]
    assert requests_of(worker.hold(first)) == early
    assert sorted(requests_of(worker.run(second))) == sorted([*early, *gathered, *late])
    assert requests_of(worker.release(1, second, 1.0)) == [*late, *gathered]


def ancestors_of(tensor):
    """Returns the operations that a tensor waits for, in a function and in the graph around it."""
    found, waiting = set(), [tensor.op]
    while waiting:
        operation = waiting.pop()
        if operation in found:
            continue
        found.add(operation)
        waiting += [*operation.control_inputs, *(source.op for source in operation.inputs)]
        captured = [outer for outer, inner in operation.graph.captures if inner.op is operation]
        waiting += [outer.op for outer in captured if tf.is_symbolic_tensor(outer)]
    return found


def has_branch(operation, graph):
    """Tells whether a graph is a branch of an operation."""
    if operation.type not in ("If", "StatelessIf"):
        return False
    return graph.name in (operation.get_attr(f"{side}_branch").name for side in ("then", "else"))


@pytest.mark.parametrize("warm", [False, True], ids=["delayed", "after_a_warm_start"])
def test_the_last_messages_of_early_gradients_let_the_first_of_late_ones_pass(rng, warm):
    """A link is never idle: late messages are computed while early ones travel."""
    shapes, requests = 8 * [(32, 32)], []
    template = Delayed(OneBit(min_size=0, bucket_bytes=4096))
    (worker,) = build(WarmStart(template, steps=1) if warm else template, 1, specs_of(shapes))

    @tf.function
    def step(gradients):
        lockstep.run([tap_requests(worker.run(gradients), requests.append)])

    step.get_concrete_function(gradients_of(rng, shapes))
    sent = {
        (type(request).__name__, request.name.split("/")[1]): request.tensor
        for request in requests
        if "delayed" in request.name
    }
    for early in (f"bucket_{i}" for i in range(6)):
        awaited = ancestors_of(sent["AllGather", early])
        for late in ("bucket_6", "bucket_7"):
            first, last = sent["AllToAll", late].op, sent["AllGather", late].op
            # From outside, only the results of a branch can be awaited.
            assert first in awaited or any(has_branch(op, first.graph) for op in awaited)
            assert last not in awaited


@pytest.mark.parametrize("name", ["one_bit", *nightly("threshold", "full_precision")])
def test_gives_the_same_in_a_graph(rng, name):
    given = random_steps(rng, 2, 3)
    plain, delayed = build(EXCHANGES[name], 2), build(Delayed(EXCHANGES[name]), 2)
    expected = [take(plain, gradients) for gradients in given]
    assert take(delayed, given[0]) is None

    @tf.function
    def step(gradients):
        pairs = zip(delayed, gradients, strict=True)
        return [g for g, _ in lockstep.run([w.run(mine) for w, mine in pairs])]

    # Twice in one graph, under the same names: only the variables that they share order them.
    @tf.function
    def two_steps(first, second):
        return step(first), step(second)

    first, second = two_steps(*given[1:])
    assert_same_bits([first, second], expected[:2])


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_nothing_is_lost(rng, world_size):
    """All gradients are returned, held, or left in the residuals."""
    specs = specs_of([(64, 96)])
    workers = build(Delayed(OneBit(min_size=0), steps=2), world_size, specs)
    given = random_steps(rng, world_size, 6, [(64, 96)])
    exchanged = [take(workers, gradients) for gradients in given]
    held = release(workers)
    assert len(held) == 2
    applied = sum(flat(ranks[0]) for ranks in exchanged[2:] + held)
    inner = [worker.buckets[0].exchange for worker in workers]
    unsent = sum(exchange.worker_residual.numpy() for exchange in inner)
    unsent += np.concatenate([exchange.shard_residual.numpy() for exchange in inner])
    total = sum(flat(mine) for gradients in given for mine in gradients)
    np.testing.assert_allclose(applied + unsent, total, atol=1e-4)


@every_exchange
def test_goes_on_from_its_state(rng, name):
    given = random_steps(rng, 2, 5)
    workers = build(Delayed(EXCHANGES[name], steps=2), 2)
    for gradients in given[:3]:
        take(workers, gradients)
    states = [worker.state() for worker in workers]
    resumed = build(Delayed(EXCHANGES[name], steps=2), 2)
    for worker in resumed:
        worker.load_state(states)
    assert_same_bits(
        [take(resumed, gradients) for gradients in given[3:]] + release(resumed),
        [take(workers, gradients) for gradients in given[3:]] + release(workers),
    )


def test_state_survives_a_file(rng, tmp_path):
    shapes = [(4, 3), (5,)]
    specs = specs_of(shapes, "bfloat16")
    given = [gradients_of(rng, shapes, "bfloat16")]
    workers, resumed = (build(Delayed(FullPrecision()), 1, specs) for _ in range(2))
    take(workers, given)
    np.savez(tmp_path / "state.npz", **workers[0].state())
    with np.load(tmp_path / "state.npz") as file:
        resumed[0].load_state([dict(file)])
    assert_same_bits(release(resumed), [given])


def test_messages_in_backups_have_the_shapes_of_version_0_1(rng):
    workers = build(Delayed(OneBit(min_size=0)), 2)
    take(workers, random_steps(rng, 2, 1)[0])
    for worker in workers:
        shapes = [array for name, array in worker.state().items() if name.endswith("/shape")]
        assert shapes and all(shape.shape == (1,) for shape in shapes)


def test_what_is_under_way_needs_as_many_workers(rng):
    workers = build(Delayed(OneBit()), 2)
    take(workers, random_steps(rng, 2, 1)[0])
    states = [worker.state() for worker in workers]
    (alone,) = build(Delayed(OneBit()), 1)
    with pytest.raises(ValueError, match="as many workers as before.* of 2 workers for 1"):
        alone.load_state(states)
    release(workers)
    alone.load_state([worker.state() for worker in workers])
    residuals = [state["bucket_0/exchange/worker_residual"].sum() for state in states]
    inner = alone.buckets[0].exchange
    np.testing.assert_allclose(inner.worker_residual.numpy().sum(), sum(residuals), rtol=1e-4)


def test_sparse_gradients_are_as_late_as_others():
    specs = [GradientSpec("embedding", (6, 2), "float32", True), GradientSpec("k", (2,), "float32")]
    workers = build(Delayed(OneBit()), 2, specs)

    def gradients(rank, row):
        values = tf.fill([1, 2], 1.0 + rank)
        return [tf.IndexedSlices(values, tf.constant([row]), tf.constant([6, 2])), tf.ones([2])]

    # The number of rows differs between steps.
    assert take(workers, [gradients(rank, row=5 * rank) for rank in range(2)]) is None
    states = [worker.state() for worker in workers]
    late = take(workers, [gradients(rank, row=3) for rank in range(2)])
    rows, _ = late[0]
    assert rows.indices.numpy().tolist() == [0, 5]
    assert rows.values.numpy().tolist() == [[1, 1], [2, 2]]
    for worker in workers:
        worker.load_state(states)
    rows, _ = take(workers, [gradients(rank, row=3) for rank in range(2)])[1]
    assert rows.indices.numpy().tolist() == [0, 5]


@pytest.mark.parametrize("transforms", [[Momentum(0.9)], *nightly([])])
def test_delay_begins_where_a_warm_start_ends(rng, transforms):
    template = OneBit(bucket_bytes=2000, exclude=["layer_1"], transforms=transforms)
    given = random_steps(rng, 2, 5)
    plain, delayed = (
        build(WarmStart(exchange, steps=2), 2) for exchange in (template, Delayed(template))
    )
    expected = [take(plain, gradients) for gradients in given]
    exchanged = [take(delayed, gradients) for gradients in given]
    assert exchanged[2] is None
    assert_same_bits(exchanged[:2], expected[:2])
    assert_same_bits(exchanged[3:] + release(delayed), expected[2:])
    assert delayed[0].state().keys() > {"bucket_0/progress", "bucket_0/compressed/held"}


def test_sparse_gradients_warm_up_like_others():
    specs = [GradientSpec("embedding", (6, 2), "float32", True), GradientSpec("k", (2,), "float32")]
    (worker,) = build(WarmStart(Delayed(FullPrecision()), steps=1), 1, specs)

    def gradients(row):
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([row]), tf.constant([6, 2]))
        return [slices, tf.fill([2], float(row))]

    for row, expected in ((4, 4), (1, None), (2, 1)):
        exchanged = take([worker], [gradients(row)])
        if expected is None:
            assert exchanged is None
            continue
        ((rows, dense),) = exchanged
        assert rows.indices.numpy().tolist() == [expected]
        assert dense.numpy().tolist() == [expected] * 2


def test_delay_can_be_turned_off_and_on_again(rng):
    given = random_steps(rng, 2, 4)
    plain, delayed = build(OneBit(), 2), build(Delayed(OneBit()), 2)
    expected = [take(plain, gradients) for gradients in given]
    assert take(delayed, given[0]) is None
    assert_same_bits(release(delayed), expected[:1])
    for worker in delayed:
        worker.set_delay(False)
    assert_same_bits([take(delayed, gradients) for gradients in given[1:3]], expected[1:3])
    for worker in delayed:
        worker.set_delay(True)
    assert take(delayed, given[3]) is None
    assert_same_bits(release(delayed), expected[3:])


def test_error_of_a_step_comes_a_step_later_and_names_the_gradient(rng):
    workers = build(Delayed(OneBit(min_size=0)), 2)
    good, bad = random_steps(rng, 2, 2)
    bad[1][1] = tf.fill(SHAPES[1], np.nan)
    take(workers, good)
    take(workers, bad)  # returns the good ones
    message = "Rank 1 met an infinity or NaN in the gradient of 'layer_1/kernel'"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        release(workers)
    assert workers[0].number_held() == 0


@every_exchange
def test_reported_bytes_are_those_of_an_exchange(rng, name):
    workers = build(Delayed(EXCHANGES[name]), 2)
    sent_bytes = []

    def run(generators):
        first, second = generators
        lockstep.run([count_bytes(first, 2, sent_bytes), second])

    given = random_steps(rng, 2, 3)
    for gradients in given:
        pairs = zip(workers, gradients, strict=True)
        run([w.run(mine) if w.delivers() else w.hold(mine) for w, mine in pairs])
    like = [tf.zeros(shape) for shape in SHAPES]
    run([worker.release(1, like, 1.0) for worker in workers])
    plain = build(EXCHANGES[name], 2)
    expected = 0
    for gradients in given:
        take(plain, gradients)
        expected += plain[0].bytes_sent()
    assert sum(sent_bytes) == expected
    assert workers[0].bytes_sent() == plain[0].bytes_sent() > 0
    assert workers[0].full_precision_bytes() == plain[0].full_precision_bytes()


def test_density_is_followed_a_step_later(rng):
    """The step that takes gradients uses the tau from before it."""
    template = Threshold(target_density=0.05)
    (plain,), (delayed,) = build(template, 1), build(Delayed(template), 1)
    for gradients in random_steps(rng, 1, 3):
        take([plain], gradients)
        take([delayed], gradients)
    assert delayed.metrics()["tau"] > 0
    assert plain.metrics()["density"] > 0
    assert delayed.metrics()["density"] == 0  # of the second, which had no tau yet


def test_what_cannot_be_delayed_is_refused():
    class OfOneStep(Exchange):
        can_be_delayed = False

    for exchange, words in (
        (WarmStart(OneBit(), steps=1), r"Use WarmStart\(Delayed\(...\), ...\)"),
        (Delayed(OneBit()), "Use steps= for a longer delay"),
        (Local(), "It exchanges nothing"),
        (OfOneStep(), "OfOneStep cannot run its stages"),
        ("one_bit", "Delayed needs an exchange"),
    ):
        with pytest.raises(ValueError, match=words):
            Delayed(exchange)


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, None])
def test_steps_must_be_a_positive_whole_number(steps):
    with pytest.raises(ValueError, match="steps must be a whole number of steps, at least 1"):
        Delayed(OneBit(), steps)


def test_settings_survive():
    exchange = Delayed(OneBit(exclude=["bias"], bucket_bytes=77), steps=2).clone()
    assert (exchange.steps, exchange.bucket_bytes, exchange.exclude) == (2, 77, ("bias",))
    assert exchange.inner.get_config() == OneBit(exclude=["bias"], bucket_bytes=77).get_config()


@pytest.mark.parametrize("wrap", [lambda sgd: sgd, keras.optimizers.LossScaleOptimizer])
def test_flush_refuses_an_optimizer_that_exchanges_nothing(wrap):
    optimizer = wrap(keras.optimizers.SGD())
    message = "must be one that exchanges gradients. Received: .* of type SGD"
    with pytest.raises(ValueError, match=message):
        flush(optimizer)
    with pytest.raises(ValueError, match=message), without_delay(optimizer):
        pass


def test_whether_a_step_delivers_is_always_a_tensor():
    """Therefore a graph can branch by it, even if nothing is ever late."""
    engine = lockstep.LockstepEngine(["CPU:0"] * 2)
    variables = [tf.Variable(tf.zeros([2]))]
    for template, expected in ((OneBit(), True), (Delayed(OneBit()), False)):
        exchange = GradientExchange(template, engine, mean=True)
        delivers = exchange.delivers([tf.ones([2])], variables)
        assert tf.is_tensor(delivers) and bool(delivers) is expected


def address_of(variable):
    return np.asarray(memoryview(variable.read_value())).ctypes.data


@pytest.mark.parametrize(
    "exchange", [OneBit(min_size=0), Threshold(0.5)], ids=["one_bit", "sparse"]
)
def test_variables_are_not_copied_while_a_step_reads_them(exchange):
    (worker,) = build(Delayed(exchange), 1, specs_of([(512, 512)]))
    variable = tf.Variable(tf.fill([512, 512], 0.001))

    def gradient_of(weights):
        product = weights
        for _ in range(20):  # so slow that an earlier message is ready long before
            product = tf.matmul(product, weights)
        return product

    @tf.function(autograph=False)
    def step(delivers):
        gradient = gradient_of(tf.convert_to_tensor(variable))

        def update():
            (gathered,) = lockstep.run([worker.gather([gradient], 1.0)])
            worker.add_to([variable], gathered, 1.0, -1.0)
            return True

        tf.cond(delivers, update, lambda: False)  # as optimizers do

    lockstep.run([worker.hold([gradient_of(tf.convert_to_tensor(variable))])])
    before = address_of(variable)
    for _ in range(5):
        step(tf.constant(True))
    assert address_of(variable) == before
