"""The exchange of docs/your_own_exchange.md, as a user who writes one gets it."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from top_k import TopK

import tf_onebit.horovod as hvd
from tests.support import planned
from tests.support.documents import blocks
from tests.support.gradients import exchange, flat, gradients_of, specs_of
from tests.support.programs import ROOT
from tf_onebit import Auto, Delayed, Exchange, WarmStart
from tf_onebit import _cli as cli
from tf_onebit._configurable import deserialize, serialize
from tf_onebit._measurement import compressed_buckets
from tf_onebit._training import auto
from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.exchanges import Bucketed, GradientSpec, run_stages
from tf_onebit.planner import uniform_links

FOLDER = ROOT / "examples" / "your_own_exchange"

SHAPES = [(40, 10), (7,), (20, 20)]


def build(template, world_size, dtype="float32"):
    workers = [Bucketed(template) for _ in range(world_size)]
    for rank, worker in enumerate(workers):
        worker.build(specs_of(SHAPES, dtype), rank, world_size, "test")
    return workers


def test_the_page_shows_the_program():
    code = blocks(ROOT / "docs" / "your_own_exchange.md", "python")[0][1]
    _, _, program = (FOLDER / "top_k.py").read_text().partition('"""\n\n')
    assert code == f"# top_k.py\n{program}"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_sent_and_what_stays_are_the_gradients(rng, dtype):
    workers = build(TopK(k=20, exclude=["layer_1"]), 3, dtype)
    given, applied = 0.0, 0.0
    for _ in range(4):
        gradients = [gradients_of(rng, SHAPES, dtype) for _ in workers]
        exchanged, _ = exchange(workers, gradients)
        given += sum(flat(mine) for mine in gradients)
        applied += flat(exchanged[0])
        assert [flat(mine).tobytes() for mine in exchanged] == 3 * [flat(exchanged[0]).tobytes()]
    unsent = {}
    for worker in workers:
        for bucket in worker.buckets:
            for name, values in bucket.exchange.residuals():
                unsent[name] = unsent.get(name, 0.0) + values.numpy()
    kept = [unsent.get(f"layer_{i}/kernel", np.zeros(7)) for i in range(3)]
    tolerance = 1e-4 if dtype == "float32" else 0.1
    np.testing.assert_allclose(applied + np.concatenate(kept), given, atol=tolerance)
    norm = sum(
        np.sum(np.square(values)) for _, values in workers[0].buckets[0].exchange.residuals()
    )
    assert workers[0].residual_sum_of_squares() == pytest.approx(norm) and norm > 0
    assert workers[0].residual_squares().keys() == {"layer_0/kernel", "layer_2/kernel"}


def test_a_gradient_that_is_not_finite_ends_the_step_on_all_workers(rng):
    workers = build(TopK(), 2)
    bad = [tf.fill(shape, np.nan) for shape in SHAPES]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Rank 1 met an infinity or NaN"):
        exchange(workers, [gradients_of(rng, SHAPES), bad])


@pytest.mark.parametrize("before, after", [(2, 2), (2, 3), (3, 1)])
def test_what_is_unsent_survives_also_with_other_workers(rng, before, after):
    workers, resumed = build(TopK(k=5), before), build(TopK(k=5), after)
    exchange(workers, [gradients_of(rng, SHAPES) for _ in workers])
    for worker in resumed:
        worker.load_state([w.state() for w in workers], ratio=2.0)

    def unsent(workers):
        exchanges = [worker.buckets[0].exchange for worker in workers]
        return sum(flat([v for _, v in one.residuals()]) for one in exchanges)

    np.testing.assert_allclose(unsent(resumed), 2.0 * unsent(workers), rtol=1e-5, atol=1e-6)
    if before == after:
        mine = resumed[1].buckets[0].exchange.unsent[0]
        np.testing.assert_array_equal(mine, 2.0 * workers[1].buckets[0].exchange.unsent[0])


