"""An open store in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.store import Store

from .builders import ticking


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store's file is."""
    return tmp_path / "autotune.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """An open store, empty but for its tables."""
    with Store.open(path, clock=ticking()) as opened:
        yield opened
