"""The programs of docs/five_lines.md: a diff changes little, and what comes of it trains."""

import pytest

from tests.parallel.documented import applied, changed_lines, diffs, run_all
from tests.parallel.launch import ROOT

PAGE = ROOT / "docs" / "five_lines.md"
BEFORE = ROOT / "examples" / "five_lines"
STRATEGIES = ["strategy.py", "compressed_multi_worker.py"]
HOROVOD = ["horovod_fit.py", "blocks.py", "compressed_loop.py", "compressed_keras.py"]
# Of ten digits that are guessed: ln 10 = 2.3.
LEARNED = 1.2


def test_the_page_has_every_program():
    assert set(diffs(PAGE)) == {*HOROVOD, *STRATEGIES}
    assert {name for name, _ in diffs(PAGE).values()} == {path.name for path in BEFORE.glob("*.py")}


@pytest.mark.parametrize("name", [*HOROVOD, *STRATEGIES])
def test_at_most_five_lines_change(name):
    before, lines = diffs(PAGE)[name]
    text = (BEFORE / before).read_text()
    assert 0 < changed_lines(text, applied(text, lines)) <= 5


@pytest.mark.usefixtures("all_packages")
@pytest.mark.parametrize("engine, names", [("tensorflow", STRATEGIES), ("horovod", HOROVOD)])
def test_changed_programs_train_two_workers_alike(engine, names, tmp_path):
    for name in names:
        before, lines = diffs(PAGE)[name]
        text = applied((BEFORE / before).read_text(), lines)
        # Which one of them would do for all here.
        assert text.count("hvd.init()") == (engine == "horovod")
        (tmp_path / name).write_text(text)
    first, second = run_all(engine, 2, [tmp_path / name for name in names], tmp_path)
    assert first == second
    assert max(first[0]) < LEARNED


@pytest.mark.usefixtures("all_packages")
def test_programs_train_unchanged(tmp_path):
    # But for Horovod's with Keras' fit, which needs Keras 2.
    names = ["multi_worker.py", "keras_fit.py", "horovod_loop.py"]
    ((losses, _),) = run_all("alone", 1, [BEFORE / name for name in names], tmp_path)
    assert max(losses) < LEARNED
