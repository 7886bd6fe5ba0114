"""An agent's journals: each lease has a results database of its own, kept until the coordinator has all of it.

The line runs on it as it does on any results database. Nothing else is needed to resume: what was not acknowledged is
delivered by the next process of the same name.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path, PurePath

from autotune import __version__
from autotune.cluster.messages import ID_BYTES, Collected, Lease
from autotune.errors import StoreError, StoreWarning, StudyError, not_written
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.printable import one_line
from autotune.reading import read_bytes
from autotune.store import Scope, Store, StudyRecord, TemplateRecord
from autotune.store.sqlite.database import NOT_UNDERSTOOD
from autotune.temporary import temporary_folder
from autotune.tuning.trial_log import Progress
from autotune.tuning.tune import policy
from autotune.writing import open_lock

_LEASES = f"{2 * ID_BYTES * '[0-9a-f]'}/"  # folders that are called as one; no others are looked at
NEVER = 1 << 63  # later than any state
_MOST_BYTES = 1 << 26  # of a lease: the study's text, and the user's families
_ADVICE = "set XDG_CACHE_HOME to a folder that can be"


class Families:
    """The families that leases bring, loaded once: that takes half a second."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[tuple[str, str], ...], Mapping[str, KernelTemplate]] = {}

    def of(self, lease: Lease) -> Mapping[str, KernelTemplate]:
        """The families as the coordinator has them. Raises StudyError where this agent's shipped ones differ."""
        files = tuple(sorted(lease.files.items()))
        if files not in self._loaded:
            with temporary_folder() as folder:
                for name, text in files:
                    path = Path(folder, *(Path(part).name for part in PurePath(name).parts[-2:]))
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(text, encoding="utf-8")
                self._loaded[files] = load_templates([Path(folder)] if files else [])
        families = self._loaded[files]
        for name, expected in lease.families.items():
            if name not in families or families[name].hash != expected:
                raise StudyError(
                    f"{lease.study.name}: the coordinator's family {name} is not this agent's; install the same "
                    f"version of autotune on both"
                )
        return families


class Journal:
    """The results database of one lease."""

    def __init__(self, folder: Path, lease: Lease, families: Mapping[str, KernelTemplate]) -> None:
        self.folder, self.lease = folder, lease.bare
        self.live = False
        """whether a line writes into it"""
        self.progress: Progress | None = None
        self.told = NEVER
        """the agent's state from which on the coordinator knows that its line has ended and all is stored"""
        self._acknowledged: set[int] = set()
        self.families = families
        self.store = Store(folder / "trials.db")
        try:
            self.scope = self._scope()
        except BaseException:
            self.store.close()
            raise

    def _scope(self) -> Scope:
        study, device = self.lease.study, self.lease.device_class
        key = self.store.studies.begin(StudyRecord(study.name, study.seed, study.text, study.layers))
        records = [TemplateRecord(each.name, each.hash, each.header) for each in self.families.values()]
        layer = self.lease.layer
        return self.store.scopes.open(key, layer, device.info, device.environment, policy(study), records)

    def seed(self, lease: Lease) -> None:
        """Take over what the results database knew when the lease was given."""
        self.store.deliveries.add([(self.scope, lease.history)])
        if lease.held is not None:
            self.store.finals.add(self.scope, lease.held)
        for source_hash, reason, message in lease.quarantined:
            self.store.quarantine.add_unseen(self.scope, source_hash, reason, message)
        if lease.rates:
            self.store.rates.add(lease.device_class.info, lease.device_class.environment, lease.rates)
        self._acknowledged.update(delivery.id for delivery in self.store.deliveries.list(self.scope))

    def begin(self) -> None:
        """A line begins to write into it, whose end is to be told."""
        self.live = True
        self.told = NEVER

    def acknowledge(self, ids: frozenset[int]) -> None:
        """These are stored for good."""
        self._acknowledged.update(ids)

    def collected(self, *, known: bool) -> Collected:
        """What is not, and what is running; `known`: the coordinator knows the lease."""
        deliveries = self.store.deliveries.list(self.scope, but=self._acknowledged)
        best = self.progress.best if self.progress else None
        done = self.progress.done if self.progress else 0
        return Collected(
            self.lease.id, None if known else self.lease, self.live, deliveries, done, best.median_us if best else None
        )

    def close(self, *, remove: bool) -> None:
        """Close the file; with `remove`, it is needed no more."""
        self.store.close()
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)


