"""README.md as a package index shows it, where links between files lead nowhere: made when a package is built."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

SITE = "AUTOTUNE_DOCS"
"""variable: where the docs of this version lie on the web, as mkdocs.yml makes them"""
LINK = re.compile(r"(?P<picture>!?)\[(?P<words>[^\]]*)\]\((?!https?:)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]+)?\)")
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


class ReadmeHook(MetadataHookInterface):
    """Sets `readme`, and `urls` where the docs have a place on the web: pyproject.toml declares both as dynamic."""

    def update(self, metadata: dict[str, object]) -> None:
        """Called by hatchling as it builds a wheel, an sdist or an editable install."""
        site = os.environ.get(SITE, "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": published(text, site)}
        metadata["urls"] = {"Documentation": f"{site}/", "Changelog": f"{site}/CHANGELOG.html"} if site else {}


def published(text: str, site: str) -> str:
    """Markdown whose links lead to the site; where that is empty a link becomes its words, and a picture nothing."""
    parts = FENCED.split(text)  # every second one is code
    return "".join(part if at % 2 else LINK.sub(lambda link: _link(link, site), part) for at, part in enumerate(parts))


def _link(link: re.Match[str], site: str) -> str:
    if not site:
        return "" if link["picture"] else link["words"]
    page = re.sub(r"\.md$", ".html", link["path"].removeprefix("docs/"))
    return f"{link['picture']}[{link['words']}]({site}/{page}{link['anchor'] or ''})"
