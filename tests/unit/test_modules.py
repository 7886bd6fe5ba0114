"""Where things live can be told from the tree alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "autotune"
COMMANDS = "cli"
"""whose modules are named after commands, and so after what these work on"""


def test_no_two_modules_have_one_name() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != COMMANDS]
    names = Counter(path.stem for path in modules if path.stem not in ("__init__", "__main__"))
    assert {name for name, count in names.items() if count > 1} == set()
