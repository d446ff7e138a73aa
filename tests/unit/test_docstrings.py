"""The examples in the docstrings run and give what they say."""

import doctest
import importlib

import pytest

import tf_onebit
from tests.unit.test_architecture import MODULES, module_name


@pytest.mark.parametrize("name", [module_name(path) for path in MODULES])
def test_examples_run(name):
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner()
    report = []
    for example in doctest.DocTestFinder().find(module, name):
        runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("name", tf_onebit.__all__)
def test_public_names_are_documented(name):
    public = getattr(tf_onebit, name)
    assert isinstance(public, str) or public.__doc__
