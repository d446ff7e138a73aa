"""`tf-onebit check` prints what to change, and ends with a status that tells the result."""

import pytest

from tests.support.documents import blocks
from tests.support.programs import ROOT, run_python
from tests.unit.check.programs import HOROVOD, STRATEGY
from tf_onebit import _cli as cli

KERAS_FIT = ROOT / "examples" / "five_lines" / "keras_fit.py"


def check(capsys, *arguments):
    """Returns the exit status, the output and the errors of the command."""
    status = cli.main(["check", *map(str, arguments)])
    return status, *capsys.readouterr()


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Writes a program to `train.py`, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return (tmp_path / "train.py").write_text


def test_the_page_shows_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.chdir(KERAS_FIT.parent)
    status, output, _ = check(capsys, "keras_fit.py", "--to", "horovod")
    assert status == 1
    assert output in [text for _, text in blocks(ROOT / "docs" / "porting.md", "text")]


@pytest.mark.parametrize(
    "text, start",
    [
        (STRATEGY, "a strategy. Start it: tf-onebit launch -np 2 -- python train.py"),
        (HOROVOD, "Horovod. Start it: horovodrun -np 2 python train.py"),
    ],
)
def test_a_program_that_needs_no_change_is_started(text, start, program, capsys):
    program(text)
    assert check(capsys, "train.py") == (0, f"Nothing to change was found for {start}\n", "")


def test_a_module_is_started_by_the_program_that_imports_it(program, capsys):
    train = "def train(model, x):\n    model.fit(x, epochs=2)\n"
    program(f"import keras\nimport tf_onebit.horovod as hvd\n{train}")
    _, output, _ = check(capsys, "train.py")
    assert "Start the program that imports it, like this: horovodrun" in output


def test_what_it_cannot_see_is_told(program, capsys, tmp_path):
    (tmp_path / "data.py").write_text("")
    step = "model.train_on_batch(x)"
    program(f"from data import *\n{HOROVOD}model.fit(*pairs, epochs=1)\n{step}\n")
    status, output, _ = check(capsys, "train.py")
    assert status == 0
    assert output.splitlines()[1:] == [
        "Not seen: the modules data; what comes by * from data; the arguments behind * (line 14); "
        "what train_on_batch does (line 15). Go through docs/porting.md for them."
    ]


@pytest.mark.parametrize(
    "text, what",
    [
        ("import keras\nmodel.fit(x, epochs=)\n", "train.py:2: This is not valid Python"),
        ("print('hello')\n", "imports neither Keras nor TensorFlow"),
        ("import keras\nkeras.layers.Dense(2)\n", "has no line that trains"),
        ("from sklearn import svm\nsvm.SVC().fit(x, y)\n", "imports neither Keras nor TensorFlow"),
        ("import keras\nfrom sklearn import svm\nsvm.SVC().fit(x, y)\n", "has no line that trains"),
        ("import keras\0\n", "null bytes"),
    ],
)
def test_another_file_is_refused(text, what, program, capsys):
    program(text)
    status, output, errors = check(capsys, "train.py")
    assert (status, output) == (2, "")
    assert what in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    "path, what", [("none.py", "none.py does not exist"), (".", ". is a directory")]
)
def test_another_path_is_refused(path, what, program, capsys):
    status, _, errors = check(capsys, path)
    assert status == 2
    assert errors == f"{what}. Give the file of a Python program that trains with Keras.\n"


def test_a_text_in_another_coding_is_refused(program, capsys, tmp_path):
    (tmp_path / "train.py").write_bytes(b"import keras\nname = '\xff'\n")
    status, _, errors = check(capsys, "train.py")
    assert status == 2
    assert "train.py" in errors


def test_a_check_imports_no_framework():
    program = (
        "import sys, tf_onebit._cli; tf_onebit._cli.main(['check', sys.argv[1]]); "
        "print({'tensorflow', 'keras', 'numpy', 'horovod'} & set(sys.modules))"
    )
    status, output, errors = run_python(program, KERAS_FIT)
    assert status == 0, errors
    assert output.splitlines()[-1] == "set()"


def test_another_module_of_the_program_may_set_the_seed(program, capsys, tmp_path):
    without_seed = STRATEGY.replace("keras.utils.set_random_seed(1)", "import data")
    program(without_seed)
    assert check(capsys, "train.py")[0] == 1
    (tmp_path / "data.py").write_text("")
    assert check(capsys, "train.py")[0] == 0
