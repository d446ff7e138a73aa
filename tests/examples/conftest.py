"""Folders of the programs beside the package."""

import sys

from tests.support.programs import FOLDERS

sys.path[:0] = FOLDERS
