"""Measures the kernels on a GPU beside a copy of memory, and beside CuPy and PyTorch.

    python benchmarks/gpu.py

Needs a GPU, nvcc, CuPy and NumPy, but no TensorFlow: the kernels are called through their C
interface, as in tests/gpu. CuPy computes the same exchange, and PyTorch too if it is installed. The
model is the papers' DNN with 45M weights in columns of 512, for eight workers. Rows take turns, and
every figure is a ratio within a turn. It compares the bytes that a kernel must read and write per
second with a copy from device to device. `--device emulated` tries the program out on the CPU,
whose times mean nothing.
"""

import argparse
import ctypes
import importlib.util
import itertools
import pathlib
import sys

import gpu_peers
import numpy as np
from report import Spread, machine_facts, print_machine_facts, print_table, verdict, write_json

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tests.gpu.arrays import HostObject, Kernels, integers  # noqa: E402
from tests.gpu.devices import Cuda, Emulated  # noqa: E402
from tests.gpu.one_bit import OneBitKernels, layout  # noqa: E402
from tests.gpu.threshold import COUNT, HEADER_WORDS, STEP, ThresholdKernels  # noqa: E402

DEVICES = {device.name: device for device in (Cuda, Emulated)}
WIDTHS = (429, *[2048] * 7, 9304)
COLUMN_SIZE = 512
WORLD_SIZE = 8
DENSITY = 1e-3
FLOAT_BYTES = 4
TAU = 1.0

# The share of a copy's bandwidth that each row must reach.
LIMITS = {
    "1-bit encode": 0.85,
    "1-bit decode and sum of 8": 0.85,
    "1-bit decode": 0.85,
    "threshold encode": 0.80,
    "block update": 0.90,
}
COPY, EXCHANGE = "copy", "whole exchange"
OF_TWO_BITS = (
    *("1-bit decode", "1-bit decode, scaled", "1-bit decode and add"),
    "1-bit aggregate of 8",
)
PEERS = ("CuPy", "PyTorch", "PyTorch, compiled")
EXCHANGE_SECONDS, EXCHANGE_SPEEDUP = 0.4e-3, 5.0


class Row:
    """An operation to measure.

    Args:
        run: function that launches it.
        num_bytes: number of bytes that it must read and write.
    """

    def __init__(self, run, num_bytes):
        self.run, self.num_bytes = run, num_bytes


def copy_row(device, size, rng):
    source = device.array(rng.standard_normal(size, np.float32))
    target = device.array(np.zeros(size, np.float32))
    xp = device.array_module()
    return Row(lambda: xp.copyto(target, source), 2 * source.nbytes)


