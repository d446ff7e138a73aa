"""The code in README and docs runs, and programs' own parsers understand the commands."""

import argparse
import ast
import importlib
import inspect
import json
import os
import re
import runpy
import sys
import types

import keras
import options as speech_options
import pytest
import yaml
from horovod.runner import launch as horovod_launch

import tf_onebit
import tf_onebit.horovod as hvd
from tests.rehearsal.small import PROGRAMS
from tests.support import stand_ins
from tests.support.documents import (
    PATHS,
    blocks,
    commands,
    languages,
    made_by_diffs,
    name_of,
    spans,
)
from tests.support.nightly import nightly
from tests.support.programs import ROOT
from tf_onebit import _cli as cli
from tf_onebit import _launch as launch
from tf_onebit import callbacks, distribute, optimizers, transforms

# Commands that no test runs or parses, as regular expressions, and why.
NOT_RUN = {
    r"python -m pip install tensorflow": "changes the environment that tests run in",
    r"pip install \.": "the same; `make setup` does it, with --editable",
    r"python setup\.py build_ext --inplace": "compiles for minutes; `make setup` runs it",
    r"srun train\.py": "needs a Slurm cluster",
    r"ssh host1$": "needs another host",
    r"docker ": "needs an engine",
    r"kubectl ": "needs a cluster",
    r"perf record": "needs perf, and a benchmark beside it",
}


# The tests that run what documents tell to start, beside tests/rehearsal.
RUN_BY = {
    "benchmarks/gpu.py": "tests/gpu/test_benchmark.py",
    "examples/keras_fit/train.py": "tests/parallel/test_examples.py",
    "examples/speech/recipe.py": "tests/parallel/test_examples.py",
    "examples/speech/train.py": "tests/parallel/test_examples.py",
    "tf-onebit bench": "tests/parallel/test_bench.py",
    "tf-onebit check": "tests/unit/check/test_command.py",
    "tf-onebit doctor": "tests/unit/doctor/test_doctor.py",
    "tf-onebit plan": "tests/parallel/test_plan.py",
    "tools/build_horovod.py": "Makefile",
    "tools/gpu_check.sh": "tests/gpu/test_check.py",
}


@pytest.fixture
def as_it_was(monkeypatch, tmp_path):
    """Restores the state of the process that examples change."""
    policy = keras.config.dtype_policy()
    monkeypatch.chdir(tmp_path)
    yield
    keras.config.set_dtype_policy(policy)


# What takes longest. docs/callbacks.md has the same callbacks.
LONG = "docs/large_minibatches.md"
WITH_PYTHON = [path for path in PATHS if blocks(path, "python")]


@pytest.mark.parametrize(
    "path",
    [
        *(path for path in WITH_PYTHON if name_of(path) != LONG),
        *nightly(*(path for path in WITH_PYTHON if name_of(path) == LONG)),
    ],
    ids=name_of,
)
def test_python_runs(path, as_it_was, monkeypatch):
    if name_of(path) in ("docs/clusters.md", "docs/gpu.md"):
        stand_ins.stand_in_for_a_cluster(monkeypatch)
    if name_of(path) == "docs/model_parallel.md":
        stand_ins.hold_models_on_one_device(monkeypatch)
    names = stand_ins.names(name_of(path))
    for line, source in blocks(path, "python"):
        # Errors name the line of the document.
        exec(compile("\n" * (line - 1) + source, path, "exec"), names)
        if "def train_step" in source:
            names["train_step"](names["x"][:8], names["y"][:8])


def test_blocks_are_of_a_language_that_is_checked():
    known = {"", "bash", "sh", "python", "yaml", "text", "{include}", "{toctree}", "{eval-rst}"}
    known |= {"diff"}  # tests/parallel/test_ported_programs.py applies them
    unknown = {name_of(path): languages(path) - known for path in PATHS}
    assert not any(unknown.values()), unknown


