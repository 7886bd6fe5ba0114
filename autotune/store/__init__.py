"""The store: SQLite through SQLAlchemy, behind records. Nothing outside this package imports either."""

from autotune.store.answers import GENERATIONS, SORTS
from autotune.store.records import (
    BestRow,
    Cell,
    Finals,
    LayerRow,
    NoiseFloor,
    QueryResult,
    Scope,
    StudyKey,
    StudyRecord,
    StudyRow,
    Suspect,
    TemplateRecord,
    TrialKey,
    TrialRow,
    Verdict,
)
from autotune.store.store import Store, compact

__all__ = [
    "GENERATIONS",
    "SORTS",
    "BestRow",
    "Cell",
    "Finals",
    "LayerRow",
    "NoiseFloor",
    "QueryResult",
    "Scope",
    "Store",
    "StudyKey",
    "StudyRecord",
    "StudyRow",
    "Suspect",
    "TemplateRecord",
    "TrialKey",
    "TrialRow",
    "Verdict",
    "compact",
]