def one_bit_rows(device, shapes, rng, bits=1):
    """Returns rows of the 1-bit kernels for a whole model.

    Args:
        device: from `tests.gpu.devices`.
        shapes: list of (rows, columns) of the model's matrices.
        rng: NumPy generator.
        bits: of each value of an aggregate.
    """
    cuts = [
        (rows * columns, *layout.column_cut((rows, columns), 64, COLUMN_SIZE))
        for rows, columns in shapes
    ]
    kernels = OneBitKernels(device, layout.Layout(cuts, WORLD_SIZE))
    plan = kernels.layout
    gradients = [
        device.array(rng.standard_normal(rows * columns, np.float32)) for rows, columns in shapes
    ]
    residual, shard_residual = (kernels.residual(size) for size in (plan.size, plan.shard_sizes[0]))
    worker_words, shard_words = plan.worker_message_bytes // 4, plan.shard_message_bytes // 4
    messages = kernels.empty((WORLD_SIZE, worker_words))
    message = kernels.empty((bits, shard_words))
    gathered = kernels.empty((WORLD_SIZE * bits, shard_words))
    received = kernels.to_device(np.zeros((WORLD_SIZE, worker_words), np.int32))
    aggregate = kernels.empty(plan.shard_sizes[0], np.float32)
    plain = kernels.empty(0, np.float32)
    quantizer, _ = kernels.quantizer(plan.num_columns, residual)
    narrow_quantizer, _ = kernels.quantizer(
        plan.num_columns, kernels.residual(plan.size, "bfloat16")
    )
    shard_quantizer, _ = kernels.quantizer(kernels.shard_columns(0), shard_residual, bits)
    pointers, float32, rank = kernels.pointers(gradients), ctypes.c_int32(0), ctypes.c_int64(0)
    scale = ctypes.c_float(1 / WORLD_SIZE)
    scales = device.array(rng.uniform(0.1, 1.0, plan.size).astype(np.float32))
    squares = device.array(np.zeros(plan.size, np.float32))
    factor = device.array(np.float32([1e-6]))

    def encode(value_scales=None, of=quantizer):
        kernels.call(
            "one_bit_encode",
            kernels.device_layout,
            float32,
            pointers,
            kernels.pointer_or_null(value_scales),
            ctypes.byref(of),
            kernels.pointer(messages),
        )

    def decode_sum():
        kernels.call(
            "one_bit_decode_sum",
            kernels.device_layout,
            rank,
            *map(kernels.pointer, (received, aggregate, plain)),
        )

    def encode_shard():
        kernels.call(
            "one_bit_encode_shard",
            kernels.device_layout,
            rank,
            kernels.pointer(aggregate),
            ctypes.byref(shard_quantizer),
            kernels.pointer(message),
        )

    def aggregate_messages():
        kernels.call(
            "one_bit_aggregate",
            kernels.device_layout,
            rank,
            kernels.pointer(received),
            ctypes.byref(shard_quantizer),
            *map(kernels.pointer, (message, plain)),
        )

    def decode(value_scales=None):
        kernels.call(
            "one_bit_decode",
            kernels.device_layout,
            float32,
            kernels.pointer(gathered),
            ctypes.c_int32(bits),
            kernels.pointer(plain),
            scale,
            kernels.pointer_or_null(value_scales),
            pointers,
        )

    def decode_add():
        kernels.call(
            "one_bit_decode_add",
            kernels.device_layout,
            kernels.pointer(gathered),
            ctypes.c_int32(bits),
            kernels.pointer(plain),
            scale,
            kernels.pointer_or_null(None),
            kernels.pointer(factor),
            pointers,
        )

    def learn_scales():
        kernels.call(
            "one_bit_learn_scales",
            kernels.device_layout,
            float32,
            pointers,
            kernels.pointer(squares),
        )

    def exchange():
        encode()
        aggregate_messages()
        decode()

    def exchange_by_two_ops():
        encode()
        decode_sum()
        encode_shard()
        decode()

    # The input of a worker: messages about its shard, and about all shards.
    encode()
    received[...] = messages
    decode_sum()
    encode_shard()
    gathered.reshape(WORLD_SIZE, bits, shard_words)[...] = message

    encode_bytes = 3 * FLOAT_BYTES * plan.size + messages.nbytes
    sum_bytes = received.nbytes + aggregate.nbytes
    shard_bytes = 3 * aggregate.nbytes + message.nbytes
    # It reads and writes the residual, which is as long as the aggregate.
    aggregate_bytes = received.nbytes + 2 * aggregate.nbytes + message.nbytes
    decode_bytes = gathered.nbytes + FLOAT_BYTES * plan.size
    return {
        "1-bit encode": Row(encode, encode_bytes),
        "1-bit encode, scaled": Row(lambda: encode(scales), encode_bytes + scales.nbytes),
        "1-bit encode, bfloat16 residual": Row(
            lambda: encode(of=narrow_quantizer), encode_bytes - FLOAT_BYTES * plan.size
        ),
        "1-bit decode": Row(decode, decode_bytes),
        "1-bit decode, scaled": Row(lambda: decode(scales), decode_bytes + scales.nbytes),
        "1-bit decode and add": Row(decode_add, decode_bytes + FLOAT_BYTES * plan.size),
        "1-bit scales learned": Row(learn_scales, 3 * scales.nbytes),
        "1-bit aggregate of 8": Row(aggregate_messages, aggregate_bytes),
        EXCHANGE: Row(exchange, encode_bytes + aggregate_bytes + decode_bytes),
        "the same, sum and second encode apart": Row(
            exchange_by_two_ops, encode_bytes + sum_bytes + shard_bytes + decode_bytes
        ),
    }


