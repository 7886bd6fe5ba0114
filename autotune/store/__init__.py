"""The store: an SQLite database, accessed through SQLAlchemy, that returns records.

No other package imports sqlite3 or SQLAlchemy. `schema` declares the tables and views. Each noun has a module that
contains its records and a class whose methods are transactions; for trials, this class is in `trial_store`. A record's
field is the column of the same name. To add a column to trials, add a field to `trial.Trial`, `Resources` or `Phases`,
measure it, and add it to `cli.trials` and docs/schema.json.
"""

from autotune.store.best import BestRow
from autotune.store.devices import NoiseFloor
from autotune.store.dispatchers import DispatchedLayer, DispatcherRow, total_timing
from autotune.store.dump import dump, load
from autotune.store.finals import BASELINE, Finals, FinalsRow, Verdict
from autotune.store.layers import stored_problem
from autotune.store.merge import Merged, merge
from autotune.store.profiles import ProfileRow
from autotune.store.quarantine import QuarantineRow
from autotune.store.result_rows import SORTS, Side
from autotune.store.retimes import RetimeRow
from autotune.store.run_context import Scope, TargetScope, TemplateRecord
from autotune.store.schema.tables import RETIME_LABELS
from autotune.store.sqlite.database import path_of
from autotune.store.sqlite.open_database import has_results
from autotune.store.sqlite.query import Cell, QueryResult
from autotune.store.store import Store
from autotune.store.studies import GENERATIONS, LayerRow, StudyKey, StudyRow
from autotune.store.trial_store import TrialKey
from autotune.store.trials import EndToEndRow, TrialRow, launched, stored_config
from autotune.store.warm_start_trials import TopTrial

__all__ = [
    "BASELINE",
    "GENERATIONS",
    "RETIME_LABELS",
    "SORTS",
    "BestRow",
    "Cell",
    "DispatchedLayer",
    "DispatcherRow",
    "EndToEndRow",
    "Finals",
    "FinalsRow",
    "LayerRow",
    "Merged",
    "NoiseFloor",
    "ProfileRow",
    "QuarantineRow",
    "QueryResult",
    "RetimeRow",
    "Scope",
    "Side",
    "Store",
    "StudyKey",
    "StudyRow",
    "TargetScope",
    "TemplateRecord",
    "TopTrial",
    "TrialKey",
    "TrialRow",
    "Verdict",
    "dump",
    "has_results",
    "launched",
    "load",
    "merge",
    "path_of",
    "stored_config",
    "stored_problem",
    "total_timing",
]