@pytest.mark.parametrize("recipe", [TopK, lambda k: WarmStart(Delayed(TopK(k)), steps=0)])
def test_what_is_unsent_reaches_a_worker_that_is_resumed_alone(rng, recipe):
    together = GradientExchange(recipe(k=5), LockstepEngine(["CPU:0"] * 2), mean=False)
    variables = [tf.Variable(gradient) for gradient in gradients_of(rng, SHAPES)]
    together.set_delay(False)
    together([gradients_of(rng, SHAPES) for _ in range(2)], variables)
    ((first, second),) = together.carried.states()
    alone = GradientExchange(recipe(k=10**6), LockstepEngine([None]), mean=False)
    alone.set_delay(False)
    alone.load_states([[first, second]], together.scale)
    (applied,) = alone([[tf.zeros(shape) for shape in SHAPES]], variables)
    unsent = [residuals_of(state) for state in (first, second)]
    assert np.any(unsent[0]) and np.any(unsent[1])
    # A bucket has the variables in reverse order.
    expected = np.sort(unsent[0] + unsent[1])
    np.testing.assert_allclose(np.sort(flat(applied)), expected, rtol=1e-5, atol=1e-6)


def residuals_of(state):
    return np.concatenate([a.ravel() for name, a in state.items() if name.endswith("residual")])


def test_it_runs_within_recipes(rng):
    given = [[gradients_of(rng, SHAPES) for _ in range(2)] for _ in range(4)]
    plain = build(TopK(k=5), 2)
    expected = [flat(exchange(plain, gradients)[0][0]) for gradients in given[1:]]
    workers = build(WarmStart(Delayed(TopK(k=5)), steps=1), 2)
    full, _ = exchange(workers, given[0])
    np.testing.assert_allclose(flat(full[0]), sum(map(flat, given[0])), rtol=1e-6)
    assert not workers[0].delivers()
    engine = LockstepEngine(["CPU:0"] * 2)
    engine.run([w.hold(mine) for w, mine in zip(workers, given[1], strict=True)])
    for gradients, value in zip(given[2:], expected, strict=False):
        assert flat(exchange(workers, gradients)[0][0]).tobytes() == value.tobytes()


def test_what_it_will_send_is_what_it_sends(rng):
    template, specs = TopK(k=50), specs_of(SHAPES)
    worker = template.clone()
    worker.build(specs, 0, 4, "test")
    flags_bytes = 3 * 4
    assert template.expected_bytes(specs, 4) == {"all_gather": worker.bytes_sent() + flags_bytes}
    assert not template.built


class ByLinks:
    """Two workers of a job, with the answers that a decision of `Auto` needs."""

    world_size, ranks = 2, (0,)
    place = LockstepEngine(["CPU:0"]).place


@pytest.mark.parametrize("bytes_per_second, pays", [(1e5, True), (1e13, False)])
def test_auto_decides_about_it(monkeypatch, bytes_per_second, pays):
    links = uniform_links(bytes_per_second, 1e-6)
    monkeypatch.setattr(auto.Links, "measure", lambda self: links)
    monkeypatch.setattr(auto.Links, "slowest", lambda self, *values: list(values))
    specs = [GradientSpec("kernel", (512, 512), "float32"), GradientSpec("b", (8,), "float32")]
    decided = auto.decide(Auto(TopK(k=100)), specs, ByLinks())
    compressed = [
        s.name
        for is_compressed, b in compressed_buckets(decided, specs)
        for s in b
        if is_compressed
    ]
    assert ("kernel" in compressed) == pays
    assert type(deserialize(json.loads(json.dumps(serialize(decided))))) is TopK


