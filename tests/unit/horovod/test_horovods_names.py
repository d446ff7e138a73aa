"""The names of Horovod's modules, as docs/horovodrun.md lists them."""

import importlib
import inspect
import re

import horovod.tensorflow
import pytest

import tf_onebit.horovod as hvd
from tests.support.programs import ROOT
from tf_onebit.horovod.elsewhere import INSTEAD

MODULES = [
    f"horovod.{module}"
    for part in ("tensorflow.keras", "keras")
    for module in (part, f"{part}.callbacks", f"{part}.elastic")
] + ["horovod.tensorflow", "horovod.tensorflow.elastic"]


def public_names():
    """Returns all names that programs may use, without modules except two."""
    names = set()
    for module in map(importlib.import_module, MODULES):
        for name in dir(module):
            is_listed = name in ("callbacks", "elastic")
            if not name.startswith("_") and (
                is_listed or not inspect.ismodule(module.__dict__[name])
            ):
                names.add(name)
    return names


def rows():
    """Returns the rows of the table: list of (names, their place here)."""
    text = (ROOT / "docs" / "horovodrun.md").read_text()
    table = text.split("| Horovod's | here |\n|---|---|\n")[1].split("\n\n")[0]
    cells = [line.strip("|").split("|", 1) for line in table.splitlines()]
    return [(re.findall(r"`(\w+)`", names), here.strip()) for names, here in cells]


def names_that_are(kind):
    return [name for names, here in rows() if re.match(rf"{kind}\b", here) for name in names]


def test_the_table_has_every_name_once():
    listed = [name for names, _ in rows() for name in names]
    assert sorted(listed) == sorted(public_names())
    kinds = [name for kind in ("same", "ours", "none") for name in names_that_are(kind)]
    assert sorted(kinds) == sorted(listed)


@pytest.mark.parametrize("name", names_that_are("same"))
def test_what_is_the_same_is_horovods(name):
    assert getattr(hvd, name) is getattr(horovod.tensorflow, name)


@pytest.mark.parametrize("name", names_that_are("ours"))
def test_what_is_ours_is_another(name):
    assert name in hvd.__all__
    assert getattr(hvd, name) is not getattr(horovod.tensorflow, name, None)


@pytest.mark.parametrize("name", INSTEAD)
def test_what_there_is_not_says_what_to_write(name):
    assert name in names_that_are("none")
    with pytest.raises(AttributeError, match=re.escape(INSTEAD[name])):
        getattr(hvd, name)


def test_other_names_are_no_attributes():
    assert not hasattr(hvd, "anything_else")
    names = sorted(set(public_names()) & set(hvd.callbacks.__all__))
    assert names == sorted(hvd.callbacks.__all__)
    assert all(getattr(hvd.callbacks, name) is getattr(hvd, name) for name in names)
