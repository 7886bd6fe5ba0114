"""Where things live can be told from the tree alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "autotune"
OF_USERS = ("cli", "api")
"""whose modules are named after commands and functions, and so after what these work on"""


def test_no_two_modules_have_one_name() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in OF_USERS]
    names = Counter(path.stem for path in modules if not path.stem.startswith("__"))
    assert {name for name, count in names.items() if count > 1} == set()
