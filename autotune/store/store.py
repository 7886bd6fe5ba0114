"""The store: every trial of every study on every device, and the only truth about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from sqlalchemy import Connection, and_, bindparam, delete, func, select, update

from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import StoreError
from autotune.family.source import KernelSource
from autotune.measurement.rates import Rate, best_rates
from autotune.problem import Layer
from autotune.store import answers, dispatching, recording
from autotune.store.columns import Values, date_of, date_text, finite
from autotune.store.leaders import list_leaders
from autotune.store.questions import Questions
from autotune.store.records import (
    DispatchedLayer,
    Finals,
    KernelProfile,
    Leader,
    NoiseFloor,
    ProfileRow,
    QuarantineRow,
    RetimeRow,
    Scope,
    StudyKey,
    StudyRecord,
    SubjectScope,
    Suspect,
    TemplateRecord,
    TrialKey,
    TrialRow,
)
from autotune.store.rows import device_identity, trial_of
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Clock, one_line, utc_now
from autotune.store.sqlite.opening import open_for_reading, open_for_writing
from autotune.store.tables import devices, environments, noise_floors, quarantine, rates, sources, studies, trials
from autotune.trial import Config, Outcome, Phases, SpanParts, Timing, Trial

_KNOWN = (
    trials.c.device_id == bindparam("device_id"),
    trials.c.environment_id == bindparam("environment_id"),
    trials.c.policy == bindparam("policy"),
    trials.c.outcome != str(Outcome.RUNNING),
    trials.c.reused_trial_id.is_(None),
    trials.c.origin == "measured",
    trials.c.started_at >= bindparam("since"),
)
_LATEST_KNOWN = (
    select(trials.c.id)
    .join(sources)
    .where(sources.c.hash == bindparam("hash"), *_KNOWN)
    .order_by(trials.c.ended_at.desc(), trials.c.id.desc())
    .limit(1)
)
_KNOWN_HASHES = (
    select(sources.c.hash)
    .join(trials)
    .where(trials.c.study_id.in_(select(studies.c.id)), trials.c.subject_id == bindparam("subject_id"), *_KNOWN)
    .distinct()
)
"""any study's: said of it for the sake of an index"""


def _known_to(scope: Scope) -> Values:
    """Which trials a scope may take over, as _KNOWN is asked."""
    since = scope.study.fresh_since
    return {
        "device_id": scope.device_id,
        "environment_id": scope.environment_id,
        "policy": scope.policy,
        "since": "" if since is None else date_text(since),
    }


