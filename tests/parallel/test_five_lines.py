"""The programs of docs/five_lines.md: a diff changes little, and what comes of it trains."""

import difflib
import re

import pytest

from tests.parallel.launch import ROOT, run_job

PAGE = ROOT / "docs" / "five_lines.md"
BEFORE = ROOT / "examples" / "five_lines"
STRATEGIES = ["strategy.py", "compressed_multi_worker.py"]
HOROVOD = ["horovod_fit.py", "blocks.py", "compressed_loop.py", "compressed_keras.py"]
# Of ten digits that are guessed: ln 10 = 2.3.
LEARNED = 1.2


def diffs():
    """The diffs of the page: pairs of the program before and list of lines, by the one after."""
    found = {}
    for diff in re.findall(r"^```diff\n(.+?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
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


RUN_ALL = "import runpy, sys\nfor program in sys.argv[1:]:\n    runpy.run_path(program)"


def losses(engine, world_size, programs):
    """Runs programs one after another in one job, because to start takes longest: the losses that
    they print, by rank."""
    command = ["-c", RUN_ALL, *map(str, programs)]
    # Programs so small mostly wait for Horovod to look for work.
    status, _, output = run_job(engine, world_size, command, HOROVOD_CYCLE_TIME="1")
    assert status == 0, output
    by_rank = {}
    for rank, loss in re.findall(
        r"^(?:\[(\d)\])?.*held-out loss: (\d+\.\d+)", output, re.MULTILINE
    ):
        by_rank.setdefault(rank, []).append(float(loss))
    assert all(len(of_rank) == len(programs) for of_rank in by_rank.values()), output
    return list(by_rank.values())


def test_the_page_has_every_program():
    assert set(diffs()) == {*HOROVOD, *STRATEGIES}
    assert {name for name, _ in diffs().values()} == {path.name for path in BEFORE.glob("*.py")}


@pytest.mark.parametrize("name", [*HOROVOD, *STRATEGIES])
def test_at_most_five_lines_change(name):
    before, lines = diffs()[name]
    text = (BEFORE / before).read_text()
    assert 0 < changed_lines(text, applied(text, lines)) <= 5


@pytest.mark.usefixtures("all_packages")
@pytest.mark.parametrize("engine, names", [("tensorflow", STRATEGIES), ("horovod", HOROVOD)])
def test_changed_programs_train_two_workers_alike(engine, names, tmp_path):
    for name in names:
        before, lines = diffs()[name]
        text = applied((BEFORE / before).read_text(), lines)
        # Which one of them would do for all here.
        assert text.count("hvd.init()") == (engine == "horovod")
        (tmp_path / name).write_text(text)
    first, second = losses(engine, 2, [tmp_path / name for name in names])
    assert first == second
    assert max(first) < LEARNED


@pytest.mark.usefixtures("all_packages")
def test_programs_train_unchanged():
    # But for Horovod's with Keras' fit, which needs Keras 2.
    names = ["multi_worker.py", "keras_fit.py", "horovod_loop.py"]
    (alone,) = losses("alone", 1, [BEFORE / name for name in names])
    assert max(alone) < LEARNED
