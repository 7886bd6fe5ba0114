"""Bundled files, from the wheel or a checkout: templates, studies, and results from two kinds of GPU."""

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
"""Maps each bundled results database's name to its file. The last one is from an H100, all others from H200s."""


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
    """Return the path of a results database, given as a path or as the name of a bundled one."""
    return recorded_database(str(name)) if str(name) in RECORDED else Path(name)


def shown_results(database: Path) -> str:
    """Return how messages refer to a results database: by name if it is bundled, or else by path."""
    return next((name for name in RECORDED if database == recorded_database(name)), str(database))


def check_writable_results(database: Path) -> None:
    """Raise StoreError if the path leads to a bundled database, however it is written."""
    for name in RECORDED:
        file = recorded_database(name)
        if os.path.exists(database) and file.exists() and os.path.samefile(database, file):
            raise StoreError(f"{name}: these bundled results are read-only; give another --db")
