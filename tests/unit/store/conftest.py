"""An open store in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.store import Store
from tests.benchmarks.smaller_database import compact

from .builders import ticking, written


@pytest.fixture(scope="session")
def blank(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a database without rows; copying it is faster than creating it."""
    folder = tmp_path_factory.mktemp("blank")
    written(folder / "made.db")
    compact(folder / "made.db", folder / "blank.db")
    return (folder / "blank.db").read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the store's file."""
    return tmp_path / "autotune.db"


@pytest.fixture
def store(path: Path, blank: bytes) -> Iterator[Store]:
    """An open store, empty but for its tables."""
    path.write_bytes(blank)
    with Store(path, clock=ticking()) as opened:
        yield opened
