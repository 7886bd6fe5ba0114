"""Home and cache folders that are missing, read-only or not folders: tuning works, or says why not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every
from tests.unit.permissions import read_only
from tests.unit.tiny import Command

from .attack import attacked

TUNE = ("tune", "small.toml", "--family-dir", "families", "--trials", "3", "--device", "null")


@pytest.fixture
def homeless(fork_server: ForkServer) -> Iterator[None]:
    """Only HOME determines the cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("XDG_CACHE_HOME", raising=False)
        yield


def test_a_home_that_is_missing_is_made(folder: Path, fork_server: ForkServer, homeless: None) -> None:
    ended = attacked(fork_server, folder, *TUNE, env={"HOME": str(folder / "no" / "home")}, within_s=30)
    assert ended.code == 0, ended.err
    assert (folder / "no" / "home" / ".cache" / "autotune" / "locks").is_dir()


@pytest.mark.parametrize("home", every(2, ("/proc/none", "/dev/null", "")))
def test_a_home_that_no_folder_can_be_made_in(home: str, folder: Path, fork_server: ForkServer, homeless: None) -> None:
    ended = attacked(fork_server, folder, *TUNE, env={"HOME": home}, within_s=30)
    assert sorted(path.name for path in folder.iterdir() if path.name != "autotune.db") == [
        "families",
        "small.toml",
        "temporary",
    ], "nothing is made where nobody asked for it"
    if ended.code:
        lines = [line for line in ended.err.splitlines() if not line.startswith("device ")]
        assert len(lines) == 1, ended.err
        assert lines[0].endswith("; set XDG_CACHE_HOME to a folder that can be")


CACHES: Mapping[str, Mapping[str, str]] = {
    "relative": {"XDG_CACHE_HOME": "cache"},
    "of control characters": {"XDG_CACHE_HOME": "/proc/\x1b[2J"},
    "too long": {"XDG_CACHE_HOME": "/tmp/" + "x" * 300},
}


@pytest.mark.parametrize("environ", every(2, CACHES.values()), ids=CACHES.keys())
def test_a_cache_folder_that_is(environ: Mapping[str, str], folder: Path, fork_server: ForkServer) -> None:
    for words in (TUNE, ("clean",), ("clean", "--cache")):
        ended = attacked(fork_server, folder, *words, env=environ, within_s=30)
        lines = [line for line in ended.err.splitlines() if not line.startswith("device ")]
        assert "\x1b" not in ended.out + ended.err
        if ended.code:
            assert len(lines) == 1, ended.err
            assert "/autotune/" in lines[0], "the folder is named"


def test_a_cache_that_may_not_be_cleared(folder: Path, autotune: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "cache" / "autotune" / "binaries" / "ab").mkdir(parents=True)
    (folder / "cache" / "autotune" / "binaries" / "ab" / "entry").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    binaries = folder / "cache" / "autotune" / "binaries" / "ab"
    with read_only(binaries):
        assert autotune("clean").code == 0
        complaint = autotune("clean", "--cache").complaint
        assert complaint == f"{binaries}/entry: Permission denied"
    assert autotune("clean", "--cache").code == 0
    assert not list(binaries.iterdir())


@pytest.mark.cxx
def test_a_cache_on_another_file_system(folder: Path, fork_server: ForkServer) -> None:
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == os.stat(folder).st_dev:
        pytest.skip("there is no other file system that can be written")
    cache = Path("/dev/shm") / f"autotune-test-{os.getpid()}"
    try:
        words = ("check", "families/tiny.cu.j2", "--configs", "1", "--device", "host")
        ended = attacked(fork_server, folder, *words, env={"XDG_CACHE_HOME": str(cache)}, within_s=60)
        assert ended.code == 0, ended.err
        assert list(cache.glob("autotune/binaries/??/*"))
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def test_no_folder_for_temporary_files(folder: Path, fork_server: ForkServer) -> None:
    ended = fork_server.run(folder, *TUNE, env={"TMPDIR": "/proc/none"})
    assert ended.code == 0 or "TMPDIR" in ended.err, ended.err
