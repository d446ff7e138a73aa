"""Skips of tests of a GPU, which are failures where there is one."""

import pathlib

import pytest

DEVICE_FILES = pathlib.Path("/dev")


def skip_or_fail(reason):
    """Skips a test of a GPU. With a GPU it fails instead: what is missing then is a fault."""
    if any(DEVICE_FILES.glob("nvidia[0-9]*")):
        pytest.fail(f"there is a GPU, but {reason}")
    pytest.skip(reason)
