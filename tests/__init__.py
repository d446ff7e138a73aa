"""Tests. This runs first in every process of theirs."""

import os
import sys

# Keras imports these where they are installed: half of the time that a process takes to start.
# Scikit-learn is for wrappers that no test needs,
sys.modules["sklearn"] = None
# and Matplotlib for plots that no job makes.
if "TF_ONEBIT_TEST_JOB" in os.environ:
    sys.modules["matplotlib"] = None
