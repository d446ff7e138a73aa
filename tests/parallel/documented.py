"""Programs that documents make by diffs, and runs of them."""

import difflib
import re

from tests.parallel.launch import run_job


def diffs(page):
    """The diffs of a page: pairs of the program before and list of lines, by the one after."""
    found = {}
    for diff in re.findall(r"^```diff\n(.+?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        before, after, *lines = diff.splitlines(keepends=True)
        name = before.removeprefix("--- ").strip()
        found[after.removeprefix("+++ ").strip()] = name, lines
    return found


def applied(text, lines):
    """A text with a diff applied, whose parts `@@` divides, and which must fit in one place."""
    hunks = [[]]
    for line in lines:
        if line == "@@\n":
            hunks.append([])
        else:
            hunks[-1].append(line)
    for hunk in hunks:
        old = "".join(line[1:] for line in hunk if line[0] in " -")
        assert text.count(old) == 1, old
        text = text.replace(old, "".join(line[1:] for line in hunk if line[0] in " +"))
    return text


def changed_lines(before, after):
    changes = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines()).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in changes if kind != "equal")


# Files that the programs write are in the folder of the first one.
_RUN_ALL = """
import os, runpy, sys, zlib
import numpy as np

os.chdir(sys.argv[1])
for program in sys.argv[2:]:
    model = runpy.run_path(program)["model"]
    weights = b"".join(np.asarray(w).tobytes() for w in model.trainable_weights)
    print(f"weights: {zlib.crc32(weights)}", flush=True)
"""


def run_all(engine, world_size, programs, folder):
    """Runs programs one after another in one job, because to start takes longest.

    Args:
        engine, world_size: as of `run_job`.
        programs: list of paths. Each prints a line "held-out ...: " with a number, and has a
            `model`.
        folder: in which the programs run, and may leave files.

    Returns:
        Pair of a list of numbers and a list of checksums of trainable weights for each worker.
    """
    command = ["-c", _RUN_ALL, str(folder), *map(str, programs)]
    # Programs so small mostly wait for Horovod to look for work.
    status, _, output = run_job(engine, world_size, command, HOROVOD_CYCLE_TIME="1")
    assert status == 0, output
    line = r"^(?:\[(\d)\])?.*(held-out .+|weights): (\d+\.?\d*)$"
    by_rank = {}
    for rank, what, number in re.findall(line, output, re.MULTILINE):
        held_out, weights = by_rank.setdefault(rank, ([], []))
        if what == "weights":
            weights.append(int(number))
        else:
            held_out.append(float(number))
    for results in by_rank.values():
        assert [len(of_rank) for of_rank in results] == 2 * [len(programs)], output
    return list(by_rank.values())
