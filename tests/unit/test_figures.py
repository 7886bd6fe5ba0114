"""Figures in README.md and docs/*.md: cog blocks compute them from the recorded results, and pages have their output.

`--update-golden` writes the output into the pages.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cogapp import Cog

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PICTURES = sorted((ROOT / "docs").glob("*.svg"))
BLOCK = re.compile(r"^<!-- \[\[\[cog.*?^<!-- \[\[\[end\]\]\] -->", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"^(\|.*)\n\|[-: |]+\n((?:\|.*\n?)+)", re.MULTILINE)
UNIT_IN_HEAD = re.compile(r"\b(?:us|ms|times)\b")
FIGURE = re.compile(r"\d ?(?:us|ms|s|MB)\b|\d ?%")
SECTION = re.compile(r"^(?=## )", re.MULTILINE)
RECORDED = re.compile(r"^Recorded: .*`autotune [^`]+`", re.MULTILINE)
NOT_RECORDED = re.compile(r"[Mm]easured on \d{4}-\d\d-\d\d[^.|]*, not recorded")


def cog(page: Path, *options: str) -> int:
    """Run a page's blocks; 0 if their output is what the page has, or was written into it (`-r`)."""
    code = Cog().main(["cog", "-P", "-p", "from tests.figures import *", *options, str(page)])
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize(
    "page", [*(page for page in PAGES if BLOCK.search(page.read_text())), *PICTURES], ids=lambda page: page.name
)
def test_figures_are_those_of_the_recorded_results(
    page: Path, update_golden: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cog(page, "-r") if update_golden else cog(page, "--check", "--diff")
    assert code == 0, "".join(capsys.readouterr())


def test_the_layer_of_the_readme_takes_its_recorded_time() -> None:
    """It is a layer of ResNet-50, whose table in results.md is computed from the records."""
    rows = (ROOT / "docs" / "results.md").read_text().splitlines()
    cells = next(row for row in rows if row.startswith("| layer1-conv2 | c64 56x56 k64 3x3 pad 1 bias_relu |")).split(
        "|"
    )
    ours_us, cudnn_us = cells[5].strip(), cells[6].strip()
    assert f"takes {ours_us} us, compared to {cudnn_us} us with cuDNN" in (ROOT / "README.md").read_text()


def test_a_changed_figure_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    code = "table('layer | us', [[row.layer, round(row.median_us)] for row in rows('best lenet-k5 --db recorded')])"
    page.write_text(f"<!-- [[[cog\n{code}\n]]] -->\n<!-- [[[end]]] -->\n")
    assert cog(page, "--check") != 0
    assert cog(page, "-r") == 0
    assert cog(page, "--check") == 0
    current = page.read_text()
    assert "| lenet-k5.conv1 | 605 |" in current
    page.write_text(current.replace("605", "604"))
    assert cog(page, "--check") != 0


def measures(head: str, body: str) -> bool:
    """Whether a table's head names a unit, or half of its rows have a time, a size or a share after the first cell."""
    lines = [line.partition("|")[2].partition("|")[2] for line in body.splitlines()]
    return UNIT_IN_HEAD.search(head) is not None or 2 * sum(map(bool, map(FIGURE.search, lines))) >= len(lines)


def unexplained(text: str) -> list[str]:
    """The tables of measurements that no block computes and that the page does not call measured but not recorded.

    The page may do so before its first section, or in the table's own section.
    """
    computed = "".join(BLOCK.findall(text))
    plain = FENCED.sub("", COMMENT.sub("", text))
    first, *others = SECTION.split(plain)
    sections = [first] if NOT_RECORDED.search(first) is None else []
    sections += [section for section in others if sections and NOT_RECORDED.search(section) is None]
    return [
        table[0]
        for section in sections
        for table in TABLE.finditer(section)
        if measures(table[1], table[2]) and not (table[0].strip() in computed and RECORDED.search(plain))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_table_of_measurements_has_a_source(page: Path) -> None:
    assert not unexplained(page.read_text()), (
        "compute the table in a cog block below a line `Recorded: `autotune COMMAND``, "
        "or write `Measured on DATE, not recorded` in its section or before the first (see CONTRIBUTING.md)"
    )


def test_a_table_without_a_source_is_noticed() -> None:
    table = "| layer | ms |\n|---|---|\n| conv1 | 1.5 |\n"
    assert unexplained(table)
    assert not unexplained(f"Measured on 2026-11-23, one H200, not recorded.\n\n{table}")
    recorded = "Recorded: `autotune best lenet-k5 --db recorded`\n\n"
    assert unexplained(recorded + table)
    assert not unexplained(f"{recorded}<!-- [[[cog\n...\n]]] -->\n\n{table}\n<!-- [[[end]]] -->\n")
    measured = "Measured on 2026-11-23, one H200, not recorded.\n\n"
    assert not unexplained(f"# Page\n\n## One\n\n{measured}{table}")
    assert unexplained(f"# Page\n\n## One\n\n{measured}## Two\n\n{table}")
    assert not unexplained("| option | means |\n|---|---|\n| `--db` | a path |\n")
