"""The docs as a site, for MkDocs: what lies outside docs/ stands among them, and links lead there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
"""pages from outside docs/, and what the site calls them"""
LINK = re.compile(r"(?<=\]\()(?!https?:)([^)#\s]+)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside, and every file from outside that a page of docs/ names."""
    named = {name for page in (ROOT / "docs").glob("*.md") for name in LINK.findall(page.read_text(encoding="utf-8"))}
    outside = {name.removeprefix("../") for name in named if name.startswith("../")}
    for name in sorted(outside | PAGES.keys()):
        files.append(File.generated(config, PAGES.get(name, name), abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links as they are on the site."""
    return LINK.sub(lambda link: inside(link[1]), markdown)


def inside(path: str) -> str:
    """Where the site has what a page of docs/, or one beside it, names."""
    path = path.removeprefix("../").removeprefix("docs/")
    return PAGES.get(path, path)
