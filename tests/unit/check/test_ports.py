"""`check` answers for the committed ports: it finds what they change, and nothing in them."""

import difflib
import re

import pytest

from tests.support.documents import blocks
from tests.support.ports import ports_of
from tests.support.programs import ROOT
from tests.unit.check.programs import found_in
from tf_onebit._check.report import findings
from tf_onebit._check.source import NotAProgram, read

PORTS = [port for page in ("five_lines", "keras_programs") for port in ports_of(page)]
# The item of docs/porting.md that new lines belong to, by some of their text.
ITEMS = {
    r"^hvd\.init\(\)": "Horovod 1",
    r"^(from|import) .*tf_onebit": "1",
    r"MultiWorkerMirroredStrategy": "strategy 1",
    r"hvd\.rank\(\)": "Horovod 5",
    r"BroadcastGlobalVariablesCallback": "Horovod 7",
    r"BlockMomentum": "blocks 4",
    r"^exchange = ": "Horovod 11",
}


def way_of(port):
    if port.engine == "tensorflow":
        return "strategy"
    return "blocks" if "BlockMomentum" in port.text else "horovod"


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.name)
def test_a_port_needs_no_change(port):
    assert found_in(port.text) == []
    assert found_in(port.text, way_of(port)) == []


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.name)
def test_what_a_port_changes_is_found(port):
    before = port.before.read_text()
    found = found_in(before, way_of(port))
    lines = {line for finding in found for line in (finding.line, *finding.also)}
    old, new = before.splitlines(), port.text.splitlines()
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if kind in ("replace", "delete"):
            assert set(range(i1 + 1, i2 + 1)) <= lines, old[i1:i2]
        for line in new[j1:j2] if kind == "insert" else ():
            items = [item for text, item in ITEMS.items() if re.search(text, line.strip())]
            is_found = [any(item in finding.item for finding in found) for item in items]
            assert all(is_found), line
            assert items or not line.strip() or "with strategy.scope()" in line, line


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.name)
def test_lines_to_write_are_python(port):
    for finding in found_in(port.before.read_text(), way_of(port)):
        for line in finding.write:
            text = line.strip().rstrip(",")
            is_argument = re.match(r"\w+=[^=]", text)
            if not text.startswith("with "):
                compile(f"call({text})" if is_argument else text, "line", "exec")


def training_examples():
    """Yields the examples that train, and are no originals of a port."""
    for path in sorted((ROOT / "examples").rglob("*.py")):
        try:
            program = read(str(path))
        except NotAProgram:
            continue
        if path not in {port.before for port in PORTS}:
            yield f"{path.parent.name}/{path.name}", program


EXAMPLES = dict(training_examples())


def test_the_examples_that_train_are_these():
    assert set(EXAMPLES) == {"keras_fit/train.py", "speech/start.py", "speech/train.py"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_needs_no_change(name):
    assert findings(EXAMPLES[name]) == []


@pytest.mark.parametrize("to", ["strategy", "horovod", "blocks"])
def test_an_example_that_trains_in_each_way_needs_no_change(to):
    assert findings(EXAMPLES["keras_fit/train.py"], to) == []


@pytest.mark.parametrize("place", range(3))
def test_a_program_of_the_readme_needs_no_change(place):
    programs = [text for _, text in blocks(ROOT / "README.md", "python")]
    assert len(programs) == 3
    assert found_in(programs[place]) == []