class Journals:
    """All of an agent's journals, also those that an earlier process of its name has left."""

    def __init__(self, folder: Path, name: str, families: Families | None = None) -> None:
        """Open the folder. Raises StoreError where it cannot be written, or another agent of this name has it."""
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = open_lock(folder / "lock")
        except OSError as error:
            raise StoreError(not_written(folder, error, _ADVICE)) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise StoreError(f"{name}: an agent of this name runs here already; give this one another --name") from None
        self._blank = folder / "blank.db"
        self._families = families or Families()
        self._open: dict[str, Journal] = {}
        try:
            self._blank.unlink(missing_ok=True)
            with Store(self._blank) as made:  # the tables are made once
                made.quarantine.clear()
            for left in folder.glob(_LEASES):
                if os.path.lexists(left / "lease"):
                    self._take_up(left)
                else:  # killed while it was made: no line has begun
                    shutil.rmtree(left, ignore_errors=True)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise StoreError(not_written(error.filename or folder, error, _ADVICE)) from None
            raise

    def _take_up(self, left: Path) -> None:
        """Go on with a journal that an earlier process has left; one that cannot be read is kept beside, and named."""
        try:
            lease = _read(left / "lease")
            self._open[left.name] = Journal(left, lease, self._families.of(lease))
        except (StoreError, StudyError) as error:
            kept = self._folder.with_name(f"{self._folder.name}.left")
            kept.mkdir(exist_ok=True)
            left.rename(kept / left.name)
            message = (
                f"{one_line(str(kept / left.name))}: "
                f"what was not delivered of an earlier lease is kept there ({error}); "
                f"`autotune merge` brings its trials.db"
            )
            warnings.warn(message, StoreWarning, stacklevel=2)

    def __iter__(self) -> Iterator[Journal]:
        return iter(list(self._open.values()))

    def open(self, lease: Lease) -> Journal:
        """A journal for a lease, whose line begins. Raises StudyError where the coordinator has other families."""
        if lease.id in self._open:  # the lease came again, since its end did not reach the coordinator
            self._open[lease.id].begin()
            return self._open[lease.id]
        families, folder = self._families.of(lease), self._folder / lease.id
        folder.mkdir()
        with ExitStack() as unless_begun:
            unless_begun.callback(shutil.rmtree, folder, ignore_errors=True)
            shutil.copy(self._blank, folder / "trials.db")
            journal = Journal(folder, lease, families)
            unless_begun.callback(journal.store.close)
            journal.seed(lease)
            (folder / "writing").write_bytes(_written(lease.bare))
            (folder / "writing").rename(folder / "lease")
            unless_begun.pop_all()
        journal.begin()
        self._open[lease.id] = journal
        return journal

    def drop(self, journal: Journal) -> None:
        """Everything of it is stored."""
        del self._open[journal.lease.id]
        journal.close(remove=True)

    def close(self) -> None:
        """Close the files; what was not delivered stays."""
        for journal in self:
            journal.close(remove=False)
        self._lock.close()


def _written(lease: Lease) -> bytes:
    return pickle.dumps((__version__, pickle.dumps(lease)))


def _read(path: Path) -> Lease:
    """A lease as `_written` by an agent of this user in this user's own folder. Raises StoreError for any other."""
    try:
        version, words = pickle.loads(read_bytes(path, StoreError, _MOST_BYTES))  # noqa: S301
        if version != __version__:
            raise StoreError(f"it is of autotune {version}")
        lease = pickle.loads(words)  # noqa: S301
    except (*NOT_UNDERSTOOD, pickle.UnpicklingError, EOFError, ImportError) as error:
        raise StoreError(f"its lease cannot be read: {one_line(str(error))}") from None
    if not isinstance(lease, Lease):
        raise StoreError("its lease cannot be read")
    return lease
