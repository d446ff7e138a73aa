"""Tests. This runs first in every process of theirs."""

import os
import pathlib
import sys

# Keras imports it where it is installed, for wrappers that no test needs: a fifth of the time that
# a process takes to start.
sys.modules["sklearn"] = None

# Where processes that these start find sitecustomize.py.
_STARTUP = str(pathlib.Path(__file__).with_name("startup"))
_paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if _STARTUP not in _paths:
    os.environ["PYTHONPATH"] = os.pathsep.join([_STARTUP, *filter(None, _paths)])
