"""Names that are HTML or script appear in a notebook's frames as text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import autotune
from autotune import dataframes
from tests.html_page import Page
from tests.unit.test_analysis_commands import change

from .test_report import NAME

WORD = f"CAST(x'{NAME.encode().hex()}' AS TEXT)"
PLACES = (
    "UPDATE study_layers SET name = ?",
    "UPDATE devices SET name = ?",
    "UPDATE templates SET family = ? WHERE family = 'tiny'",
    "UPDATE trials SET message = ? WHERE outcome != 'correct'",
    "UPDATE trials SET config = replace(config, '\"rows\"', json_quote(?))",
    "UPDATE trials SET config = replace(config, '\"threads\"', json_quote(?))",
)


@pytest.fixture
def renamed(filled: Path) -> Path:
    """A database whose layer, device, family, messages, parameters and words an attacker has named."""
    for place in PLACES:
        change(filled, place.replace("?", WORD))
    return filled


def test_frames_are_text(renamed: Path) -> None:
    pytest.importorskip("pandas")
    with autotune.Store(renamed) as store:
        shown = dataframes.table(store.trials.list()).to_pandas()._repr_html_()
    page = Page(shown)
    assert not [*page.of("script"), *page.of("img")]
    assert any("<script>alert(1)" in element.text for element in page.of("td"))


def test_a_store_may_be_asked_and_written_to_by_many_threads(filled: Path) -> None:
    def ask(_number: int) -> int:
        store.quarantine.clear()
        return len(store.trials.list())

    for _ in range(5):
        with autotune.Store(filled) as store, ThreadPoolExecutor(12) as threads:
            assert len(set(threads.map(ask, range(24)))) == 1
