"""docs/faults.md lists every planted fault with what must become of it."""

from __future__ import annotations

from pathlib import Path

from tests.injected_faults import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


def test_the_page_has_the_table_of_the_planted_faults() -> None:
    def words(endings: tuple[str, ...]) -> str:
        return " or ".join(f"`{ending}`" for ending in endings) or "not seen"

    rows = [
        f"| {name.replace('_', ' ')} | {words(fault.host)} | {words(fault.cuda)} |" for name, fault in FAULTS.items()
    ]
    told = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert told[1:] == rows, "\n".join(rows)