def test_yaml_is_valid():
    for path in PATHS:
        for _, source in blocks(path, "yaml"):
            assert isinstance(yaml.safe_load(source), dict), name_of(path)


PUBLIC = {
    "tf_onebit": tf_onebit,
    "callbacks": callbacks,
    "distribute": distribute,
    "hvd": hvd,
    "optimizers": optimizers,
    "transforms": transforms,
}
# Names of the package itself have precedence: its AdaGrad of the exchange is the transform.
_BY_NAME = {
    name: getattr(module, name)
    for module in (hvd, optimizers, transforms, callbacks, distribute, tf_onebit)
    for name in module.__all__
}


def calls(span):
    try:
        tree = ast.parse(span)
    except SyntaxError:
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def function_of(node):
    """Returns the object of the package that a call in the text calls, or None for others."""
    parts = ast.unparse(node.func).split(".")
    if parts[0] in PUBLIC:
        value = PUBLIC[parts[0]]
        for part in parts[1:]:
            value = getattr(value, part)
        return value
    value = _BY_NAME.get(parts[0])
    for part in parts[1:] if value is not None else ():
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_what_the_text_calls_has_these_arguments(path):
    for span in spans(path):
        for node in calls(span):
            function = function_of(node)
            if not callable(function):
                continue
            parameters = inspect.signature(function).parameters
            if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                continue
            named = {keyword.arg for keyword in node.keywords if keyword.arg}
            assert named <= set(parameters), f"{name_of(path)}: {span}"


COMMANDS = [command for path in PATHS for command in commands(path)]


class _Parsed(BaseException):
    """The end of a program that has parsed its command line.

    Attributes:
        others: list of arguments that it passes on to the training that it starts.
    """

    def __init__(self, others=()):
        self.others = list(others)


def run_until_parsed(script, arguments, only_names=False):
    """Runs a program until it has read its command line. Errors end in SystemExit.

    Args:
        script: path.
        arguments: list of strings.
        only_names: whether it only checks that the options exist.
    """
    parse_known = argparse.ArgumentParser.parse_known_args

    def parse(self, given=None, namespace=None, others_allowed=False):
        given = sys.argv[1:] if given is None else given
        if only_names:
            unknown = {word for word in given if word.startswith("--")}
            unknown -= set(self._option_string_actions)
            if unknown:
                self.error(f"unknown options: {unknown}")
            raise _Parsed
        _, others = parse_known(self, given, namespace)
        if others and not others_allowed:
            self.error(f"unknown arguments: {others}")
        raise _Parsed(others)

    def parse_some(self, given=None, namespace=None):
        parse(self, given, namespace, others_allowed=True)

    # Tests do without this package, because its import takes seconds.
    digits = types.SimpleNamespace(load_digits=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "sklearn", types.SimpleNamespace(datasets=digits))
        patch.setitem(sys.modules, "sklearn.datasets", digits)
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        patch.setattr(argparse.ArgumentParser, "parse_known_args", parse_some)
        patch.setattr(sys, "argv", [str(script), *arguments])
        with pytest.raises(_Parsed) as parsed:
            runpy.run_path(str(script), run_name="__main__")
    if parsed.value.others:
        speech_options.parse_arguments(parsed.value.others)


def check(command, words, monkeypatch):
    """Checks a command, and the command that it starts."""
    program, *arguments = words
    program = program.removeprefix(".venv/bin/")
    if program in ("sudo", "taskset"):
        check(command, arguments[2 * (program == "taskset") :], monkeypatch)
    elif program == "export":
        assert json.loads(arguments[0].removeprefix("TF_CONFIG="))["task"]["index"] == 0
    elif program == "source":
        assert arguments == [".venv/bin/activate"]
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text()
        for target in arguments:
            if not target.startswith("PYTHON="):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    elif program == "horovodrun":
        monkeypatch.setattr(sys, "argv", ["horovodrun", *arguments])
        started = horovod_launch.parse_args().command
        assert started, command
        check(command, started, monkeypatch)
    elif program == "tf-onebit":
        check_own(command, arguments, monkeypatch)
    elif program == "python" and arguments[:2] == ["-m", "pytest"]:
        assert all((ROOT / path).exists() for path in arguments[2:])
    elif program == "python":
        check(command, arguments, monkeypatch)
    elif program.endswith(".py"):
        check_script(command, program, arguments)
    elif program.endswith(".sh"):
        assert program in RUN_BY
        assert os.access(ROOT / program, os.X_OK)
    else:
        pytest.fail(f"No test knows what to do with: {command}")


