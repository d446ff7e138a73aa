"""The common parts of all benchmarks' reports: machine, medians with quartiles, verdicts, JSON."""

import importlib.metadata
import json
import math
import os
import pathlib
import platform
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """Median and quartiles of repeated measurements."""

    lower: float
    median: float
    upper: float

    @classmethod
    def of(cls, samples):
        return cls(*(float(value) for value in np.percentile(samples, [25, 50, 75])))

    def text(self, decimals=1):
        return f"{self.median:.{decimals}f} [{self.lower:.{decimals}f}, {self.upper:.{decimals}f}]"


def machine_facts():
    """Returns facts to judge the figures by: processor, cores, memory and versions."""
    processor = platform.processor() or platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    facts = {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    for package in ("tensorflow-cpu", "tensorflow", "keras", "numpy", "horovod", "tf_onebit"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return facts


def print_machine_facts(facts):
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    if facts["load_average"] > 0.5:
        print(
            f"Other programs use this machine (load average {facts['load_average']}): times, and "
            "ratios between rows that communicate and rows that do not, are not to be trusted."
        )


def print_table(title, header, rows):
    """Prints rows of text under a header.

    The first column is left-aligned, the others right-aligned.
    """
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(f"\n{title}")
    for row in [header, ["-" * width for width in widths], *rows]:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        print("  " + "  ".join(cells).rstrip())


def verdict(claim, measured, limit, at_most=True):
    """Prints and returns whether a claim holds.

    Args:
        claim: what is claimed, in words.
        measured: the measured figure. For the interval of a single seed it is infinite.
        limit: the claimed figure.
        at_most: whether `measured` must be at most `limit`. Otherwise it must be at least that.
    """
    holds = measured <= limit if at_most else measured >= limit
    relation = "<=" if at_most else ">="
    outcome = "holds " if holds else "FAILS "
    if math.isinf(measured):
        holds, outcome = None, "unknown"
    print(f"  {outcome} {claim}: {measured:.4g} (claimed {relation} {limit:g})")
    return {
        "claim": claim,
        "measured": measured,
        "relation": relation,
        "limit": limit,
        "holds": holds if holds is None else bool(holds),
    }


def plain(summary):
    """Converts a dictionary for JSON: spreads become dictionaries."""
    return {k: v._asdict() if isinstance(v, Spread) else v for k, v in summary.items()}


def write_json(path, content):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"\nwritten: {path}")
