"""The store: a database with every trial of every study on every device."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import TracebackType

from autotune.store.best import BestStore
from autotune.store.devices import DeviceStore, NoiseFloorStore, RateStore, Runs
from autotune.store.dispatchers import DispatcherStore
from autotune.store.finals import FinalsStore
from autotune.store.profiles import ProfileStore
from autotune.store.quarantine import QuarantineStore
from autotune.store.result_rows import ResultStore
from autotune.store.retimes import RetimeStore
from autotune.store.run_context import ScopeStore, TemplateStore
from autotune.store.sources import SourceStore
from autotune.store.sqlite.connections import check_whole, connect_for_reading, translate_errors
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Clock, utc_now
from autotune.store.sqlite.open_database import open_for_reading, open_for_writing
from autotune.store.sqlite.query import QueryResult, run_query
from autotune.store.studies import StudyStore
from autotune.store.trial_store import KnownStore, TrialStore
from autotune.store.trials import EndToEndStore
from autotune.store.warm_start_trials import TopTrialStore


class Store:
    """An open results database. Each noun, such as `trials` or `studies`, is an attribute.

    Each method of these attributes is one transaction, and raises every failure as a StoreError with a one-line
    message. The argument `what` is a study, `study.layer` or the bare name of a layer; None selects everything.
    """

    def __init__(
        self, url: str | Path, *, create: bool = True, timeout_s: float = LOCK_TIMEOUT_S, clock: Clock = utc_now
    ) -> None:
        """Open the results database at a path.

        With `create`, the database is opened for writing: the file is created if it doesn't exist, and migrated if its
        schema is older. Otherwise, it is opened only for reading: the file and its folder may be read-only, and no
        files are left next to it.
        """
        opened = open_for_writing if create else open_for_reading
        self._database = database = opened(url, timeout_s=timeout_s, clock=clock)
        runs = Runs(database)
        self.studies = StudyStore(database)
        self.scopes = ScopeStore(database, runs)
        self.trials = TrialStore(database)
        self.results = ResultStore(database)
        self.known = KnownStore(database)
        self.top_trials = TopTrialStore(database)
        self.finals = FinalsStore(database)
        self.best = BestStore(database)
        self.retimes = RetimeStore(database, runs)
        self.profiles = ProfileStore(database, runs)
        self.end_to_end = EndToEndStore(database)
        self.dispatchers = DispatcherStore(database)
        self.sources = SourceStore(database)
        self.templates = TemplateStore(database)
        self.quarantine = QuarantineStore(database)
        self.devices = DeviceStore(database)
        self.rates = RateStore(database)
        self.noise_floors = NoiseFloorStore(database)

    @property
    def path(self) -> Path:
        """The path of the database file."""
        return self._database.path

    @property
    def shown(self) -> str:
        """How messages refer to the database: by path, or by the name of bundled results."""
        return self._database.shown

    def check(self) -> None:
        """Raise StoreError if the file is damaged or contains a row that breaks a constraint."""
        with (
            translate_errors(self.path, self._database.timeout_s),
            closing(connect_for_reading(self._database.file, self._database.timeout_s)) as raw,
        ):
            check_whole(raw, self.path)

    def query(self, sql: str, *, within_s: float | None = None) -> QueryResult:
        """Run the user's SELECT, which can't write, and return the result.

        Raises StoreError if the statement takes longer than `within_s` seconds.
        """
        return run_query(self._database, sql, within_s=within_s)

    def close(self) -> None:
        """Close the database file."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