def test_a_plan_has_a_row_for_it(capsys, monkeypatch, tmp_path):
    def make():
        hvd.init()
        model = planned.make_model()
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), TopK(k=10)), loss="mse")
        return model

    monkeypatch.setattr(planned, "make_model_of_top_k", make, raising=False)
    links = ["--workers", "2", "--bandwidth", "1mbit", "--json", str(tmp_path / "plan.json")]
    assert cli.main(["plan", "tests.support.planned:make_model_of_top_k", *links]) == 0
    by_method = {
        p["method"]: p for p in json.loads((tmp_path / "plan.json").read_text())["predictions"]
    }
    assert by_method["TopK, delayed"]["sent_bytes"] == by_method["TopK"]["sent_bytes"]
    assert by_method["TopK"]["sent_bytes"] == 4 * 10 * 8 + 4
    assert "TopK, delayed" in capsys.readouterr().out


def of_one_stage(**methods):
    arguments = {"get_config": lambda self: {}, "encode": lambda self, gradients: gradients}
    return type("Own", (Exchange,), arguments | methods)()


def test_what_is_missing_is_named():
    specs = specs_of(SHAPES)

    def create_state(self):
        self.unsent = tf.Variable(0.0)

    with pytest.raises(NotImplementedError, match="Own keeps variables, and must define residuals"):
        of_one_stage(create_state=create_state).build(specs, 0, 1, "test")
    for call in (
        lambda own: own.bytes_sent(),
        lambda own: own.deliver([], [], 1.0),
        lambda own: LockstepEngine(["CPU:0"]).run([run_stages(own, [tf.zeros([2])])]),
    ):
        own = of_one_stage()
        own.build(specs_of([(2,)]), 0, 1, "test")
        with pytest.raises(NotImplementedError, match="Own must define"):
            call(own)

    def encode(self, gradients):
        return [tf.boolean_mask(gradients[0], gradients[0] > 0)]

    def deliver(self, message, like, scale):
        yield from ()
        return like

    unknown = of_one_stage(encode=encode, deliver=deliver, aggregate=gathered)
    with pytest.raises(ValueError, match="Own must define expected_bytes"):
        unknown.expected_bytes(specs_of([(5,)]), 2)


def gathered(self, message):
    from tf_onebit.collectives import AllGather

    return [(yield AllGather(message[0], f"{self.scope}/x", uneven=True))]


def test_names_of_before_work_and_say_so():
    def message(self, gradients):
        return [g + 1.0 for g in gradients]

    def deliver(self, message, like, scale):
        yield from ()
        assert self.request_name("sum") == "test/sum"
        return message

    with pytest.warns(DeprecationWarning, match="Own.measures is now metrics. The old name goes"):
        own = of_one_stage(measures=lambda self: {"a": 1.0}, encode=message, deliver=deliver)
    own.build(specs_of([(2,)]), 0, 1, "test")
    assert own.metrics() == {"a": 1.0}
    with pytest.warns(DeprecationWarning, match="measures is now metrics"):
        assert of_one_stage().measures() == {}
    with pytest.warns(DeprecationWarning, match="in_full_precision is now uncompressed"):
        assert own.in_full_precision() is None
    with pytest.warns(DeprecationWarning, match="is now tf_onebit.exchanges.run_stages"):
        ((((gradient,), _)),) = LockstepEngine(["CPU:0"]).run([own.exchange([tf.zeros([2])])])
    assert gradient.numpy().tolist() == [1.0, 1.0]
    assert not hasattr(own, "hold")
    with pytest.raises(TypeError, match="Received: Own, which defines exchange. Define encode"):
        of_one_stage(exchange=lambda self, gradients: gradients)


def test_variables_that_are_not_residuals_need_as_many_workers():
    def create_state(self):
        self.steps = tf.Variable(3)

    methods = {"create_state": create_state, "residuals": lambda self: []}
    own, other = of_one_stage(**methods), of_one_stage(**methods)
    for one in (own, other):
        one.build(specs_of(SHAPES), 0, 1, "test")
    own.steps.assign(7)
    other.load_state([own.state()])
    assert int(other.steps) == 7
    with pytest.raises(ValueError, match="Own can only be resumed with as many workers .* 2 work"):
        other.load_state([own.state()] * 2)
