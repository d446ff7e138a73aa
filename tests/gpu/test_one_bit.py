"""The one-bit kernels against the oracle, and their other promises."""

import math

import numpy as np
import pytest

from tests.gpu.devices import Emulated
from tests.gpu.formats import to_float64, to_storage
from tests.gpu.one_bit import OneBitKernels, layout
from tests.reference.one_bit import Cluster, columns_of, stored_as_bfloat16
from tests.support.nightly import nightly, nightly_rows

# Columns for every kernel: of 1, 33, 128, 512 and 1024 values, and of more than a block of threads
# takes at once. Lists in full precision, too.
SHAPES = [
    (33,),
    (1, 1),
    (31, 1),
    (2, 97),
    (),
    (3, 3, 4, 24),
    (0,),
    (5, 512),
    (3, 1024),
    (2, 40_000),
]
MIN_COLUMN_SIZE, MAX_COLUMN_SIZE = 32, 64 * 1024
ROUNDING = {"float32": 2e-6, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def layout_of(shapes, world_size, min_column_size=MIN_COLUMN_SIZE, max_column_size=MAX_COLUMN_SIZE):
    cuts = [
        (math.prod(shape), *layout.column_cut(shape, min_column_size, max_column_size))
        if len(shape) > 1
        else layout.plain_cut(shape)
        for shape in shapes
    ]
    return layout.Layout(cuts, world_size)


def values_of(rng, shapes, dtype="float32"):
    """Returns heavy-tailed values, with zeros of both signs."""
    tensors = []
    for size in map(math.prod, shapes):
        values = rng.normal(size=size) * np.exp(rng.normal(size=size))
        values[3::7], values[5::11] = 0.0, -0.0
        tensors.append(to_storage(values, dtype))
    return tensors


def coded(tensors, shapes, dtype="float32"):
    pairs = zip(tensors, shapes, strict=True)
    return np.concatenate([to_float64(t, dtype).ravel() for t, shape in pairs if len(shape) > 1])


def scales_of(shapes):
    """Returns a scale for each value of the columns."""
    size = sum(math.prod(shape) for shape in shapes if len(shape) > 1)
    return np.random.default_rng(2).uniform(0.5, 2.0, size).astype(np.float32)


def oracle_of(shapes, world_size, max_column_size=MAX_COLUMN_SIZE, **settings):
    slices, start = [], 0
    for shape in shapes:
        if len(shape) > 1:
            columns = columns_of(shape, MIN_COLUMN_SIZE, max_column_size)
            slices += [slice(start + column.start, start + column.stop) for column in columns]
            start += math.prod(shape)
    return Cluster(world_size, slices, start, **settings)


class Workers:
    """All workers of an exchange, with their residuals."""

    def __init__(
        self,
        device,
        world_size,
        shapes=SHAPES,
        misaligned=False,
        scales=None,
        residual_dtype="float32",
        **settings,
    ):
        self.scales = scales
        self.layout = layout_of(shapes, world_size)
        self.kernels = OneBitKernels(device, self.layout, misaligned=misaligned, **settings)
        shard_sizes = self.layout.shard_sizes
        self.residuals, self.shard_residuals, self.fused_residuals = (
            [self.kernels.residual(size, residual_dtype) for size in sizes]
            for sizes in ([self.layout.size] * world_size, shard_sizes, shard_sizes)
        )

    def start_shards(self, values):
        """Sets the residuals of all shards, which are one array."""
        shards = np.split(values.astype(np.float32), np.cumsum(self.layout.shard_sizes)[:-1])
        self.shard_residuals, self.fused_residuals = (
            [self.kernels.to_device(shard) for shard in shards] for _ in range(2)
        )

    def exchange(self, gradients, dtype="float32"):
        """Runs an exchange. Returns all intermediate results, and the mean over the workers."""
        kernels, ranks = self.kernels, range(self.layout.world_size)
        encoded = [
            kernels.encode(mine, residual, dtype, self.scales)
            for mine, residual in zip(gradients, self.residuals, strict=True)
        ]
        received = np.stack([messages for messages, _ in encoded], axis=1)
        sums = [kernels.decode_sum(received[k], k) for k in ranks]
        sent = [kernels.encode_shard(sums[k][0], self.shard_residuals[k], k) for k in ranks]
        fused = [kernels.aggregate(received[k], self.fused_residuals[k], k) for k in ranks]
        messages = np.concatenate([message for message, _ in sent])
        decoded = kernels.decode(messages, sums[0][1], 1 / len(ranks), dtype, self.scales)
        return encoded, sums, sent, fused, decoded

    def numpy(self, residuals):
        return [self.kernels.device.numpy(residual) for residual in residuals]


@pytest.mark.parametrize(
    "settings",
    [{"bits": 1}, {"bits": 2}, {"error_feedback": False}, {"bits": 2, "scales": scales_of(SHAPES)}],
    ids=["feedback", "two_bits", "no_feedback", "scaled"],
)
@pytest.mark.parametrize(
    "world_size, dtype, levels",
    [
        (5, "float32", "mean"),
        (2, "float16", "symmetric"),
        *nightly_rows((5, "float32", "symmetric"), (2, "float16", "mean")),
        *nightly_rows((1, "bfloat16", "mean"), (1, "bfloat16", "symmetric")),
    ],
)
def test_an_exchange_is_that_of_the_oracle(device, rng, world_size, dtype, levels, settings):
    settings = settings | {"levels": levels}
    workers = Workers(device, world_size, **settings)
    oracle = oracle_of(SHAPES, world_size, **settings)
    # Scaled values are rounded twice.
    rounding = ROUNDING[dtype] * (2 if "scales" in settings else 1)
    if oracle.owners.error_feedback:
        # The sum of a few codes has many equal values. Without a residual, rounding alone would
        # decide about the second bit of their errors.
        oracle.owners.residual = rng.normal(size=workers.layout.size).astype(np.float32)
        workers.start_shards(oracle.owners.residual)
    for _ in range(2):
        gradients = [values_of(rng, SHAPES, dtype) for _ in range(world_size)]
        encoded, sums, sent, fused, decoded = workers.exchange(gradients, dtype)
        expected = oracle.exchange([coded(mine, SHAPES, dtype) for mine in gradients])
    for residual, worker in zip(workers.numpy(workers.residuals), oracle.workers, strict=True):
        np.testing.assert_allclose(residual, worker.residual, rtol=2e-6, atol=2e-5)
    for (_, squares), worker in zip(encoded, oracle.workers, strict=True):
        assert squares == pytest.approx((worker.residual**2).sum(), rel=1e-4)
    aggregate = np.concatenate([aggregate for aggregate, _ in sums])
    np.testing.assert_allclose(aggregate, oracle.aggregate, rtol=2e-6, atol=2e-5)
    residual = np.concatenate(workers.numpy(workers.shard_residuals))
    np.testing.assert_allclose(residual, oracle.owners.residual, rtol=2e-6, atol=2e-5)
    np.testing.assert_allclose(
        coded(decoded, SHAPES, dtype), expected / world_size, rtol=rounding, atol=2e-5
    )
    plain_sums = [
        sum(to_float64(tensor, dtype) for tensor in tensors)
        for tensors in zip(*gradients, strict=True)
    ]
    for tensor, total, shape in zip(decoded, plain_sums, SHAPES, strict=True):
        if len(shape) < 2:
            np.testing.assert_allclose(
                to_float64(tensor, dtype), total / world_size, rtol=2 * ROUNDING[dtype], atol=1e-6
            )
    for k in range(world_size):
        for actual, separate in zip(fused[k], (*sent[k], sums[k][1]), strict=True):
            np.testing.assert_array_equal(actual, separate)


# Messages are added up in turns of eight, and the squares of columns in turns of 1,024.
@pytest.mark.parametrize("world_size, shapes", [(9, SHAPES), (17, [(3, 512), (2, 700), (5, 33)])])
def test_many_messages_are_added_up(device, rng, world_size, shapes):
    workers = Workers(device, world_size, shapes)
    gradients = [values_of(rng, shapes) for _ in range(world_size)]
    _, sums, sent, fused, _ = workers.exchange(gradients)
    expected = oracle_of(shapes, world_size)
    expected.exchange([coded(mine, shapes) for mine in gradients])
    aggregate = np.concatenate([aggregate for aggregate, _ in sums])
    np.testing.assert_allclose(aggregate, expected.aggregate, rtol=2e-6, atol=5e-5)
    for (message, squares), (message_of_fused, squares_of_fused, _) in zip(
        sent, fused, strict=True
    ):
        np.testing.assert_array_equal(message_of_fused, message)
        assert squares_of_fused == squares


@pytest.mark.parametrize("num_columns", [1023, 1025, *nightly(33_000)])
def test_squares_of_many_columns_are_added_up(device, rng, num_columns):
    shapes = [(num_columns, 32)]
    workers = Workers(device, 1, shapes)
    ((_, squares),), *_ = workers.exchange([values_of(rng, shapes)])
    residual = workers.numpy(workers.residuals)[0].astype(np.float64)
    assert squares == pytest.approx((residual**2).sum(), rel=1e-6)


def test_the_smallest_values_count_as_zero(device):
    if device is Emulated:
        pytest.skip("the CPU that emulates a GPU does not take them for zero here")
    workers = Workers(device, 1, [(2, 64)])
    (encoded,), *_ = workers.exchange([[np.tile(np.float32([1e-40, -1e-40]), 64)]])
    levels = encoded[0][0, 1:5].view(np.float32)
    assert not levels.any()
    assert not workers.numpy(workers.residuals)[0].any()


@pytest.mark.parametrize("dtype", ["float32", *nightly("float16")])
def test_a_residual_in_bfloat16_is_what_one_in_float32_would_be_rounded(device, rng, dtype):
    kernels = Workers(device, 1).kernels
    gradients = values_of(rng, SHAPES, dtype)
    before = to_storage(rng.normal(size=kernels.layout.size), "bfloat16")
    wide = kernels.to_device(to_float64(before, "bfloat16").astype(np.float32))
    narrow = kernels.to_device(before)
    expected, _ = kernels.encode(gradients, wide, dtype)
    messages, squares = kernels.encode(gradients, narrow, dtype)
    np.testing.assert_array_equal(messages, expected)
    rest, stored = kernels.device.numpy(wide), kernels.device.numpy(narrow)
    sent, _ = kernels.decode_sum(messages, 0)
    for worker_column in oracle_of(SHAPES, 1).workers[0].columns:
        levels = np.float32([min(sent[worker_column].min(), 0), max(sent[worker_column].max(), 0)])
        rounded = stored_as_bfloat16(rest[worker_column], levels)
        np.testing.assert_array_equal(stored[worker_column], to_storage(rounded, "bfloat16"))
    assert squares == pytest.approx((to_float64(stored, "bfloat16") ** 2).sum(), rel=1e-5)


SCALES = scales_of(SHAPES)


def bits_of(results):
    if isinstance(results, np.ndarray):
        return results.tobytes()
    if isinstance(results, float):
        return np.float32(results).tobytes()
    return b"".join(map(bits_of, results))


@pytest.mark.parametrize(
    "bits, scales, residual_dtype",
    [
        (1, None, "float32"),
        (2, SCALES, "bfloat16"),
        *nightly_rows((1, SCALES, "float32"), (2, None, "float32"), (1, None, "bfloat16")),
    ],
    ids=["1-unscaled", "2-scaled-bfloat16", "1-scaled", "2-unscaled", "1-unscaled-bfloat16"],
)
@pytest.mark.parametrize("dtype", ["float32", *nightly("float16", "bfloat16")])
@pytest.mark.parametrize("misaligned", [False, True], ids=["aligned", "misaligned"])
def test_every_run_has_the_bits_of_the_emulation(
    device, rng, dtype, misaligned, bits, scales, residual_dtype
):
    gradients = [values_of(rng, SHAPES, dtype) for _ in range(3)]
    settings, results = {"bits": bits, "scales": scales, "residual_dtype": residual_dtype}, []
    for on, offset in [(Emulated, False), (device, misaligned), (device, misaligned)]:
        workers = Workers(on, 3, misaligned=offset, **settings)
        exchanged = workers.exchange(gradients, dtype)
        residuals = workers.residuals + workers.shard_residuals + workers.fused_residuals
        results.append(bits_of([exchanged, workers.numpy(residuals)]))
    assert results[1] == results[0]
    assert results[2] == results[0]


@pytest.mark.parametrize("dtype", ["float16", *nightly("float32", "bfloat16")])
@pytest.mark.parametrize("misaligned", [False, True], ids=["aligned", "misaligned"])
def test_scales_are_divisors_before_and_factors_behind(device, rng, dtype, misaligned):
    """Same bits as without scales, with a division before and a multiplication behind."""
    scales, gradients = scales_of(SHAPES), values_of(rng, SHAPES, dtype)
    workers = Workers(device, 2, misaligned=misaligned, bits=2)
    kernels, size = workers.kernels, workers.layout.size
    divided = [to_float64(tensor, dtype).astype(np.float32) for tensor in gradients]
    start = 0
    for tensor, shape in zip(divided, SHAPES, strict=True):
        if len(shape) > 1:
            tensor /= scales[start : start + tensor.size]
            start += tensor.size
    residuals = [kernels.to_device(np.linspace(-1, 1, size, dtype=np.float32)) for _ in range(2)]
    results = [
        kernels.encode(gradients, residuals[0], dtype, scales),
        kernels.encode(divided, residuals[1]),
    ]
    assert bits_of(results[0]) == bits_of(results[1])
    assert bits_of(workers.numpy(residuals[:1])) == bits_of(workers.numpy(residuals[1:]))
    *_, sent, _, _ = workers.exchange([gradients, gradients], dtype)
    messages = np.concatenate([message for message, _ in sent])
    plain = np.zeros(workers.layout.plain_size, np.float32)
    decoded = coded(kernels.decode(messages, plain, 0.3, dtype), SHAPES, dtype)
    products = to_storage(decoded.astype(np.float32) * scales, dtype)
    scaled = kernels.decode(messages, plain, 0.3, dtype, scales)
    np.testing.assert_array_equal(coded(scaled, SHAPES, dtype), to_float64(products, dtype))


@pytest.mark.parametrize("is_scaled", [False, True], ids=["unscaled", "scaled"])
@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("misaligned", [False, True], ids=["aligned", "misaligned"])
def test_decoded_values_are_added_to_variables(device, rng, misaligned, bits, is_scaled):
    workers = Workers(device, 2, misaligned=misaligned, bits=bits)
    kernels, scales = workers.kernels, scales_of(SHAPES) if is_scaled else None
    _, sums, sent, _, _ = workers.exchange([values_of(rng, SHAPES) for _ in range(2)])
    received = np.concatenate([message for message, _ in sent]), sums[0][1]
    decoded = kernels.decode(*received, 0.7, scales=scales)
    before = values_of(rng, SHAPES)
    variables = [kernels.to_device(values.ravel()) for values in before]
    kernels.decode_add(variables, *received, -0.3, 0.7, scales)
    for variable, values, change in zip(variables, before, decoded, strict=True):
        expected = values.ravel() + np.float32(-0.3) * change
        np.testing.assert_array_equal(kernels.numpy(variable), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("misaligned", [False, True], ids=["aligned", "misaligned"])
def test_squares_of_updates_are_followed(device, rng, dtype, misaligned):
    shapes = [*SHAPES, *[(2, 33)] * 70]  # more than a launch takes
    workers = Workers(device, 2, shapes, misaligned=misaligned)
    updates = values_of(rng, shapes, dtype)
    values = coded(updates, shapes, dtype).astype(np.float32)
    before = rng.uniform(size=values.size).astype(np.float32)
    expected = np.float32(0.95) * before + np.float32(0.05) * (values * values)
    updates[5][7:9] = to_storage(np.array([np.nan, -np.inf]), dtype)
    start = sum(math.prod(shape) for shape in SHAPES[:5] if len(shape) > 1)
    expected[start + 7 : start + 9] = before[start + 7 : start + 9]
    followed = workers.kernels.learn_scales(updates, before, dtype)
    np.testing.assert_array_equal(followed, expected)


@pytest.mark.parametrize("shape", [(4, 70), (4, 500), (4, 1000), (4, 5000)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_column_that_is_not_finite_is_sent_as_zeros_and_keeps_its_residual(
    device, rng, shape, bad
):
    shapes = [(2, 64), shape, (3,)]
    workers = Workers(device, 2, shapes)
    gradients = [values_of(rng, shapes) for _ in range(2)]
    workers.exchange(gradients)
    before = workers.numpy(workers.residuals)[0].copy()
    gradients[0][1][shape[1] + 3] = bad
    encoded, *_, decoded = workers.exchange(gradients)
    assert [list(messages[:, 0]) for messages, _ in encoded] == [[2, 2], [0, 0]]
    start = 2 * 64 + shape[1]
    after = workers.numpy(workers.residuals)[0]
    np.testing.assert_array_equal(after[start:][: shape[1]], before[start:][: shape[1]])
    assert not np.array_equal(after, before)
    assert all(np.isfinite(tensor).all() for tensor in decoded)
    assert np.isfinite([squares for _, squares in encoded]).all()


@pytest.mark.parametrize("size", [70, 500, 1000, 5000])
def test_a_column_of_an_aggregate_that_is_not_finite_is_zero_in_both_rows(device, rng, size):
    workers = Workers(device, 1, [(3, size)], bits=2)
    aggregate, before = (rng.normal(size=3 * size).astype(np.float32) for _ in range(2))
    aggregate[size + 3] = np.nan
    residual = workers.kernels.to_device(before)
    message, squares = workers.kernels.encode_shard(aggregate, residual, 0)
    assert list(message[:, 0]) == [1, 1]
    assert (message[:, 1:7].view(np.float32) == 0).tolist() == [
        [False] * 2 + [True] * 2 + [False] * 2
    ] * 2
    (after,) = workers.numpy([residual])
    np.testing.assert_array_equal(after[size : 2 * size], before[size : 2 * size])
    others = np.delete(after, np.s_[size : 2 * size]).astype(np.float64)
    assert squares == pytest.approx((others**2).sum(), rel=1e-5)
    decoded = workers.kernels.decode(message, np.zeros(0, np.float32))[0]
    assert not decoded[size : 2 * size].any()


def test_a_plain_value_that_is_not_finite_is_flagged(device, rng):
    shapes = [(2, 64), (3,), (5,)]
    workers = Workers(device, 2, shapes)
    gradients = [values_of(rng, shapes) for _ in range(2)]
    gradients[1][2][4] = np.nan
    encoded, *_ = workers.exchange(gradients)
    assert [list(messages[:, 0]) for messages, _ in encoded] == [[0, 0], [3, 3]]


def test_more_tensors_than_a_launch_takes(device, rng):
    shapes = [(2, 32), (7,)] * 300
    workers = Workers(device, 2, shapes)
    oracle = oracle_of(shapes, 2)
    gradients = [values_of(rng, shapes) for _ in range(2)]
    *_, decoded = workers.exchange(gradients)
    expected = oracle.exchange([coded(mine, shapes) for mine in gradients])
    np.testing.assert_allclose(coded(decoded, shapes), expected / 2, rtol=2e-6, atol=2e-5)
    for mine, other, mean in zip(*gradients, decoded, strict=True):
        if mine.size == 7:
            np.testing.assert_allclose(mean, (mine + other) / 2, rtol=1e-6)


@pytest.mark.parametrize("shapes", [[(0, 64)], [(0,)], [(3,)], [(1, 40)]])
def test_shards_without_columns(device, rng, shapes):
    workers = Workers(device, 4, shapes)
    gradients = [values_of(rng, shapes) for _ in range(4)]
    encoded, *_, decoded = workers.exchange(gradients)
    assert all((messages[:, 0] == 0).all() for messages, _ in encoded)
    assert [tensor.size for tensor in decoded] == [math.prod(shape) for shape in shapes]
    assert all(np.isfinite(tensor).all() for tensor in decoded)


def test_what_levels_and_codes_leave_of_a_message_is_zero(device, rng):
    shapes = [(5, 40), (2, 33)]
    workers = Workers(device, 3, shapes)
    (messages, _), *_ = workers.exchange([values_of(rng, shapes) for _ in range(3)])[0]
    plan = workers.layout
    columns = [plan.shard_starts[k + 1] - plan.shard_starts[k] for k in range(3)]
    assert len(set(columns)) > 1
    for message, count in zip(messages, columns, strict=True):
        levels = message[1 : 1 + 2 * max(columns)]
        assert levels[: 2 * count].all()
        assert not levels[2 * count :].any()
