"""The examples in the docstrings run and give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import tf_onebit

MODULES = [module.name for module in pkgutil.walk_packages(tf_onebit.__path__, prefix="tf_onebit.")]


@pytest.mark.parametrize("name", ["tf_onebit", *MODULES])
def test_examples_run(name):
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report = []
    for example in finder.find(module, name):
        runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("name", tf_onebit.__all__)
def test_public_names_are_documented(name):
    public = getattr(tf_onebit, name)
    assert isinstance(public, str) or public.__doc__
