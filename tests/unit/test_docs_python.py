"""Every Python block of the docs and the README runs as it stands, in an empty directory."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = {
    page.name: page
    for page in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md")
    if BLOCK.search(page.read_text(encoding="utf-8"))
}
ELSEWHERE = {"search.md"}
"""run by tests/unit/search/test_sampler.py, which knows the answers"""
ON_A_GPU = {"README.md", "cluster.md", "networks.md", "pytorch.md"}
"""need a CUDA device, torchvision and CuPy, or other hosts: only what they import is looked for"""
EXPORTED = {"export.md"}
"""need a built export of softmax: tests/host/test_export_operations.py calls these functions of one"""
SHOWN = {
    "python.md": (
        "mine.conv1 20/20 direct ",
        "fashion-k7.conv1 exact 948.41599",
        "kernels/mine.conv1.null.cu\n",
        "\n142 604.176",
        "('lenet-k5', 600)",
    )
}
"""words that the blocks of a page print"""


def blocks(page: Path) -> list[ast.Module]:
    """The blocks of a page; a line of an error is the page's."""
    text = page.read_text(encoding="utf-8")
    return [
        ast.increment_lineno(ast.parse(match[1], str(page)), text.count("\n", 0, match.start(1)))
        for match in BLOCK.finditer(text)
    ]


@pytest.mark.parametrize("name", sorted(PAGES.keys() - ELSEWHERE - ON_A_GPU - EXPORTED))
def test_the_blocks_of_a_page_run_one_after_another(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    shown = ""
    for block in blocks(PAGES[name]):
        exec(compile(block, str(PAGES[name]), "exec"), names)
        out = capsys.readouterr().out
        assert out, f"{name}: the block that ends in line {block.body[-1].end_lineno} shows nothing"
        shown += out
    assert [words for words in SHOWN[name] if words not in shown] == []


@pytest.mark.parametrize("name", sorted(ON_A_GPU))
def test_what_a_page_for_a_gpu_imports_of_this_project_is_there(name: str) -> None:
    lost = []
    for block in blocks(PAGES[name]):
        for node in ast.walk(block):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("autotune"):
                lost += [f"{node.module}.{each.name}" for each in node.names if not defined(node.module, each.name)]
    assert not lost


def defined(module: str, name: str) -> bool:
    """Whether a module's text defines or imports a name."""
    folder = ROOT / "autotune" if module.startswith("autotune_runtime") else ROOT
    within = folder / module.replace(".", "/")
    path = within / "__init__.py" if within.is_dir() else within.with_suffix(".py")
    return (
        re.search(rf"^\s*(?:(?:def|class) {name}\b|{name}\b.*=|from .* import .*\b{name}\b)", path.read_text(), re.M)
        is not None
    )


def test_every_page_is_one_of_these() -> None:
    assert {"python.md", *ELSEWHERE, *ON_A_GPU, *EXPORTED} <= PAGES.keys()
