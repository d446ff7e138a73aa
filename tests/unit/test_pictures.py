"""The pictures of the documentation are those that their scripts draw."""

import runpy

import pytest

from tests.support.programs import ROOT

SCRIPTS = [p for p in sorted((ROOT / "docs/pictures").glob("*.py")) if p.stem != "theme"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_picture_is_what_its_script_draws(script, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(script.parent)
    import theme

    committed = theme.FOLDER
    monkeypatch.setattr(theme, "FOLDER", tmp_path)
    runpy.run_path(str(script))
    drawn = sorted(tmp_path.iterdir())
    assert [path.name for path in drawn] == [f"{script.stem}-{t}.svg" for t in sorted(theme.THEMES)]
    for path in drawn:
        assert path.read_bytes() == (committed / path.name).read_bytes(), "call `make pictures`"
