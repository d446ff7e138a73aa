"""Where programs beside the package are."""

import sys

from tests.support.programs import FOLDERS

sys.path[:0] = FOLDERS
