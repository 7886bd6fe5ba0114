"""The store: SQLite through SQLAlchemy, behind records. Nothing outside this package imports either."""

from autotune.store.answers import GENERATIONS, SORTS
from autotune.store.compaction import compact
from autotune.store.dump import dump, load
from autotune.store.foreign import optuna_database
from autotune.store.merging import merge
from autotune.store.records import (
    RETIME_LABELS,
    BestRow,
    DispatchedLayer,
    DispatcherRow,
    Finals,
    FinalsRow,
    Imported,
    KernelProfile,
    LayerRow,
    Leader,
    Merged,
    NoiseFloor,
    ProfileRow,
    QuarantineRow,
    RetimeRow,
    Scope,
    SpaceTrial,
    SpanRow,
    StudyKey,
    StudyRecord,
    StudyRow,
    SubjectScope,
    Suspect,
    TemplateRecord,
    TrialKey,
    TrialRow,
    Verdict,
)
from autotune.store.spaces import import_recording
from autotune.store.sqlite.database import is_sqlite, path_of
from autotune.store.sqlite.query import Cell, QueryResult
from autotune.store.store import Store

__all__ = [
    "GENERATIONS",
    "RETIME_LABELS",
    "SORTS",
    "BestRow",
    "Cell",
    "DispatchedLayer",
    "DispatcherRow",
    "Finals",
    "FinalsRow",
    "Imported",
    "KernelProfile",
    "LayerRow",
    "Leader",
    "Merged",
    "NoiseFloor",
    "ProfileRow",
    "QuarantineRow",
    "QueryResult",
    "RetimeRow",
    "Scope",
    "SpaceTrial",
    "SpanRow",
    "Store",
    "StudyKey",
    "StudyRecord",
    "StudyRow",
    "SubjectScope",
    "Suspect",
    "TemplateRecord",
    "TrialKey",
    "TrialRow",
    "Verdict",
    "compact",
    "dump",
    "import_recording",
    "is_sqlite",
    "load",
    "merge",
    "optuna_database",
    "path_of",
]
