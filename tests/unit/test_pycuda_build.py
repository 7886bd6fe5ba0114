"""`autotune doctor --build-pycuda`: a missing requirement is one line. CI's PyCUDA step tests the build."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from .tiny import Command


def test_without_cudas_wheels_it_says_how_to_get_them(
    autotune: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    done = autotune("doctor", "--build-pycuda")
    assert done.code == 1
    assert "CUDA's wheels are not there; install them with: pip install 'cuda-toolkit[nvcc" in done.err
    assert done.err.count("\n") == 1


def test_a_build_that_fails_leaves_nothing_behind(
    autotune: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidia" / "cu13" / "include").mkdir(parents=True)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    done = autotune("doctor", "--build-pycuda", "--wheels", str(tmp_path / "wheels"))
    assert done.code == 1
    assert "PyCUDA cannot be built: pip ended with status 1" in done.err
    assert not list((tmp_path / "tmp").glob("autotune-*"))
