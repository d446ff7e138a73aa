"""Measures compiled ops beside the memory traffic that bounds them.

Ops run as TensorFlow runs them, beside a triad a = b + c and a memset over arrays of the same
length in the same process. Every number of threads has processes of its own. In a process the rows
take turns, and the processes take turns as well, so that all see the same drift of the machine.

The distance between arrays differs in every process. On some processors, gradient and residual
compete for the same places of the first cache if they are a multiple of half a GiB apart. Then any
loop over the two takes up to twice the time.

TensorFlow takes a buffer for every output, and keeps freed ones. So no page faults are measured
here, as the last column shows.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np
from report import Spread, machine_facts, print_machine_facts, print_table, write_json
from yardsticks import make_yardsticks

NUM_VALUES = 22_000 * 2048  # about the papers' DNN


def run_benchmark(script, description, make_ops, judge, threads, output, settings):
    """Parses the command line, measures, and prints and writes the results.

    Args:
        script: path of the benchmark.
        description: text for `--help`.
        make_ops: function of threads, the settings and `spacing` that returns functions by name.
            `spacing` is the number of pieces of memory to take between arrays.
        judge: function that prints and returns verdicts. Its argument maps numbers of threads to
            samples.
        threads: list of the numbers of threads to measure with.
        output: path of the JSON file.
        settings: dictionary of options for `make_ops`: name to default, int.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, nargs="+", default=threads)
    for name, default in settings.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=5, help="processes per number of threads")
    parser.add_argument("--repeats", type=int, default=7, help="measurements per process")
    parser.add_argument("--output", default=output)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(_measure_here(make_ops, **json.loads(arguments.measure))))
        return
    chosen = {name: getattr(arguments, name) for name in settings}
    facts = machine_facts()
    print_machine_facts(facts)
    measured = {number: {} for number in arguments.threads}
    for spacing in range(arguments.rounds):
        for number in arguments.threads:
            rows = _measure(script, number, arguments.repeats, {**chosen, "spacing": spacing})
            for name, sample in rows.items():
                pooled = measured[number].setdefault(name, {key: [] for key in sample})
                for key, values in sample.items():
                    pooled[key] += values
    for number, samples in measured.items():
        report(number, samples)
    content = {"machine": facts, "arguments": vars(arguments), "threads": measured}
    write_json(arguments.output, content | {"verdicts": judge(measured)})


def _measure(script, threads, repeats, settings):
    """Runs the benchmark in a process with that many threads. Returns its rows."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "NUMPY_MADVISE_HUGEPAGE": "0"}
    setting = json.dumps({"threads": threads, "repeats": repeats, "settings": settings})
    process = subprocess.run(
        [sys.executable, script, "--measure", setting],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


def _measure_here(make_ops, threads, repeats, settings):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    rows = make_yardsticks(NUM_VALUES, threads) | make_ops(threads, **settings)
    samples = {name: {"seconds": [], "page_faults": []} for name in rows}
    for name in rows:
        rows[name]()
    for _ in range(repeats):
        for name, run in rows.items():
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            start = time.perf_counter()
            run()
            samples[name]["seconds"].append(time.perf_counter() - start)
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
            samples[name]["page_faults"].append(faults)
    return samples


def paired_ratio(samples, numerator, denominator):
    pairs = zip(samples[numerator]["seconds"], samples[denominator]["seconds"], strict=True)
    return Spread.of([a / b for a, b in pairs])


def report(threads, samples):
    table = []
    for name, sample in samples.items():
        milliseconds = Spread.of([1e3 * seconds for seconds in sample["seconds"]])
        table.append(
            [
                name,
                milliseconds.text(),
                paired_ratio(samples, name, "triad").text(2),
                paired_ratio(samples, name, "memset").text(2),
                f"{np.median(sample['page_faults']):.0f}",
            ]
        )
    title = f"threads: {threads}; medians [quartiles]"
    print_table(title, ["", "ms", "x triad", "x memset", "page faults"], table)