def decode_sum_rows(device, num_values, rng):
    """Returns the row of a sum of eight messages about a shard of so many values."""
    cut = (WORLD_SIZE * num_values, num_values, COLUMN_SIZE)
    kernels = OneBitKernels(device, layout.Layout([cut], WORLD_SIZE))
    plan = kernels.layout
    words = plan.worker_message_bytes // 4
    messages = rng.integers(2**32, size=(WORLD_SIZE, words), dtype=np.uint32).view(np.int32)
    levels = 2 * kernels.shard_columns(0)
    of_messages = rng.standard_normal((WORLD_SIZE, levels), np.float32)
    messages[:, 1 : 1 + levels] = of_messages.view(np.int32)
    received = kernels.to_device(messages)
    aggregate = kernels.empty(plan.shard_sizes[0], np.float32)
    plain = kernels.empty(0, np.float32)

    def decode_sum():
        kernels.call(
            "one_bit_decode_sum",
            kernels.device_layout,
            ctypes.c_int64(0),
            *map(kernels.pointer, (received, aggregate, plain)),
        )

    return {"1-bit decode and sum of 8": Row(decode_sum, received.nbytes + aggregate.nbytes)}


def threshold_inputs(num_values, rng):
    """Returns inputs of the threshold kernels, as NumPy's arrays.

    Launches add the gradient to the residual and subtract it in turn. Each sends the same values,
    and each second one leaves the residual as it was.

    Args:
        num_values: of a worker.
        rng: NumPy generator.

    Returns:
        Gradient, residual and the messages of all workers.
    """
    is_sent = rng.random(num_values, np.float32) < DENSITY
    noise, kept = (0.1 * TAU * rng.standard_normal(num_values, np.float32) for _ in range(2))
    signed_tau = np.where(noise < 0, np.float32(-TAU), np.float32(TAU))
    gradient = np.where(is_sent, 1.5 * signed_tau, noise)
    residual = np.where(is_sent, -0.25 * signed_tau, kept)
    words = HEADER_WORDS + int(1.2 * DENSITY * num_values)
    messages = np.zeros((WORLD_SIZE, 1, words), np.int32)
    for message in messages[:, 0]:
        codes = np.flatnonzero(rng.random(num_values, np.float32) < DENSITY)
        signs = rng.integers(2, size=codes.size) << 31
        codes = (codes | signs)[: words - HEADER_WORDS].astype(np.uint32)
        message[COUNT], message[STEP] = codes.size, np.float32(TAU).view(np.int32)
        message[HEADER_WORDS : HEADER_WORDS + codes.size] = codes.view(np.int32)
    return gradient, residual, messages


def threshold_rows(device, num_values, rng):
    kernels = ThresholdKernels(device, [num_values])
    gradient, residual, received = threshold_inputs(num_values, rng)
    num_received = int(received[..., COUNT].sum())
    pointers = itertools.cycle(
        [kernels.pointers([device.array(values)]) for values in (gradient, -gradient)]
    )
    residual, received = kernels.to_device(residual), kernels.to_device(received)
    tau, factor = kernels.to_device(np.float32([TAU])), kernels.to_device(np.float32([1e-6]))
    message = kernels.empty(received.shape[1:])
    scratch = kernels.scratch(kernels.integer("threshold_scratch_bytes", kernels.parts.object))
    sums = kernels.empty(num_values, np.float32)

    def encode():
        kernels.call(
            "threshold_encode",
            *kernels.arguments,
            ctypes.c_int32(0),
            next(pointers),
            *map(kernels.pointer, (residual, tau, tau)),
            ctypes.c_int64(message.size - HEADER_WORDS),
            *map(kernels.pointer, (message, scratch)),
        )

    def decode_sum():
        kernels.call(
            "threshold_decode_sum",
            *kernels.arguments,
            ctypes.c_int32(0),
            *kernels.rows(received),
            ctypes.c_float(1 / WORLD_SIZE),
            kernels.pointers([sums]),
        )

    def decode_add():
        kernels.call(
            "threshold_decode_add",
            *kernels.arguments,
            *kernels.rows(received),
            ctypes.c_float(1 / WORLD_SIZE),
            kernels.pointer(factor),
            kernels.pointers([sums]),
        )

    return {
        "threshold encode": Row(encode, 3 * gradient.nbytes + message.nbytes),
        "threshold decode and sum of 8": Row(decode_sum, sums.nbytes + received.nbytes),
        "threshold decode and add of 8": Row(
            decode_add, received.nbytes + 2 * FLOAT_BYTES * num_received
        ),
    }


