"""Programs that documents port: the result of each diff, and its output when it trains."""

import pathlib
import re
from typing import NamedTuple

from tests.support.launch import ROOT, run_job

# Files that a program writes are in a folder of the test.
RUN_ALL = """
import os, runpy, sys, zlib

os.chdir(sys.argv[1])
for program in sys.argv[2:]:
    model = runpy.run_path(program)["model"]
    weights = b"".join(weight.numpy().tobytes() for weight in model.trainable_weights)
    print(f"weights: {zlib.crc32(weights)}", flush=True)
"""


class Port(NamedTuple):
    """A program that a diff makes of another."""

    page: str
    name: str
    before: pathlib.Path
    lines: list

    @property
    def text(self):
        """The program with the diff applied.

        Each part between `@@` must fit in exactly one place.
        """
        text = self.before.read_text()
        hunks = [[]]
        for line in self.lines:
            if line == "@@\n":
                hunks.append([])
            else:
                hunks[-1].append(line)
        for hunk in hunks:
            old = "".join(line[1:] for line in hunk if line[0] in " -")
            assert text.count(old) == 1, old
            text = text.replace(old, "".join(line[1:] for line in hunk if line[0] in " +"))
        return text

    @property
    def engine(self):
        return "horovod" if "hvd.init()" in self.text else "tensorflow"


def ports_of(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for diff in re.findall(r"^```diff\n(.+?)^```$", text, re.MULTILINE | re.DOTALL):
        before, after, *lines = diff.splitlines(keepends=True)
        path = ROOT / "examples" / page / before.removeprefix("--- ").strip()
        yield Port(page, after.removeprefix("+++ ").strip(), path, lines)


class Results(NamedTuple):
    """Results of programs on one worker, in their order."""

    held_out: list
    weights: list


def run_all(engine, world_size, programs, folder):
    """Runs programs one after another in one job, because a start takes longest.

    Returns the `Results` of each worker.
    """
    command = ["-c", RUN_ALL, str(folder), *map(str, programs)]
    # Programs this small mostly wait for Horovod to look for work.
    status, _, output = run_job(
        engine, world_size, command, timeout_seconds=400, HOROVOD_CYCLE_TIME="1"
    )
    assert status == 0, output
    by_rank = {}
    line = r"^(?:\[(\d)\])?.*(held-out \w+|weights): (\d+\.?\d*)$"
    for rank, what, number in re.findall(line, output, re.MULTILINE):
        results = by_rank.setdefault(rank, Results([], []))
        (results.weights if what == "weights" else results.held_out).append(float(number))
    assert len(by_rank) == world_size, output
    for results in by_rank.values():
        assert len(results.held_out) == len(results.weights) == len(programs), output
    return list(by_rank.values())
