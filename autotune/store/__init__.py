"""The store: SQLite through SQLAlchemy, behind records. Nothing outside this package imports either.

A noun's module holds its table, its records, how one becomes the other, its statements and, as a class whose methods
are transactions, what callers may ask of it. Trials, the largest, have that class in `trial_store`.
"""

from autotune.store.alike_trials import AlikeTrial
from autotune.store.best_rows import BestRow
from autotune.store.compaction import compact
from autotune.store.deliveries import LOST, Delivery, check_delivery
from autotune.store.dispatchers import DispatchedLayer, DispatcherRow, total_timing
from autotune.store.dump import check, dump, quarantine_rows
from autotune.store.end_to_end_timings import EndToEndRow
from autotune.store.finals import BASELINE, Finals, FinalsRow, Verdict
from autotune.store.foreign_databases import optuna_database
from autotune.store.loading import load
from autotune.store.merging import Merged, merge
from autotune.store.noise_floors import NoiseFloor
from autotune.store.profiles import KernelProfile, ProfileRow
from autotune.store.quarantine import QuarantineRow
from autotune.store.retimes import RETIME_LABELS, RetimeRow
from autotune.store.scopes import Scope, SubjectScope
from autotune.store.spaces import Imported, SpaceTrial, import_recording
from autotune.store.sqlite.connections import is_sqlite
from autotune.store.sqlite.database import path_of
from autotune.store.sqlite.error_words import UnreadableRow
from autotune.store.sqlite.hidden_rows import Fault
from autotune.store.sqlite.open_database import is_large
from autotune.store.sqlite.query import Cell, QueryResult, QueryStream
from autotune.store.store import Store
from autotune.store.studies import GENERATIONS, LayerRow, StudyKey, StudyRecord, StudyRow
from autotune.store.templates import TemplateRecord
from autotune.store.top_trials import TopTrial
from autotune.store.trial_store import SORTS, Suspect, TrialKey
from autotune.store.trial_stream import OwnValues, Streamed
from autotune.store.trials import TrialRow

__all__ = [
    "BASELINE",
    "GENERATIONS",
    "LOST",
    "RETIME_LABELS",
    "SORTS",
    "AlikeTrial",
    "BestRow",
    "Cell",
    "Delivery",
    "DispatchedLayer",
    "DispatcherRow",
    "EndToEndRow",
    "Fault",
    "Finals",
    "FinalsRow",
    "Imported",
    "KernelProfile",
    "LayerRow",
    "Merged",
    "NoiseFloor",
    "OwnValues",
    "ProfileRow",
    "QuarantineRow",
    "QueryResult",
    "QueryStream",
    "RetimeRow",
    "Scope",
    "SpaceTrial",
    "Store",
    "Streamed",
    "StudyKey",
    "StudyRecord",
    "StudyRow",
    "SubjectScope",
    "Suspect",
    "TemplateRecord",
    "TopTrial",
    "TrialKey",
    "TrialRow",
    "UnreadableRow",
    "Verdict",
    "check",
    "check_delivery",
    "compact",
    "dump",
    "import_recording",
    "is_large",
    "is_sqlite",
    "load",
    "merge",
    "optuna_database",
    "path_of",
    "quarantine_rows",
    "total_timing",
]
