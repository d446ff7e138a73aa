"""Settings and fixtures for all tests."""

import os
import signal

# Set before TensorFlow is imported, because its notes would bury what a test prints.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402
import pytest  # noqa: E402

# In the background (`nohup make test &`) a program ignores these signals, and so do the processes
# that it starts. They do not inherit a handler.
for _signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, lambda *_: None)


@pytest.fixture
def rng():
    return np.random.default_rng(1)
