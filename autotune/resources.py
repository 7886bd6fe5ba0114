"""Bundled files, in the wheel or in a checkout: templates, studies, and results of two kinds of GPU."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from autotune.errors import StoreError

RECORDED = {
    "recorded": "h200.db",
    "recorded-networks": "networks.db",
    "recorded-convolutions": "convolutions.db",
    "recorded-h100": "h100.db",
}
"""names and files of the bundled results (H200s, and the last of an H100)"""


@cache
def shipped(kind: str) -> Path:
    """The folder `templates` or `studies` of this installation."""
    package = Path(__file__).resolve().parent
    installed = package / "shipped" / kind
    return installed if installed.is_dir() else package.parent / kind


def recorded_database(name: str) -> Path:
    """The path of bundled results."""
    return shipped("studies") / "recorded" / RECORDED[name]


OWN_COST_MODEL = "cost-model.json"
"""In the current folder: the cost model that `fit-model` wrote there."""


def cost_model_file() -> Path:
    """The cost model in the current folder, else the bundled one."""
    own = Path(OWN_COST_MODEL)
    return own if own.exists() else shipped("studies") / "recorded" / OWN_COST_MODEL


def results_named(name: str | Path) -> Path:
    """A results database: a bundled one by its name, else a path."""
    return recorded_database(str(name)) if str(name) in RECORDED else Path(name)


def shown_results(database: Path) -> str:
    """The name of a results database in messages: a bundled one's name, or else the path."""
    return next((name for name in RECORDED if database == recorded_database(name)), str(database))


def check_writable_results(database: Path) -> None:
    """Raise StoreError for a bundled database under any path."""
    for name in RECORDED:
        file = recorded_database(name)
        if os.path.exists(database) and file.exists() and os.path.samefile(database, file):
            raise StoreError(f"{name}: these bundled results are read-only; give another --db")
