"""docs/faults.md lists every planted fault and defect with its expected result."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.injected_faults import FAULTS
from tests.planted_defects import DEFECTS, Defect

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


def test_the_page_has_the_table_of_the_planted_faults() -> None:
    def words(endings: tuple[str, ...]) -> str:
        outcomes = [ending.split("/")[0] for ending in endings]
        told = [ending.removeprefix(f"{before}/") for ending, before in zip(endings, ["", *outcomes], strict=False)]
        return " or ".join(f"`{one}`" for one in told) or "not seen"

    def row(name: str, host: str, cuda: str) -> str:
        return f"| {name.replace('_', ' ')} | {host} |{'' if cuda == host else f' {cuda}'} |"

    rows = [row(name, words(fault.host), words(fault.cuda)) for name, fault in FAULTS.items()]
    assert table("| fault |") == rows, "\n".join(rows)


def test_the_page_has_the_table_of_the_planted_defects() -> None:
    def row(defect: Defect) -> str:
        commands = "`tune`, `check`, `export`" if defect.host else "`check`, `export`"
        return f"| {defect.number} | {defect.kernel} | {defect.name} | {commands} |"

    rows = [row(defect) for defect in DEFECTS.values()]
    assert table("| class |") == rows, "\n".join(rows)


def table(head: str) -> list[str]:
    """The rows of the table whose head begins with this text."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.startswith(head))
    return list(itertools.takewhile(lambda line: line.startswith("| "), lines[first + 2 :]))
