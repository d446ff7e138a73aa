"""Tests. This runs first in every process of theirs."""

import sys

# Keras imports scikit-learn where it is installed, for wrappers that no test needs: a quarter of
# the time that a process takes to start.
sys.modules["sklearn"] = None
