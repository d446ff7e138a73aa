"""The notebook of the examples runs, and its cells assert their conclusions."""

import os

import nbclient
import nbformat
import pytest

from tests.support.launch import ROOT

NOTEBOOK = ROOT / "examples" / "error_feedback.ipynb"
# The size up to which a page of a code host shows a notebook.
MOST_BYTES = 300_000


@pytest.mark.nightly
@pytest.mark.usefixtures("all_packages")
def test_error_feedback_does_what_the_notebook_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # and no settings of the user's
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kept = [figures(cell) for cell in code]
    nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    # The stored notebook has as many figures as a run makes.
    assert [figures(cell) for cell in code] == kept
    assert sum(kept) == 4
    assert NOTEBOOK.stat().st_size < MOST_BYTES


def figures(cell):
    return sum("image/png" in output.get("data", {}) for output in cell.outputs)
