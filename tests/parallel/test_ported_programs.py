"""The programs that docs/five_lines.md and docs/keras_programs.md port.

A diff changes little, and the resulting program trains on two workers.
"""

import difflib

import pytest

from tests.support.launch import ROOT
from tests.support.nightly import nightly
from tests.support.ports import ports_of, run_all

# The most lines that a diff may change, by the page and the folder of its programs.
MOST_LINES = {"five_lines": 5, "keras_programs": 6}
# The held-out result that a program must print: at most this, for a loss or a distance. If all ten
# digits are guessed, the loss is ln 10 = 2.3.
AT_MOST = {"gan": 0.05, "forecast": 0.06}
AT_MOST |= dict.fromkeys(["keras_fit", "multi_worker", "horovod_loop", "horovod_keras"], 1.2)
# At least this, for an accuracy.
AT_LEAST = {"text_classification": 0.8, "image_classification": 0.9}
# These statistics are of each worker's own batches, and differ.
OWN_STATISTICS = "images_horovod.py"
NEEDS_KERAS_2 = "horovod_keras.py"


PORTS = [port for page in MOST_LINES for port in ports_of(page)]
PROGRAMS = [path for page in MOST_LINES for path in sorted((ROOT / "examples" / page).glob("*.py"))]


def has_learned(program, held_out):
    name = program.stem
    return held_out >= AT_LEAST[name] if name in AT_LEAST else held_out <= AT_MOST[name]


def test_every_program_is_ported():
    assert {port.before for port in PORTS} == set(PROGRAMS)
    ways = [(p.before.stem, p.name.split("_")[-1]) for p in PORTS if p.page == "keras_programs"]
    all_ways = ["strategy.py", "horovod.py", "blocks.py"]
    programs = {before for before, _ in ways}
    assert sorted(ways) == sorted((before, way) for before in programs for way in all_ways)


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.name)
def test_few_lines_change(port):
    before, after = port.before.read_text().splitlines(), port.text.splitlines()
    changes = difflib.SequenceMatcher(None, before, after).get_opcodes()
    changed = sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in changes if kind != "equal")
    assert 0 < changed <= MOST_LINES[port.page]


# One of each way: a strategy, Horovod, and training in blocks.
USUAL = {
    "tensorflow": ["strategy.py"],
    "horovod": ["horovod_fit.py", "blocks.py"],
}


@pytest.mark.usefixtures("all_packages")
@pytest.mark.parametrize("usual", [True, *nightly(False)], ids=["usual", "others"])
@pytest.mark.parametrize("engine", USUAL)
def test_two_workers_learn_as_much_and_end_alike(engine, usual, tmp_path):
    of_engine = [port for port in PORTS if port.engine == engine]
    ports = [port for port in of_engine if (port.name in USUAL[engine]) == usual]
    assert ports
    for port in ports:
        (tmp_path / port.name).write_text(port.text)
    first, second = run_all(engine, 2, [tmp_path / port.name for port in ports], tmp_path)
    assert first.weights == second.weights
    for port, *held_out in zip(ports, first.held_out, second.held_out, strict=True):
        assert all(has_learned(port.before, value) for value in held_out), (port.name, held_out)
        assert held_out[0] == held_out[1] or port.name == OWN_STATISTICS


@pytest.mark.nightly
@pytest.mark.usefixtures("all_packages")
def test_programs_learn_unchanged(tmp_path):
    programs = [path for path in PROGRAMS if path.name != NEEDS_KERAS_2]
    # TensorFlow's own strategy must be made before anything else.
    programs.sort(key=lambda path: path.name != "multi_worker.py")
    (alone,) = run_all("alone", 1, programs, tmp_path)
    for program, held_out in zip(programs, alone.held_out, strict=True):
        assert has_learned(program, held_out), (program.name, held_out)
