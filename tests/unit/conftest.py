"""Folders of the programs beside the package that documents tell to start."""

import sys

from tests.support.programs import FOLDERS

sys.path[:0] = FOLDERS
