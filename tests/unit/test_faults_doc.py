"""docs/faults.md lists every planted fault with what must become of it."""

from __future__ import annotations

from pathlib import Path

from tests.injected_faults import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


def test_the_page_has_the_table_of_the_planted_faults() -> None:
    def words(endings: tuple[str, ...]) -> str:
        outcomes = [ending.split("/")[0] for ending in endings]
        told = [ending.removeprefix(f"{before}/") for ending, before in zip(endings, ["", *outcomes], strict=False)]
        return " or ".join(f"`{one}`" for one in told) or "not seen"

    def row(name: str, host: str, cuda: str) -> str:
        return f"| {name.replace('_', ' ')} | {host} |{'' if cuda == host else f' {cuda}'} |"

    rows = [row(name, words(fault.host), words(fault.cuda)) for name, fault in FAULTS.items()]
    told = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert told[1:] == rows, "\n".join(rows)
