"""Python imports this when it starts a process of the tests: see tests/__init__.py.

To start is most of what many of them do, and takes half as long so.
"""

import atexit
import gc
import os
import sys

# Nothing of what TensorFlow and Keras make on import is garbage: neither is it looked for there
# hundreds of times,
gc.set_threshold(100_000, 50, 100)
# nor in what a process leaves behind.
atexit.register(gc.freeze)

# Keras imports some packages where they are installed.
for _name in os.environ.get("TF_ONEBIT_TESTS_WITHOUT", "").split():
    sys.modules[_name] = None