def check_own(command, arguments, monkeypatch):
    """Checks a `tf-onebit` command, which only parses its arguments."""
    started = []
    monkeypatch.setattr(launch, "launch", lambda _, line, verbose: started.append(line) or 0)
    if command.is_mention:
        run_until_parsed(ROOT / "tf_onebit" / "_cli.py", [*arguments, "--help"], only_names=True)
        return
    if arguments[0] != "launch":
        test = ROOT / RUN_BY[f"tf-onebit {arguments[0]}"]
        assert f'"{arguments[0]}"' in test.read_text()
        run_until_parsed(ROOT / "tf_onebit" / "_cli.py", arguments)
        return
    assert cli.main(arguments) == 0
    check(command, *started, monkeypatch)


def check_script(command, program, arguments):
    folders = [ROOT]
    if command.is_mention:
        folders += [command.path.parent, ROOT / "tf_onebit", ROOT / "examples" / "speech"]
    script = next((f / program for f in folders if (f / program).exists()), ROOT / program)
    if program == "train.py" and not command.is_mention:
        assert not arguments  # this is the reader's own program
        return
    if program in made_by_diffs(command.path):
        return
    assert script.exists(), f"{command}: there is no such program"
    if not command.is_mention:
        check_that_tests_run(program, arguments)
    if arguments == ["--help"] or (command.is_mention and not arguments):
        return
    if command.is_mention and script.name == "train.py":
        run_until_parsed(script, arguments, only_names=True)
    elif script == ROOT / "examples" / "speech" / "train.py":
        speech_options.parse_arguments(arguments)
    else:
        run_until_parsed(script, arguments)


def check_that_tests_run(program, arguments):
    has_command = arguments and not arguments[0].startswith("-")
    name = f"{program} {arguments[0]}" if has_command else program
    if name not in PROGRAMS:
        assert program in (ROOT / RUN_BY[name]).read_text()


def is_not_run(command):
    line = " ".join(word.removeprefix(".venv/bin/") for word in command.words)
    line = line.replace("srun python ", "srun ")
    return [reason for reason in NOT_RUN if re.match(reason, line)]


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS), ids=str)
def test_command_is_understood(command, monkeypatch):
    # Options must be written out, although programs accept abbreviations.
    monkeypatch.setattr(argparse.ArgumentParser, "_get_option_tuples", lambda *_: [])
    if not is_not_run(command):
        check(command, list(command.words), monkeypatch)


def test_every_reason_not_to_run_a_command_is_needed():
    used = {reason for command in COMMANDS for reason in is_not_run(command)}
    assert used == set(NOT_RUN)


@pytest.mark.parametrize("name", ["tf_onebit", *(f"tf_onebit.{m}" for m in tf_onebit._SUBMODULES)])
def test_the_api_has_every_public_name(name):
    text = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    module = importlib.import_module(name)
    public = set(module.__all__) - {*tf_onebit._SUBMODULES, "__version__"}
    entries = re.findall(r"^\.\. auto\w+:: ([\w.]+)$", text, re.MULTILINE)
    # An object may have an entry by a shorter name.
    documented = [object_of(entry) for entry in entries]
    missing = {one for one in public if getattr(module, one) not in documented}
    # Names of Horovod's are in a list.
    assert missing <= set(re.findall(r"`(\w+)`", text))


def object_of(path):
    """Returns the object that an entry of the API documents."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_links_lead_to_files():
    for path in PATHS:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{name_of(path)} links to {target}"
