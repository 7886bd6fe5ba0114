"""The tree alone shows where things are."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "autotune"
COMMANDS = "cli"
"""packages whose modules have the names of commands, and so of the records that these read"""


def test_no_two_modules_have_one_name() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != COMMANDS]
    names = Counter(path.stem for path in modules if path.stem not in ("__init__", "__main__"))
    assert {name for name, count in names.items() if count > 1} == set()


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("autotune.workers.worker_process", "{'numpy', 'jinja2'}"),  # one per core, started in a third of the time
        ("autotune.api.built_library", "{'optuna'}"),  # the first call of a network waits for it
        ("autotune.store", "{'numpy'}"),  # of query, dump and load it would be a sixth of the time
    ],
)
def test_a_module_does_not_load_what_it_does_not_need(module: str, unneeded: str) -> None:
    words = f"import {module}, sys; sys.exit(' '.join({unneeded} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=False)
    assert done.stderr.split() == []