def block_rows(device, num_values, rng):
    """Returns the row of the update of all weights at the end of a block."""
    kernels = Kernels(device)
    mean, variable, model, delta = (
        kernels.to_device(rng.standard_normal(num_values, np.float32)) for _ in range(4)
    )
    coefficients = np.float64([0.9, 1.0, 0.9])

    def update():
        kernels.call(
            "block_update_float32",
            ctypes.c_int64(1),
            kernels.pointers([mean]),
            integers([num_values]),
            coefficients.ctypes.data_as(ctypes.c_void_p),
            *map(ctypes.c_int32, (1, 0)),
            *(kernels.pointers([array]) for array in (variable, model, delta)),
        )

    # It reads mean, model and delta, and writes weights, model and delta.
    return {"block update": Row(update, 6 * mean.nbytes)}


def moment_rows(device, num_values, rng):
    """Returns the rows of the updates of momentum, Adam and AdaGrad."""
    kernels = Kernels(device)
    gradient, average, square = (
        kernels.to_device(rng.random(num_values, np.float32)) for _ in range(3)
    )
    step, factor = (kernels.to_device(np.float32(n)) for n in ([-0.001, 0.5, 1.0], [-0.001]))
    update = kernels.empty(num_values, np.float32)
    one_part = ctypes.c_int64(2**63 - 1)
    run = HostObject(kernels, "parts", ctypes.c_int64(1), integers([num_values]), one_part)
    scratch = kernels.scratch(kernels.integer("adagrad_scratch_bytes", run.object))
    share, mean = (kernels.to_device(np.float64([value])) for value in (0.1, 0.5))
    root_sum = kernels.empty(1, np.float64)

    def momentum():
        kernels.call(
            "momentum",
            ctypes.c_int64(num_values),
            *map(kernels.pointer, (gradient, average)),
            ctypes.c_float(0.9),
            ctypes.c_int32(0),
            *map(kernels.pointer, (factor, update)),
        )

    def adam():
        kernels.call(
            "adam",
            ctypes.c_int64(num_values),
            *map(kernels.pointer, (gradient, average, square)),
            (ctypes.c_float * 3)(0.1, 0.001, 1e-7),
            *map(kernels.pointer, (step, update)),
        )

    def accumulate():
        arrays = run.table, gradient, share, square, root_sum, scratch
        kernels.call("adagrad_accumulate", run.object, *map(kernels.pointer, arrays))

    def normalize():
        kernels.call(
            "adagrad_normalize",
            run.object,
            *map(kernels.pointer, (gradient, square, mean)),
            ctypes.c_float(0.01),
            kernels.pointer(update),
        )

    return {
        "momentum": Row(momentum, 4 * update.nbytes),
        "Adam": Row(adam, 6 * update.nbytes),
        "AdaGrad, averages": Row(accumulate, 3 * update.nbytes),
        "AdaGrad, normalized": Row(normalize, 3 * update.nbytes),
    }


def peer_rows(device, num_values, rng):
    """Returns rows of the whole exchange in other packages, which have no kernels for it."""
    inputs = gpu_peers.inputs_of(num_values, COLUMN_SIZE, WORLD_SIZE, rng)
    exchanges = {"CuPy": gpu_peers.in_arrays(device, inputs)}
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: its rows are left out.")
    elif device is Cuda:
        exchanges["PyTorch"], exchanges["PyTorch, compiled"] = gpu_peers.in_torch(inputs)
    return {f"{EXCHANGE}, {peer}": Row(exchange, 0) for peer, exchange in exchanges.items()}


