"""The measurements of `tf-onebit plan`: a model's steps, and the work and bytes of exchanges."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support import planned
from tf_onebit._measurement import Alone, measure_exchange, with_world_size
from tf_onebit._preflight import methods
from tf_onebit._preflight.block_ends import Blocks
from tf_onebit._preflight.computation import ModelInStep
from tf_onebit._preflight.measurements import alone_seconds_of, measure
from tf_onebit.exchanges import FullPrecision, GradientSpec, OneBit, Threshold
from tf_onebit.planner import uniform_links

SPECS = [
    GradientSpec("kernel", (64, 512), "float32"),
    GradientSpec("bias", (512,), "float32"),
    GradientSpec("embedding", (100, 32), "float32", sparse=True),
]


def test_model_keeps_its_weights_and_its_optimizer():
    model = planned.make_model()
    model.fit(np.ones([8, 16]), np.ones([8, 40]), verbose=0)
    variables = model.variables + model.optimizer.variables
    before = [variable.numpy() for variable in variables]
    step = ModelInStep(model)
    step.measure(4, Alone())
    step.restore()
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def with_scaled_loss():
    return keras.optimizers.LossScaleOptimizer(planned.OwnOptimizer(0.1))


def of_a_horovod_job(optimizer=None):
    hvd.init()
    return hvd.DistributedOptimizer(optimizer or planned.OwnOptimizer(0.1), exchange=OneBit())


def of_a_horovod_job_with_scaled_loss():
    return of_a_horovod_job(with_scaled_loss())


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda: planned.OwnOptimizer(0.1),
        with_scaled_loss,
        of_a_horovod_job,
        of_a_horovod_job_with_scaled_loss,
    ],
    ids=["bare", "scaled_loss", "horovod", "horovod_with_scaled_loss"],
)
def test_an_optimizer_of_the_users_is_measured(make_optimizer):
    model = planned.make_model()
    model.compile(make_optimizer(), loss="mse")
    step = ModelInStep(model)
    assert step.measure(4, Alone()).seconds > 0
    assert type(getattr(step.optimizer, "inner_optimizer", step.optimizer)) is planned.OwnOptimizer


def test_an_optimizer_of_the_users_is_measured_in_the_scope_of_a_strategy():
    with tf_onebit.distribute.MirroredStrategy(OneBit(), devices=["CPU:0"]).scope():
        model = planned.make_model()
        model.compile(planned.OwnOptimizer(0.1), loss="mse")
    assert type(ModelInStep(model).optimizer) is planned.OwnOptimizer


def test_statistics_are_given_back():
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    model.compile("sgd", loss="mse")
    before = [variable.numpy() for variable in model.variables]
    step = ModelInStep(model)
    step.measure(64, Alone())
    assert any(np.any(v != b) for v, b in zip(model.variables, before, strict=True))
    step.restore()
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def squares(outputs):
    return np.mean(np.square(outputs))


def entropy_of_class_0(outputs):
    return np.log(np.sum(np.exp(outputs))) - outputs[0]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mse", squares),
        (SPARSE, entropy_of_class_0),
        (keras.losses.CTC(), np.sum),  # it needs sequences of labels
        (None, np.sum),
    ],
)
def test_the_loss_is_computed_with_labels_that_fit_it(loss, expected):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", loss=loss)
    step = ModelInStep(model)
    batch = step.batch(1)
    assert float(step.loss(batch)) == pytest.approx(expected(model(batch).numpy()[0]), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "of_right"),
    [({"left": "mse", "right": SPARSE}, entropy_of_class_0), ("mse", squares)],
)
def test_each_output_has_its_loss(loss, of_right):
    inputs = keras.Input((4,))
    outputs = {name: keras.layers.Dense(3, name=name)(inputs) for name in ("left", "right")}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", loss=loss)
    step = ModelInStep(model)
    batch = step.batch(1)
    left, right = (model(batch)[name].numpy()[0] for name in ("left", "right"))
    assert float(step.loss(batch)) == pytest.approx(squares(left) + of_right(right), rel=1e-5)


@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize(
    "exchange", [FullPrecision(), OneBit(), Threshold(target_density=0.01)], ids=lambda e: e.name
)
def test_what_is_sent_is_what_the_exchange_says(exchange, world_size):
    specs = SPECS[:2]
    buckets = measure_exchange(exchange, specs, world_size)
    assert sum(bucket.size for bucket in buckets) == sum(spec.size for spec in specs)
    built = exchange.clone()
    built.build(specs, 0, world_size, "test")
    if isinstance(exchange, OneBit):
        assert sum(bucket.sent_bytes for bucket in buckets) == built.bytes_sent()
    full = 2 * (world_size - 1) / world_size * 4 * sum(spec.size for spec in specs)
    if isinstance(exchange, Threshold):
        # Words for the values that are expected to exceed tau, a little room, and headers.
        words = sum(bucket.sent_bytes for bucket in buckets) / (world_size - 1) / 4
        assert 1.0 < words / (0.01 * sum(spec.size for spec in specs)) < 1.5
    if isinstance(exchange, FullPrecision):
        assert sum(bucket.sent_bytes for bucket in buckets) == pytest.approx(full, rel=1e-3)
    assert all(bucket.all_work_seconds > 0 for bucket in buckets)


def test_on_a_gpu_the_work_of_an_exchange_is_known_as_a_whole(monkeypatch):
    specs = [GradientSpec("kernel", (1024, 1024), "float32")]
    (on_cpu,) = measure_exchange(OneBit(), specs, 2)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["GPU:0"])
    (on_gpu,) = measure_exchange(OneBit(), specs, 2)
    assert on_gpu.sent_bytes == on_cpu.sent_bytes
    stages = {*(c.work_seconds for c in on_gpu.collectives), on_gpu.work_seconds}
    assert len(stages) == 1 and 0 < on_gpu.all_work_seconds < 1


@pytest.mark.parametrize(
    ("exchange", "kinds"),
    [
        (FullPrecision(), ["all_reduce"]),  # beside its flags
        (OneBit(), ["all_to_all", "all_gather"]),
        (Threshold(0.1), ["all_gather"]),
    ],
)
def test_what_waits_for_no_answer_has_no_latency_of_its_own(exchange, kinds):
    (bucket,) = measure_exchange(exchange, SPECS[:2], 2)
    assert [collective.kind for collective in bucket.collectives] == kinds


def test_rows_and_their_indices_travel_beside_each_other():
    (spec,) = (spec for spec in SPECS if spec.sparse)
    (bucket,) = measure_exchange(OneBit(), [spec], 2, rows=[3])
    (collective,) = bucket.collectives
    assert collective.kind == "all_gather"


def test_buckets_that_are_alike_are_measured_once():
    specs = [GradientSpec(f"kernel{i}", (64, 512), "float32") for i in range(3)]
    specs.append(GradientSpec("head", (64, 512), "bfloat16"))
    last, *others = measure_exchange(OneBit(bucket_bytes=1), specs, 2)
    assert len(others) == 3 and others[0] is others[1] is others[2]
    assert last is not others[0] and last.size == others[0].size


def test_an_exchange_is_measured_as_it_is_after_its_warm_up():
    # What it learns there, such as the scales of updates, makes its later steps longer.
    stages = []

    class Learning(OneBit):
        def encode(self, gradients):
            stages.append("step")
            return super().encode(gradients)

        def learn(self, updates):
            stages.append("warm-up")
            super().learn(updates)

    measure_exchange(Learning(), SPECS[:1], 2)
    assert stages == ["warm-up", "step"]  # each is traced once


@pytest.mark.parametrize("exchange_class", [OneBit, Threshold])
def test_what_is_added_to_weights_is_not_decoded_apart(exchange_class):
    done = []

    class Noting(exchange_class):
        def decoded(self, *arguments):
            done.append("decoded")
            return super().decoded(*arguments)

        def add_to(self, variables, *arguments):
            done.append([tuple(variable.shape) for variable in variables])
            return super().add_to(variables, *arguments)

    (apart,) = measure_exchange(Noting(), SPECS[:2], 2)
    assert done == ["decoded"]
    (added,) = measure_exchange(Noting(), SPECS[:2], 2, adds=True)
    assert done == ["decoded", [(512,), (64, 512)]]
    assert added.sent_bytes == pytest.approx(apart.sent_bytes, rel=0.1)
    assert added.work_seconds > 0


class TakingAll(FullPrecision):
    """An exchange of a user, which makes sparse gradients dense."""

    takes_sparse = True

    def encode(self, gradients):
        return super().encode([tf.convert_to_tensor(gradient) for gradient in gradients])

    def deliver(self, message, like, scale):
        return super().deliver(message, [tf.convert_to_tensor(g) for g in like], scale)


def test_nothing_is_added_in_a_bucket_with_sparse_gradients():
    (bucket,) = measure_exchange(TakingAll(), SPECS, 2, adds=True)
    assert bucket.size == sum(spec.size for spec in SPECS)


def test_what_an_exchange_cannot_add_is_added_after_it(monkeypatch):
    added = []
    assign_add = type(tf.Variable(0.0)).assign_add

    def noting(self, value, *arguments, **options):
        if self.shape.rank:
            added.append(tuple(self.shape))
        return assign_add(self, value, *arguments, **options)

    monkeypatch.setattr(type(tf.Variable(0.0)), "assign_add", noting)
    specs = [*SPECS, GradientSpec("narrow", (8, 8), "bfloat16")]
    measure_exchange(OneBit(exclude=["bias"]), specs, 2, adds=True)
    assert sorted(added) == [(8, 8), (512,)]  # and no sparse ones
    added.clear()
    measure_exchange(OneBit(exclude=["bias"]), specs, 2)
    assert added == []


def test_sparse_gradients_are_measured_as_they_are_exchanged():
    buckets, dense = (measure_exchange(OneBit(), specs, 2) for specs in (SPECS, SPECS[:2]))
    (sparse,) = [bucket for bucket in buckets if bucket.size == 100 * 32]
    assert len(buckets) == len(dense) + 1
    assert 0 < sparse.sent_bytes < 4 * 100 * 32


class Crowded(Alone):
    """One of two workers. The other computes as long as this one."""

    world_size = 2


def test_first_worker_computes_alone_while_the_others_wait():
    class Step:
        measured = []

        def measure_alone(self, size):
            self.measured.append(size)
            return 0.3

    class Other(Crowded):
        rank = 1

        def slowest(self, seconds):
            return [max(seconds, 0.5)]  # of the first worker

    assert alone_seconds_of(Step(), 8, Crowded()) == pytest.approx(0.3)
    assert Step.measured == [8]
    assert alone_seconds_of(Step(), 8, Other()) == 0.5
    assert Step.measured == [8]


def test_first_worker_may_have_lost_its_memory_to_larger_batches():
    step = types.SimpleNamespace(measure_alone=lambda size: None)
    assert alone_seconds_of(step, 8, Crowded()) == 0


class LittleMemory(Alone):
    """One of two workers. The other has memory for a few batches only."""

    world_size = 2

    def __init__(self, batches):
        self._batches = batches

    def slowest(self, *values):
        if values == (0,):  # whether there is memory
            self._batches -= 1
            return [int(self._batches < 0)]
        return list(values)


def test_batches_for_which_some_worker_has_no_memory_are_left_out():
    options = types.SimpleNamespace(
        per_replica_batch_size=8,
        unknown_size=None,
        target_density=0.01,
        blocks=Blocks(16),
        workers_per_node=1,
    )
    links = uniform_links(1e6, 0.0)
    measured = measure(planned.make_model(), LittleMemory(2), links, None, [2], options)
    assert sorted(measured.computations) == [4, 8]
    message = "too little memory for a step. Received: 8 samples.*--per-replica-batch-size 4\\."
    with pytest.raises(ValueError, match=message):
        measure(planned.make_model(), LittleMemory(1), links, None, [2], options)


@pytest.mark.parametrize("world_size", [3, 16])
def test_full_precision_of_one_number_of_workers_tells_that_of_another(world_size):
    specs = SPECS[:2]
    buckets = measure_exchange(FullPrecision(), specs, 2)
    for known, measured in zip(
        with_world_size(buckets, 2, world_size),
        measure_exchange(FullPrecision(), specs, world_size),
        strict=True,
    ):
        for one, other in zip(known.collectives, measured.collectives, strict=True):
            assert one.kind == other.kind
            assert one.sent_bytes == pytest.approx(other.sent_bytes, rel=1e-3)


def test_dense_gradients_in_full_precision_are_measured_for_one_number_of_workers(monkeypatch):
    measured = []

    def measure_one(exchange, specs, world_size, *arguments, **options):
        if isinstance(exchange, FullPrecision):
            measured.append((world_size, any(spec.sparse for spec in specs)))
        return measure_exchange(exchange, specs, world_size, *arguments, **options)

    monkeypatch.setattr(methods, "measure_exchange", measure_one)
    options = types.SimpleNamespace(
        per_replica_batch_size=8,
        unknown_size=16,
        target_density=0.01,
        blocks=Blocks(16),
        workers_per_node=1,
    )
    links = uniform_links(1e6, 0.0)
    measure(planned.make_model(), Alone(), links, None, [2, 4, 8], options)
    assert measured == [(2, False)]
    measured.clear()
    measure(planned.make_text_model(), Alone(), links, None, [2, 4], options)
    # The rows of a step are gathered from all workers. The table, at the end of a block, is not.
    assert measured == [(2, True), (2, False), (4, True)]
