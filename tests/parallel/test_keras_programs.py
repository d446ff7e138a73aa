"""The programs of docs/keras_programs.md: each diff changes little, and what comes of it trains."""

import pytest

from tests.parallel.documented import applied, changed_lines, diffs, run_all
from tests.parallel.launch import ROOT

PAGE = ROOT / "docs" / "keras_programs.md"
BEFORE = ROOT / "examples" / "keras_programs"
PROGRAMS = {path.name for path in BEFORE.glob("*.py")}
# What was learned, of what is held out: at least, or at most.
AT_LEAST = {"text_classification.py": 0.8, "image_classification.py": 0.9}
AT_MOST = {"gan.py": 0.05, "forecast.py": 0.06}


def learned(program, held_out):
    if program in AT_LEAST:
        return held_out >= AT_LEAST[program]
    return held_out <= AT_MOST[program]


def test_the_page_has_three_ports_of_every_program():
    ports = [(before, after.split("_")[-1]) for after, (before, _) in diffs(PAGE).items()]
    ways = ["strategy.py", "horovod.py", "blocks.py"]
    assert sorted(ports) == sorted((name, way) for name in PROGRAMS for way in ways)


@pytest.mark.parametrize("name", diffs(PAGE))
def test_at_most_six_lines_change(name):
    before, lines = diffs(PAGE)[name]
    text = (BEFORE / before).read_text()
    assert 0 < changed_lines(text, applied(text, lines)) <= 6


def test_programs_learn_unchanged(tmp_path):
    names = sorted(PROGRAMS)
    ((held_out, _),) = run_all("alone", 1, [BEFORE / name for name in names], tmp_path)
    assert all(map(learned, names, held_out)), held_out


@pytest.mark.parametrize(
    "engine, ways", [("tensorflow", ["strategy"]), ("horovod", ["horovod", "blocks"])]
)
def test_changed_programs_end_alike_and_have_learned_as_much(engine, ways, tmp_path):
    ports = {n: p for n, p in diffs(PAGE).items() if n.split("_")[-1].removesuffix(".py") in ways}
    for name, (before, lines) in ports.items():
        (tmp_path / name).write_text(applied((BEFORE / before).read_text(), lines))
    first, second = run_all(engine, 2, [tmp_path / name for name in ports], tmp_path)
    assert first[1] == second[1]  # weights
    for held_out in (first[0], second[0]):
        befores = [before for before, _ in ports.values()]
        assert all(map(learned, befores, held_out)), dict(zip(ports, held_out, strict=True))
