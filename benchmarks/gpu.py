"""Measures the kernels on a GPU beside a copy of memory, and beside CuPy and PyTorch.

    python benchmarks/gpu.py

Needs a GPU, nvcc, CuPy and NumPy, but no TensorFlow: the kernels are called through their C
interface, as in tests/gpu. CuPy computes the same exchange, and PyTorch too if it is installed. The
model is the papers' DNN with 45M weights in columns of 512, for eight workers. Rows take turns, and
every figure is a ratio within a turn. It compares the bytes that a kernel must read and write per
second with a copy from device to device. `--device emulated` tries the program out on the CPU,
whose times mean nothing. Modules named `gpu_*_rows.py` define the rows of the kernels.
"""

import argparse
import importlib.util
import pathlib
import sys

import gpu_peers
import numpy as np
from gpu_row import COLUMN_SIZE, EXCHANGE, WORLD_SIZE, Row
from report import Spread, machine_facts, print_machine_facts, print_table, verdict, write_json

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from gpu_one_bit_rows import decode_sum_rows, one_bit_rows  # noqa: E402
from gpu_threshold_rows import threshold_rows  # noqa: E402
from gpu_update_rows import block_rows, moment_rows  # noqa: E402

from tests.gpu.devices import Cuda, Emulated  # noqa: E402

DEVICES = {device.name: device for device in (Cuda, Emulated)}
WIDTHS = (429, *[2048] * 7, 9304)

# The share of a copy's bandwidth that each row must reach.
LIMITS = {
    "1-bit encode": 0.85,
    "1-bit decode and sum of 8": 0.85,
    "1-bit decode": 0.85,
    "threshold encode": 0.80,
    "block update": 0.90,
}
COPY = "copy"
OF_TWO_BITS = (
    *("1-bit decode", "1-bit decode, scaled", "1-bit decode and add"),
    "1-bit aggregate of 8",
)
PEERS = ("CuPy", "PyTorch", "PyTorch, compiled")
EXCHANGE_SECONDS, EXCHANGE_SPEEDUP = 0.4e-3, 5.0


def copy_row(device, size, rng):
    source = device.array(rng.standard_normal(size, np.float32))
    target = device.array(np.zeros(size, np.float32))
    xp = device.array_module()
    return Row(lambda: xp.copyto(target, source), 2 * source.nbytes)


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
