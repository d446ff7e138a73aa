"""Adds the folders of the programs beside the package to the path."""

import sys

from tests.support.programs import FOLDERS

sys.path[:0] = FOLDERS
