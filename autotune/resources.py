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
"""Name to file of each bundled results database; the last one is from an H100, the others are from H200s."""


@cache
def shipped(kind: str) -> Path:
    """Return the folder `templates` or `studies` of this installation."""
    package = Path(__file__).resolve().parent
    installed = package / "shipped" / kind
    return installed if installed.is_dir() else package.parent / kind


def recorded_database(name: str) -> Path:
    """Return the path of a bundled results database."""
    return shipped("studies") / "recorded" / RECORDED[name]


OWN_COST_MODEL = "cost-model.json"
"""Name of the file that `fit-model` writes into the current folder."""


def cost_model_file() -> Path:
    """Return the path of the cost model in the current folder, or else of the bundled one."""
    own = Path(OWN_COST_MODEL)
    return own if own.exists() else shipped("studies") / "recorded" / OWN_COST_MODEL


def results_named(name: str | Path) -> Path:
    """Return the path of a results database, given the name of a bundled one or a path."""
    return recorded_database(str(name)) if str(name) in RECORDED else Path(name)


def shown_results(database: Path) -> str:
    """Return a results database's name for messages: the name of a bundled one, or else the path."""
    return next((name for name in RECORDED if database == recorded_database(name)), str(database))


def check_writable_results(database: Path) -> None:
    """Raise StoreError if the path, in whatever form, leads to a bundled database."""
    for name in RECORDED:
        file = recorded_database(name)
        if os.path.exists(database) and file.exists() and os.path.samefile(database, file):
            raise StoreError(f"{name}: these bundled results are read-only; give another --db")