class Store(Questions):
    """An open results database. Every method is one transaction; every failure a StoreError of one line."""

    def __init__(
        self, url: str | Path, *, create: bool = True, timeout_s: float = LOCK_TIMEOUT_S, clock: Clock = utc_now
    ) -> None:
        """Open the results database at a path or an sqlite URL.

        With create, for writing: made when there is none, migrated when it is older. Without, for reading only:
        the file and its folder may be read-only and nothing is left beside it.
        """
        self._database = (
            open_for_writing(url, timeout_s=timeout_s, clock=clock)
            if create
            else open_for_reading(url, timeout_s=timeout_s, clock=clock)
        )
        self._clock = clock
        self._runs: dict[tuple[int, int], int] = {}
        # (device id, environment id) to the run that this process is, made when first needed

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Tuning: in the order in which `tune` calls them.

    def begin_study(self, record: StudyRecord, *, fresh: bool = False) -> StudyKey:
        """The newest generation of the study, its text, seed and layers brought up to date; fresh: a new one."""
        with self._database.write() as connection:
            return recording.begin_study(connection, record, self._now(), fresh=fresh)

    def scope(
        self,
        study: StudyKey,
        layer: Layer,
        device: DeviceInfo,
        environment: Environment,
        policy: str,
        templates: Sequence[TemplateRecord],
    ) -> Scope:
        """Where a run's trials of one layer go; `templates` has every family that its configs may name."""
        now = self._now()
        with self._database.write() as connection:
            layer_id, subject_id = recording.subject(connection, layer)
            device_id, environment_id, run_id = self._run(connection, device, environment, now)
            template_ids = tuple((record.family, recording.template(connection, record, now)) for record in templates)
        self._runs[device_id, environment_id] = run_id
        return Scope(study, policy, subject_id, device_id, environment_id, run_id, template_ids, layer, layer_id)

    def set_scope(
        self,
        study: StudyKey,
        layers: Sequence[Layer],
        device: DeviceInfo,
        environment: Environment,
        policy: str,
        template: TemplateRecord,
    ) -> SubjectScope:
        """Where the trials of a set of layers go: those of dispatchers."""
        now = self._now()
        with self._database.write() as connection:
            subject_id = recording.layer_set(connection, layers)
            device_id, environment_id, run_id = self._run(connection, device, environment, now)
            template_ids = ((template.family, recording.template(connection, template, now)),)
        self._runs[device_id, environment_id] = run_id
        return SubjectScope(study, policy, subject_id, device_id, environment_id, run_id, template_ids)

    def dispatch_trials(self, scope: SubjectScope) -> Mapping[Config, Trial]:
        """The finished trials of a set of layers by config: number, outcome, reason and message."""
        with self._database.read() as connection:
            return dispatching.list_trials(connection, scope)

    def add_dispatch_trial(
        self, scope: SubjectScope, trial: Trial, total_us: float | None, *, proposed_by: str = "search"
    ) -> None:
        """Store a trial of a set of layers with the time of all of them, each as often as the network runs it."""
        with self._database.write() as connection:
            dispatching.add_trial(connection, scope, trial, total_us, self._now(), proposed_by=proposed_by)

    def add_dispatcher(
        self, scope: SubjectScope, number: int, document: str, layers: Sequence[DispatchedLayer]
    ) -> None:
        """Store the document of a trial's dispatcher with what it costs each layer; once, where nothing has changed."""
        with self._database.write() as connection:
            dispatching.add_dispatcher(connection, scope, number, document, layers, self._now())

    def history(self, scope: Scope) -> tuple[Trial, ...]:
        """The scope's finished trials, ordered by number; imported ones are left out."""
        finished = and_(
            recording.within(scope), trials.c.outcome != str(Outcome.RUNNING), trials.c.origin == "measured"
        )
        with self._database.read() as connection:
            statement = answers.select_trials().where(finished).order_by(trials.c.number)
            return tuple(trial_of(row) for row in connection.execute(statement).mappings())

    def leaders(self, scope: Scope, *, kinds: Sequence[str], accuracies: Sequence[str]) -> tuple[Leader, ...]:
        """The fastest trials of any layer on devices of these kinds, from before the scope's first, fastest first."""
        with self._database.read() as connection:
            return list_leaders(connection, scope, kinds, accuracies, scope.policy)

    def next_number(self, scope: SubjectScope) -> int:
        """The number after every trial of the scope, suspects included; 0 for the first."""
        statement = select(func.max(trials.c.number)).where(recording.within(scope))
        with self._database.read() as connection:
            last = connection.execute(statement).scalar_one()
        return 0 if last is None else int(last) + 1

    def suspects(self, scope: Scope) -> tuple[Suspect, ...]:
        """The scope's trials that a killed run left running."""
        running = and_(recording.within(scope), trials.c.outcome == str(Outcome.RUNNING))
        found = []
        with self._database.read() as connection:
            statement = answers.select_trials().where(running).order_by(trials.c.number)
            for row in connection.execute(statement).mappings():
                trial = trial_of(row)
                key = TrialKey(row[trials.c.id], trial.number, trial.config, trial.source_hash)
                found.append(Suspect(key, trial, row[trials.c.attempts], date_of(row[trials.c.started_at])))
        return tuple(found)

    def known(self, scope: Scope, source_hash: str) -> TrialRow | None:
        """A finished trial of this source on the scope's device and environment under its policy, in any study.

        The latest one counts, imported ones never. A study that was begun fresh sees only what was begun since.
        """
        with self._database.read() as connection:
            trial_id = connection.execute(_LATEST_KNOWN, {"hash": source_hash, **_known_to(scope)}).scalar_one_or_none()
            if trial_id is None:
                return None
            return answers.trials_by_id(connection, [trial_id])[trial_id]

    def known_hashes(self, scope: Scope) -> frozenset[str]:
        """The sources of the scope's layer that are `known` now, in one answer."""
        with self._database.read() as connection:
            found = connection.execute(_KNOWN_HASHES, {"subject_id": scope.subject_id, **_known_to(scope)})
            return frozenset(found.scalars())

    def reuse_trial(
        self, scope: Scope, number: int, config: Config, known: TrialRow, *, proposed_by: str = "search"
    ) -> Trial:
        """Store a known trial's result as this scope's trial, in one commit; its phases took no time."""
        trial = replace(known.trial, number=number, config=config, phases=Phases())
        now = self._now()
        with self._database.write() as connection:
            source_id = connection.execute(select(trials.c.source_id).where(trials.c.id == known.id)).scalar_one()
            trial_id = recording.begin_trial(
                connection, scope, number, config, source_id, now, proposed_by=proposed_by, reused_trial_id=known.id
            )
            recording.end_trial(connection, TrialKey(trial_id, number, config, trial.source_hash), trial, now)
        return trial

    def begin_trial(
        self,
        scope: Scope,
        number: int,
        config: Config,
        source: KernelSource | None = None,
        *,
        proposed_by: str = "search",
    ) -> TrialKey:
        """Commit a trial as running, with its source, before anything is launched.

        A suspect begins again under its number, with one attempt more. Raises StoreError when the number belongs
        to a finished trial or to another config.
        """
        with self._database.write() as connection:
            source_id = None if source is None else recording.source(connection, scope, source)
            now = self._now()
            trial_id = recording.begin_trial(connection, scope, number, config, source_id, now, proposed_by=proposed_by)
        return TrialKey(trial_id, number, config, None if source is None else source.hash)

    def end_trial(self, key: TrialKey, trial: Trial, parts: SpanParts | None = None) -> None:
        """Commit what became of a running trial, with its measurement, and its parts where it is end to end."""
        with self._database.write() as connection:
            recording.end_trial(connection, key, trial, self._now(), parts)

    def add_trial(
        self, scope: Scope, trial: Trial, source: KernelSource | None = None, *, proposed_by: str = "search"
    ) -> TrialKey:
        """Begin and end in one commit: a trial that never came to a launch."""
        now = self._now()
        with self._database.write() as connection:
            source_id = None if source is None else recording.source(connection, scope, source)
            trial_id = recording.begin_trial(
                connection, scope, trial.number, trial.config, source_id, now, proposed_by=proposed_by
            )
            key = TrialKey(trial_id, trial.number, trial.config, None if source is None else source.hash)
            recording.end_trial(connection, key, trial, now)
        return key

    def add_rejected(self, scope: Scope, rejected: Sequence[Trial], *, proposed_by: str = "search") -> None:
        """Store trials whose configs broke a rule before there was a source, all in one commit."""
        with self._database.write() as connection:
            recording.add_rejected(connection, scope, rejected, self._now(), proposed_by)

    def add_finals(self, scope: Scope, finals: Finals) -> None:
        """Store finals: every finalist measured again, in turn, and who won."""
        with self._database.write() as connection:
            recording.add_finals(connection, scope, finals, self._now())

    def quarantine(self, scope: Scope, source_hash: str, reason: str, message: str) -> None:
        """Never launch a stored source again on the scope's device in its environment; the latest reason counts."""
        with self._database.write() as connection:
            found = select(sources.c.id).where(sources.c.hash == source_hash)
            source_id = connection.execute(found).scalar_one_or_none()
            if source_id is None:
                raise StoreError(
                    f"{scope.name}: source {one_line(source_hash)} is not stored; begin a trial with it first"
                )
            identity: Values = {
                "device_id": scope.device_id,
                "environment_id": scope.environment_id,
                "source_id": source_id,
            }
            why: Values = {"reason": reason, "message": message, "created_at": self._now()}
            row_id = recording.identify(connection, quarantine, identity, why)
            connection.execute(update(quarantine).where(quarantine.c.id == row_id), why)

    def quarantined(self, scope: Scope) -> frozenset[str]:
        """Hashes of the sources that must not be launched on the scope's device in its environment."""
        statement = (
            select(sources.c.hash)
            .join(quarantine)
            .where(quarantine.c.device_id == scope.device_id, quarantine.c.environment_id == scope.environment_id)
        )
        with self._database.read() as connection:
            return frozenset(connection.execute(statement).scalars())

    def quarantine_rows(self) -> tuple[QuarantineRow, ...]:
        """Every quarantined source with its device and environment, the latest first."""
        statement = (
            select(
                sources.c.hash,
                devices.c.name,
                environments.c.driver,
                environments.c.toolkit,
                quarantine.c.reason,
                quarantine.c.message,
                quarantine.c.created_at,
            )
            .select_from(quarantine)
            .join(sources)
            .join(devices)
            .join(environments)
            .order_by(quarantine.c.created_at.desc())
        )
        with self._database.read() as connection:
            return tuple(
                QuarantineRow(source_hash, device, driver, toolkit, reason, message, date_of(created_at))
                for source_hash, device, driver, toolkit, reason, message, created_at in connection.execute(statement)
            )

    def clear_quarantine(self) -> None:
        """Release every quarantined source."""
        with self._database.write() as connection:
            connection.execute(delete(quarantine))

    def add_profiles(
        self, row: TrialRow, device: DeviceInfo, environment: Environment, records: Sequence[KernelProfile]
    ) -> tuple[ProfileRow, ...]:
        """Store what a profiler saw of a trial's launches on a device; the rows as they are stored."""
        now = self._now()
        with self._database.write() as connection:
            device_id, environment_id, run_id = self._run(connection, device, environment, now)
            recording.add_profiles(connection, row.id, run_id, records, now)
        self._runs[device_id, environment_id] = run_id
        return tuple(ProfileRow(row, record, date_of(now)) for record in records)

    def add_retime(
        self,
        row: TrialRow,
        device: DeviceInfo,
        environment: Environment,
        label: str,
        timing: Timing | None,
        message: str = "",
    ) -> RetimeRow:
        """Store what measuring a correct trial again told: a label of RETIME_LABELS, and the timing unless it failed.

        `best` ranks the trial by the new median from now on; an imported one counts from now on. Finals of its layer,
        device and class that this puts in doubt decide no more. Raises StoreError for a trial of another device.
        """
        now = self._now()
        if device.identity != row.device.identity:
            raise StoreError(
                f"{row.name}: trial {row.trial.number} belongs to {one_line(row.device.name)}; "
                f"it cannot be re-timed on {one_line(device.name)}"
            )
        with self._database.write() as connection:
            device_id, environment_id, run_id = self._run(connection, device, environment, now)
            before_us = recording.add_retime(connection, row, run_id, label, timing, message, now)
            (stored,) = answers.trials_by_id(connection, [row.id]).values()
        self._runs[device_id, environment_id] = run_id
        return RetimeRow(stored, environment, label, before_us, timing, message, date_of(now))

    def _run(
        self, connection: Connection, device: DeviceInfo, environment: Environment, now: str
    ) -> tuple[int, int, int]:
        """Ids of a device, an environment and this process's run there, which the caller keeps once committed."""
        device_id = recording.device(connection, device, now)
        environment_id = recording.environment(connection, environment, now)
        run_id = self._runs.get((device_id, environment_id))
        if run_id is None:
            run_id = recording.run(connection, device_id, environment_id, environment, now)
        return device_id, environment_id, run_id

    # Devices: what was measured about them.

    def set_rates(self, device: DeviceInfo, environment: Environment, measured: Sequence[Rate]) -> None:
        """Store what a device does per second, measured together; earlier rates of these units count no more."""
        now = self._now()
        with self._database.write() as connection:
            device_id = recording.device(connection, device, now)
            environment_id = recording.environment(connection, environment, now)
            for rate in measured:
                if finite(rate.per_s) is None or rate.per_s <= 0:
                    raise StoreError(
                        f"rate {one_line(rate.unit)} = {rate.per_s}: expected a positive finite number per second"
                    )
                values: Values = {"device_id": device_id, "environment_id": environment_id, "measured_at": now}
                values |= {"name": rate.unit, "method": rate.method, "per_s": rate.per_s}
                recording.insert(connection, rates, values)

    def rates(self, device: DeviceInfo) -> dict[str, float]:
        """The best of a device's `measured_rates` of each unit; empty when never calibrated."""
        return best_rates(self.measured_rates(device))

    def measured_rates(self, device: DeviceInfo) -> tuple[Rate, ...]:
        """A device's rates of each unit, by every method of its latest calibration.

        Imported ones count where there is no other. Units stand in the order in which they were first stored.
        """
        statement = (
            select(rates.c.name, rates.c.method, rates.c.per_s, rates.c.origin, rates.c.measured_at)
            .join(devices)
            .where(*(devices.c[name] == value for name, value in device_identity(device).items()))
            .order_by(rates.c.origin == "measured", rates.c.measured_at, rates.c.id)
        )
        latest: dict[str, tuple[str, str]] = {}
        found: dict[str, dict[str, Rate]] = {}
        with self._database.read() as connection:
            for row in connection.execute(statement):
                if latest.get(row.name) != (row.origin, row.measured_at):
                    latest[row.name] = (row.origin, row.measured_at)
                    found[row.name] = {}
                found[row.name][row.method] = Rate(row.name, row.method, row.per_s)
        return tuple(rate for methods in found.values() for rate in methods.values())

    def set_noise_floor(
        self, device: DeviceInfo, environment: Environment, policy: str, noise_us: float, noise_fraction: float
    ) -> None:
        """Store the smallest difference that the device's measurements can tell, from A/A runs."""
        if finite(noise_us) is None or finite(noise_fraction) is None:
            raise StoreError(f"noise floor {noise_us} us, {noise_fraction}: expected finite numbers")
        now = self._now()
        with self._database.write() as connection:
            values: Values = {
                "device_id": recording.device(connection, device, now),
                "environment_id": recording.environment(connection, environment, now),
                "policy": policy,
                "noise_us": noise_us,
                "noise_fraction": noise_fraction,
                "measured_at": now,
            }
            recording.insert(connection, noise_floors, values)

    def noise_floor(self, device: DeviceInfo, policy: str) -> NoiseFloor | None:
        """The device's latest noise floor under a policy; an imported one where there is no other."""
        statement = (
            select(noise_floors)
            .join(devices)
            .where(
                noise_floors.c.policy == policy,
                *(devices.c[name] == value for name, value in device_identity(device).items()),
            )
            .order_by(
                noise_floors.c.origin == "imported",
                noise_floors.c.measured_at.desc(),
                noise_floors.c.id.desc(),
            )
            .limit(1)
        )
        with self._database.read() as connection:
            row = connection.execute(statement).one_or_none()
        return None if row is None else NoiseFloor(row.noise_us, row.noise_fraction, date_of(row.measured_at))

    def _now(self) -> str:
        return date_text(self._clock())
