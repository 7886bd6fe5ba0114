"""README.md on a package index, and the docs on a site."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from autotune.cli import cli
from hatch_build import ReadmeHook, published

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RELATIVE = re.compile(r"\]\((?!https?:)")
TEXT = """# A
![Trials](docs/report-light.png)
[floor](docs/profile.md#the-floor), [`--json`](docs/json.md), [Optuna](https://optuna.org)
```
autotune x [a](docs/json.md)
```
"""


def test_links_lead_to_the_site() -> None:
    assert published(TEXT, "https://docs.example/1.0") == TEXT.replace(
        "](docs/report-light.png)", "](https://docs.example/1.0/report-light.png)"
    ).replace("](docs/profile.md#the-floor)", "](https://docs.example/1.0/profile.html#the-floor)").replace(
        "[`--json`](docs/json.md)", "[`--json`](https://docs.example/1.0/json.html)"
    )


def test_without_a_site_links_are_words_and_none_is_broken() -> None:
    assert published(TEXT, "") == (
        "# A\n\nfloor, `--json`, [Optuna](https://optuna.org)\n```\nautotune x [a](docs/json.md)\n```\n"
    )
    assert len(RELATIVE.findall(README)) > 20
    assert not RELATIVE.search(published(README, ""))


def test_a_package_says_where_its_docs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, object] = {}
    monkeypatch.setenv("AUTOTUNE_DOCS", "https://docs.example/1.0/")
    ReadmeHook(str(ROOT), {}).update(found)
    assert found["urls"] == {
        "Documentation": "https://docs.example/1.0/",
        "Changelog": "https://docs.example/1.0/CHANGELOG.html",
    }
    monkeypatch.delenv("AUTOTUNE_DOCS")
    ReadmeHook(str(ROOT), {}).update(found)
    assert found["urls"] == {}


def test_the_project_is_described_in_the_same_words_everywhere() -> None:
    description = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]
    sentence = README.split("\n\n")[1]
    assert sentence == f"autotune {description[0].lower()}{description[1:]}."
    assert f"site_description: {description}\n" in (ROOT / "mkdocs.yml").read_text()
    assert "fastest CUDA kernel for each layer of your network" in " ".join((cli.help or "").split())


def test_every_page_of_the_docs_has_its_place_on_the_site() -> None:
    """`mkdocs build --strict` in .ci/run checks the links; this test finds pages that the navigation leaves out."""
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(
        [page.name for page in (ROOT / "docs").glob("*.md")] + ["index.md", "CHANGELOG.md", "CONTRIBUTING.md"]
    )
