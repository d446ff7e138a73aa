"""Adds the folders of the programs that documents tell to start to the path."""

import sys

from tests.support.programs import FOLDERS

sys.path[:0] = FOLDERS
