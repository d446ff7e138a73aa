"""Where programs beside the package are, which documents tell to start."""

import sys

from tests.support.programs import FOLDERS

sys.path[:0] = FOLDERS
