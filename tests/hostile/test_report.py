"""Names, messages, configs and sources that are HTML, script or control characters: a report shows them as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.escape import printable
from tests.fork_server import ForkServer
from tests.html_page import Page
from tests.long_run import every
from tests.unit.test_analysis_commands import change

from .attack import attacked, refused

NAME = "</title><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;\x1b[2J\u202egnp{{ 7 * 7 }}"
PLACES = (
    "UPDATE study_layers SET name = ?",
    "UPDATE studies SET name = ?, text = ?",
    "UPDATE devices SET name = ?",
    "UPDATE environments SET driver = ?, toolkit = ?, flags = ?",
    "UPDATE trials SET message = ?, reason = ? WHERE outcome != 'correct'",
    "UPDATE trials SET proposed_by = ?",
    "UPDATE templates SET family = ? WHERE family = 'tiny'",
    "UPDATE verdicts SET against = ?",
    "UPDATE paragraphs SET text = ?",
    "UPDATE trials SET config = replace(config, '\"rows\"', json_quote(?))",
)


LONG = "</script>" * 11_200  # of 100,000 characters
ODD = "]]><!--<script\0\u2028{% for i in range(9) %}\x9b31m"


def named(filled: Path, name: str) -> Path:
    """A database in which everything that has a name is named this."""
    word = name.encode()
    for place in PLACES:
        change(filled, place.replace("?", f"CAST(x'{word.hex()}' AS TEXT)"))
    return filled


@pytest.fixture
def renamed(filled: Path) -> Path:
    """A database in which an attacker has named everything."""
    return named(filled, NAME)


def test_names_are_text_and_nothing_else(renamed: Path, fork_server: ForkServer) -> None:
    done = attacked(fork_server, renamed.parent, "report", NAME, "--out", "report.html", within_s=30)
    assert done.code == 0, done.err
    text = (renamed.parent / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert len(list(page.of("script"))) == 1, "the page's own"
    assert not list(page.of("img"))
    assert not [name for element in page.elements for name in element.attributes if name.startswith("on")]
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "49" not in page.elements[0].text.partition("gnp")[2][:20], "no name is a template"
    shown = " ".join(printable(NAME).split())
    for tag in ("title", "h1", "h2", "h3", "dd", "td"):
        assert any(shown in element.text for element in page.of(tag)), tag


@pytest.mark.parametrize("name", every(2, (ODD, LONG)), ids=("odd", "long"))
def test_odd_and_long_names_are_text_too(filled: Path, fork_server: ForkServer, name: str) -> None:
    named(filled, name)
    change(filled, "UPDATE studies SET name = 'small'")
    done = attacked(fork_server, filled.parent, "report", "small", "--out", "report.html", within_s=30)
    assert done.code == 0, done.err
    text = (filled.parent / "report.html").read_text(encoding="utf-8")
    assert len(list(Page(text).of("script"))) == 1
    assert not {"\0", "\u2028", "\x9b"} & {*text}
    assert "<!--<" not in text


def test_a_name_of_100_000_characters_is_a_line_that_can_be_read(filled: Path, fork_server: ForkServer) -> None:
    named(filled, LONG)
    line = refused(attacked(fork_server, filled.parent, "report", "small"), "no study or layer 'small'", " ... ")
    assert len(line) < 5000
