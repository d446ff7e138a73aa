"""Python imports this when it starts a process of the tests: see tests/__init__.py.

Many of these processes spend most of their time on the start. This file halves that time.
"""

import atexit
import gc
import os
import sys

# Nothing that TensorFlow and Keras make on import is garbage. It need not be searched hundreds of
# times,
gc.set_threshold(100_000, 50, 100)
# nor when a process ends.
atexit.register(gc.freeze)

# Keras imports some packages if they are installed.
for _name in os.environ.get("TF_ONEBIT_TESTS_WITHOUT", "").split():
    sys.modules[_name] = None