def make_rows(device, shapes, rng, with_peers):
    num_values = sum(rows * columns for rows, columns in shapes)
    two_bits = one_bit_rows(device, shapes, rng, bits=2)
    rows = {
        COPY: copy_row(device, num_values, rng),
        **one_bit_rows(device, shapes, rng),
        **{f"{name}, 2 bits": two_bits[name] for name in OF_TWO_BITS},
        **decode_sum_rows(device, num_values // COLUMN_SIZE * COLUMN_SIZE, rng),
        **threshold_rows(device, num_values, rng),
        **moment_rows(device, num_values, rng),
        **block_rows(device, num_values, rng),
    }
    return rows | peer_rows(device, num_values, rng) if with_peers else rows


def measure(device, rows, rounds, launches):
    """Returns the seconds of one launch by row: a list, one for each round."""
    for row in rows.values():
        row.run()
    seconds = {name: [] for name in rows}
    for _ in range(rounds):
        for name, row in rows.items():
            row.run()  # so that the device is busy when the clock starts
            taken = device.seconds(lambda run=row.run: [run() for _ in range(launches)])
            seconds[name].append(taken / launches)
    return seconds


def report(rows, seconds):
    """Prints the table, and returns the share of a copy's bandwidth by row."""
    rates = {name: [row.num_bytes / taken for taken in seconds[name]] for name, row in rows.items()}
    parts = {
        name: Spread.of(np.divide(rates[name], rates[COPY]))
        for name, row in rows.items()
        if row.num_bytes
    }
    table = [
        [
            name,
            Spread.of([1e3 * taken for taken in seconds[name]]).text(3),
            f"{row.num_bytes / 1e6:.0f}" if row.num_bytes else "",
            f"{1e-9 * np.median(rates[name]):.0f}" if row.num_bytes else "",
            parts[name].text(2) if row.num_bytes else "",
        ]
        for name, row in rows.items()
    ]
    print_table("medians [quartiles]", ["", "ms", "MB", "GB/s", "of a copy"], table)
    return parts


def judge(parts, seconds):
    """Prints and returns the verdicts on the rows that were measured."""
    print()
    verdicts = [
        verdict(f"{name}, of a copy's bandwidth", parts[name].median, limit, at_most=False)
        for name, limit in LIMITS.items()
        if name in parts
    ]
    if EXCHANGE in seconds:
        whole = float(np.median(seconds[EXCHANGE]))
        verdicts.append(verdict(f"{EXCHANGE}, ms", 1e3 * whole, 1e3 * EXCHANGE_SECONDS))
        for peer in PEERS:
            if f"{EXCHANGE}, {peer}" in seconds:
                ratios = np.divide(seconds[f"{EXCHANGE}, {peer}"], seconds[EXCHANGE])
                claim = f"{EXCHANGE}, times faster than {peer}"
                faster = Spread.of(ratios).median
                verdicts.append(verdict(claim, faster, EXCHANGE_SPEEDUP, at_most=False))
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=DEVICES, default=Cuda.name)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="of the layers")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--launches", type=int, default=10, help="of each row per round")
    parser.add_argument("--rows", nargs="+", help="to measure beside the copy. Default: all")
    parser.add_argument("--output", default="results/gpu.json")
    arguments = parser.parse_args()
    device = DEVICES[arguments.device]
    reason = device.missing()
    if reason is not None:
        parser.error(f"there is no device to measure: {reason}. Try it out: --device emulated")
    facts = machine_facts() | {"device": device.description()}
    print_machine_facts(facts)
    shapes = list(zip(arguments.widths, arguments.widths[1:], strict=False))
    # To compile the exchange in PyTorch takes half a minute.
    with_peers = not arguments.rows or any(f"{EXCHANGE}, " in name for name in arguments.rows)
    rows = make_rows(device, shapes, np.random.default_rng(1), with_peers)
    chosen = arguments.rows or list(rows)
    if unknown := [name for name in chosen if name not in rows]:
        parser.error(f"there are no rows {unknown}. Choose from {list(rows)}")
    rows = {name: row for name, row in rows.items() if name in (COPY, *chosen)}
    seconds = measure(device, rows, arguments.rounds, arguments.launches)
    parts = report(rows, seconds)
    verdicts = judge(parts, seconds)
    content = {"machine": facts, "arguments": vars(arguments), "seconds": seconds}
    write_json(arguments.output, content | {"verdicts": verdicts})


if __name__ == "__main__":
    main()
