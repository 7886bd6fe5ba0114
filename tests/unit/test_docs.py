"""The docs: their links lead somewhere, and docs/kernels.md names every shipped family with its parameters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.family.template import SUFFIX
from autotune.family.template_files import load_templates

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_somewhere(page: Path) -> None:
    lost = []
    for name, anchor in LINK.findall(prose(page)):
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(f"{name}#{anchor}")
    assert not lost


def test_links_are_found() -> None:
    assert sum(len(LINK.findall(prose(page))) for page in PAGES) > 50


def documented() -> dict[str, list[str]]:
    """Each section of docs/kernels.md that is named after a family, with its line or table of parameters."""
    sections = re.split(r"^## ", (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = {match[1]: section for section in sections if (match := re.match(r"`(\w+)`\n", section))}
    return {
        family: [
            param
            for first in re.findall(r"^(?:Parameters:|\|) (`\w+`(?:,\s`\w+`)*)(?: \||\.)", section, re.MULTILINE)
            for param in re.findall(r"\w+", first)
        ]
        for family, section in named.items()
    }


def test_each_family_has_a_section_with_its_parameters() -> None:
    files = {family.path.name.removesuffix(SUFFIX): family for family in load_templates().values()}  # shared ones once
    shipped = {name: sorted(param.name for param in family.params) for name, family in files.items()}
    assert {name: sorted(params) for name, params in documented().items()} == shipped


PICTURES = [*(ROOT / "docs").glob("*.webp")]


def test_pictures_are_small_and_stand_in_a_page() -> None:
    shown = {name for page in PAGES for name, _ in LINK.findall(prose(page))}
    assert len(PICTURES) == 4
    assert [one.name for one in PICTURES if not {one.name, f"docs/{one.name}"} & shown] == []
    assert {one.name: size for one in PICTURES if (size := one.stat().st_size) > 65_000} == {}
