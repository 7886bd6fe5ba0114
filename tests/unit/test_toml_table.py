"""Tables of files: a mistake is reported with the file, the dotted key and the expected value."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.errors import StudyError, TemplateError
from autotune.toml_table import LARGEST, Table, read_toml

TOML = """
name = "one"
count = 3
share = 0.5
whole = 1.0
[measure]
cache = "cold"
[[layer]]
name = "first"
n = true
[[layer]]
"""


def table(text: str = TOML) -> Table:
    """A study's table."""
    return read_toml(text, StudyError, "my.toml")


def test_values_come_as_what_they_are_asked_for() -> None:
    found = table()
    assert (found.word("name", ""), found.whole("count", 0, least=1), found.fraction("share")) == ("one", 3, 0.5)
    assert (found.word("other", "default"), found.flag("quiet", default=True), found.seconds("time_s")) == (
        ("default", True, None)
    )
    assert found.table("measure", "expected a table").word("cache", "") == "cold"
    assert [each.key for each in found.tables("layer", "expected [[layer]]", label="name")] == [
        "layer[0] (first)",
        "layer[1]",
    ]


WRONG: dict[str, tuple[Callable[[Table], object], str]] = {
    "a key that nobody knows": (
        lambda found: found.allow({"names", "count", "share", "whole", "measure", "layer"}),
        "name: unknown key (did you mean 'names'?); known keys are count, layer, measure, names, share, whole",
    ),
    "a key that is missing": (lambda found: found.require(("name", "device")), "device: missing"),
    "a fraction for a whole number": (
        lambda found: found.whole("whole", 0, least=0),
        "whole: expected a whole number, got 1.0",
    ),
    "too small": (lambda found: found.whole("count", 0, least=4), "count: 3 is too small: expected at least 4"),
    "a number for a word": (lambda found: found.word("count", ""), "count: expected a string, got 3"),
    "more than a share": (
        lambda found: found.fraction("count"),
        "count: expected a fraction between 0 and 1, got 3",
    ),
    "a word for a table": (lambda found: found.table("name", "expected a table [name]"), "name: expected a table"),
    "true for a number, in a list": (
        lambda found: found.tables("layer", "", label="name")[0].whole("n", 0, least=0),
        "layer[0] (first).n: expected a whole number, got True",
    ),
    "a table for a list": (lambda found: found.array("measure"), "measure: expected an array, found {"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_told_with_file_and_key(wrong: str) -> None:
    ask, message = WRONG[wrong]
    with pytest.raises(StudyError) as raised:
        ask(table())
    assert str(raised.value).startswith(f"my.toml: {message}")


def test_a_number_that_sqlite_cannot_keep() -> None:
    with pytest.raises(StudyError, match=f"seed: {LARGEST + 1} is too large: expected at most {LARGEST}"):
        table(f"seed = {LARGEST + 1}").whole("seed", 0, least=0)


def test_a_header_is_told_by_its_line_in_the_file_and_as_a_templates_error() -> None:
    with pytest.raises(TemplateError, match=r"^a\.cu\.j2: header is not TOML: .*at line 12"):
        read_toml("a = 1\nb = = 2", TemplateError, "a.cu.j2", what="header ", first=10)
