"""Tests of a GPU are skipped where there is none, and fail where there is one."""

import pytest

from tests.gpu import skipping


def test_without_a_gpu_a_test_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(skipping, "DEVICE_FILES", tmp_path)
    (tmp_path / "nvidiactl").touch()  # a driver, but no device
    with pytest.raises(pytest.skip.Exception, match="no CuPy"):
        skipping.skip_or_fail("no CuPy")


def test_with_a_gpu_a_test_fails_instead(tmp_path, monkeypatch):
    monkeypatch.setattr(skipping, "DEVICE_FILES", tmp_path)
    (tmp_path / "nvidia0").touch()
    with pytest.raises(pytest.fail.Exception, match="there is a GPU, but no CuPy"):
        skipping.skip_or_fail("no CuPy")
