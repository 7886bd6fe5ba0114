"""Where things live can be told from the tree alone."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "autotune"
COMMANDS = "cli"
"""whose modules are named after commands, and so after what these work on"""


def test_no_two_modules_have_one_name() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != COMMANDS]
    names = Counter(path.stem for path in modules if path.stem not in ("__init__", "__main__"))
    assert {name for name, count in names.items() if count > 1} == set()


def test_a_process_that_compiles_loads_nothing_that_measures() -> None:
    """There are as many as cores, and each would take three times as long to start."""
    words = "import autotune.workers.worker_process, sys; sys.exit(' '.join({'numpy', 'jinja2'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=False)
    assert done.stderr.split() == []
