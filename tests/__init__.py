"""The tests. Python runs this file first in each of their processes."""

import os
import pathlib
import sys

# Keras imports it if it is installed, for wrappers that no test needs. That takes a fifth of the
# start of a process.
sys.modules["sklearn"] = None

# Processes that these start find sitecustomize.py there.
_STARTUP = str(pathlib.Path(__file__).with_name("startup"))
_paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if _STARTUP not in _paths:
    os.environ["PYTHONPATH"] = os.pathsep.join([_STARTUP, *filter(None, _paths)])
