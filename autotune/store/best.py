"""The best kernels: of the whole database, or of one study."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Integer,
    Select,
    String,
    column,
    select,
    text,
)

from autotune.devices.device import DeviceInfo
from autotune.problem import Layer, Problem
from autotune.store.devices import same_device
from autotune.store.layers import of_problem
from autotune.store.rows import rows_of
from autotune.store.schema.best_rule import BEST_NOW, KEY, best_of
from autotune.store.schema.tables import (
    devices,
    layers,
    measurements,
    retimes,
    studies,
    study_layers,
    trials,
    tuning_targets,
)
from autotune.store.sqlite.database import Database
from autotune.store.studies import LayerRow, called, current_places, find, one_of, target_ids
from autotune.store.trials import TrialRow, gflops, timing_of, trials_by_id
from autotune.trial import ACCURACY_CLASSES, END_TO_END, Outcome, Timing

TUNE_FIRST = "run `autotune tune STUDY` first"

DecidedBy = Literal["finals", "retime", "median"]
"""The measurement that made a trial the best: the latest finals, a retime, or the smallest median while tuning."""

Match = Literal["exact", "device class"]
"""How well a row matches a device: tuned on the device itself, or on one with the same compute capability and SM count.
"""

CORRECT = trials.c.outcome == str(Outcome.CORRECT)


@dataclass(frozen=True, slots=True)
class BestRow:
    """The best kernel for a layer, device, accuracy class, determinism and measurement mode."""

    study: str
    """the study that the caller asked about; `row` may come from another study with the same layer shape"""
    layer: Layer
    """the layer, with the name that the study gives it"""
    timing: Timing
    """the measurement that made the kernel the best"""
    decided_by: DecidedBy
    """what kind of measurement made the kernel the best: the finals, a retime or the median"""
    row: TrialRow
    """the trial of the winning kernel"""
    match: Match = "exact"
    """`exact`, or `device class` for another device of the same class"""

    @property
    def name(self) -> str:
        """`study.layer`."""
        return f"{self.study}.{self.layer.name}"

    @property
    def median_us(self) -> float:
        """The median of the deciding measurement in microseconds."""
        return self.timing.median_us

    @property
    def gflops(self) -> float:
        """GFLOP/s, counted for the direct algorithm."""
        return gflops(self.layer.problem, self.median_us)


@dataclass(frozen=True, slots=True)
class BestStore:
    """Finds the best kernel for each layer, device, accuracy class, determinism and measurement mode."""

    database: Database

    def list(
        self,
        what: str | Problem | None = None,
        device: DeviceInfo | None = None,
        *,
        kind: str | None = None,
        accuracy: str | None = None,
    ) -> tuple[BestRow, ...]:
        """List the current best kernels for some layers, for a problem, or for every layer.

        Layers are in the order of their studies. A layer's first row is its fastest kernel in the accuracy classes that
        the study admits. For a problem, it doesn't matter what its layers are called. With `device`, a layer gets this
        device's rows or, if there are none, those of devices in the same class; `match` tells you which. If there is no
        best kernel, the result is empty. Non-deterministic kernels are listed only if they beat the deterministic one.
        """
        if accuracy is not None:
            one_of("accuracy class", accuracy, ACCURACY_CLASSES)
        with self.database.read() as connection:
            places = None if what is None or isinstance(what, Problem) else find(connection, what, self.database.shown)
            targets = None if what is None else _targets(connection, what, places)
            rows = tuple(
                row
                for row in _best(connection, targets, places)
                if kind in (None, row.row.device.kind) and accuracy in (None, row.row.trial.accuracy)
            )
        return rows if device is None else _matching(rows, device)

    def is_imported(self, what: str | Problem | None = None, device: DeviceInfo | None = None) -> bool:
        """Return whether there are correct imported trials that a retime on this machine would rank."""
        never_retimed = ~select(retimes.c.id).where(retimes.c.trial_id == trials.c.id).exists()
        return self._is_there(what, device, CORRECT, trials.c.origin == "imported", never_retimed)

    def _is_there(
        self, what: str | Problem | None, device: DeviceInfo | None, *conditions: ColumnElement[bool]
    ) -> bool:
        """Return whether a layer or study has a trial that meets the conditions, not counting end-to-end trials."""
        among = [*conditions, trials.c.measurement_mode != END_TO_END]
        if device is not None:
            among.append(trials.c.device_id.in_(select(devices.c.id).where(*same_device(device))))
        if isinstance(what, Problem):
            among.append(trials.c.tuning_target_id.in_(target_of(what)))
        elif what is not None:
            named = select(study_layers.c.tuning_target_id).join(studies).where(called(what))
            among.append(trials.c.tuning_target_id.in_(named))
        with self.database.read() as connection:
            return connection.execute(select(trials.c.id).where(*among).limit(1)).first() is not None

    def advice(self, what: str | None, device: DeviceInfo | None = None, otherwise: str = TUNE_FIRST) -> str:
        """Return advice for a layer without a best kernel: re-time imported trials, find out why all trials failed, or
        `otherwise`.
        """
        named = f" {what}" if what else ""
        if self.is_imported(what, device):
            return f"imported trials are ranked once they are re-timed here: run `autotune retime{named}`"
        ended = self._is_there(what, device, trials.c.outcome != str(Outcome.RUNNING))
        if ended and not self._is_there(what, device, CORRECT):
            return f"no trial of it was correct: `autotune trials{named}` shows each message"
        return otherwise

    def of_study(self, study: str, generation: int, what: str | None = None) -> tuple[BestRow, ...]:
        """Return the best kernels of a study's generation, from its own trials and finals, including imported ones."""
        with self.database.read() as connection:
            places, part = part_of(connection, self.database.shown, what, (study, generation))
            return tuple(_best(connection, None, places, part))


def part_of(
    connection: Connection, where: str, what: str | None, study: tuple[str, int] | None
) -> tuple[tuple[LayerRow, ...] | None, dict[str, Any]]:
    """Return the layers of a study's generation, and the parameters of `best_of`.

    Without a study, return the layers that `what` names (None: all layers), and parameters for no study.
    """
    if study is None:
        return None if what is None else find(connection, what, where), {"study_id": None, "targets": "[]"}
    name, generation = study
    found = find(connection, what or name, where, "all")
    places = tuple(place for place in found if (place.study, place.generation) == study)
    same = (studies.c.name == name, studies.c.generation == generation)
    study_id = connection.execute(select(studies.c.id).where(*same)).scalar()
    return places, {"study_id": study_id, "targets": json.dumps(sorted(target_ids(places)))}


_CHOSEN: tuple[ColumnElement[Any], ...] = (
    *(column(name, Integer) for name in ("tuning_target_id", "device_id", "trial_id", "measurement_id")),
    *(column(name, String) for name in ("accuracy", "measurement_mode", "decided_by")),
    column("deterministic", Boolean),
)


def _best(
    connection: Connection,
    targets: Collection[int] | None,
    places: Sequence[LayerRow] | None,
    part: Mapping[str, Any] | None = None,
) -> Iterator[BestRow]:
    """Yield the best kernels for some tuning targets, with the names that their studies give to the layers.

    If `targets` and `places` are None, this includes every layer. `part` contains the parameters of `part_of`; with it,
    the rule is `best_of` instead of `BEST_NOW`.
    """
    chosen = text(BEST_NOW if part is None else best_of()).columns(*_CHOSEN).subquery("chosen")
    statement = (
        select(chosen, measurements)
        .join(measurements, measurements.c.id == chosen.c.measurement_id)
        .join(devices, devices.c.id == chosen.c.device_id)
    )
    if part is None:
        order = (devices.c.kind, devices.c.name, devices.c.id, chosen.c.accuracy, chosen.c.deterministic.desc())
        statement = statement.order_by(chosen.c.tuning_target_id, *order, chosen.c.measurement_mode)
    else:
        statement = statement.order_by(*(chosen.c[name] for name in KEY))
    if targets is not None:
        statement = statement.where(chosen.c.tuning_target_id.in_(targets))
    rows = list(rows_of(connection, statement, part))
    whole = trials_by_id(connection, (row[chosen.c.trial_id] for row in rows))
    of_target: dict[int, list[BestRow]] = {}
    for row in rows:
        winner = whole[row[chosen.c.trial_id]]
        best = BestRow(winner.study, winner.layer, timing_of(row), row[chosen.c.decided_by], winner)
        of_target.setdefault(row[chosen.c.tuning_target_id], []).append(best)
    if places is None:
        yield from chain.from_iterable(of_target.values())
        return
    for place in current_places(places):
        found = of_target.get(place.tuning_target_id, ())
        for best in _first_choice_first(found, place.admitted) if part is None else found:
            yield replace(best, study=place.study, layer=place.layer)


def _first_choice_first(rows: Sequence[BestRow], admitted: Collection[str]) -> Sequence[BestRow]:
    """Move the fastest admitted kernel on a GPU with a cold cache to the front of a layer's rows.

    The view `study_best` follows the same rule.
    """

    def rank(best: BestRow) -> tuple[bool, bool, str, float, bool]:
        trial, own = best.row.trial, best.row
        not_admitted = trial.accuracy not in admitted
        return not own.device.can.gpu, not_admitted, own.measurement_mode, best.median_us, not trial.deterministic

    return sorted(rows, key=lambda best: best is not min(rows, key=rank))


def _targets(connection: Connection, what: str | Problem, places: Sequence[LayerRow] | None) -> set[int]:
    """Return the ids of a problem's or some layers' tuning targets."""
    if isinstance(what, Problem):
        return {row.id for row in connection.execute(target_of(what))}
    return target_ids(places or ())


def target_of(problem: Problem) -> Select[tuple[int]]:
    """Select the id of a problem's tuning target."""
    return select(tuning_targets.c.id).join(layers).where(*of_problem(problem))


def _matching(rows: Sequence[BestRow], device: DeviceInfo) -> tuple[BestRow, ...]:
    """For each layer, return this device's rows, or else rows of devices in the same class, marked as such."""
    exact = {row.layer.problem for row in rows if row.row.device.identity == device.identity}
    found = []
    for row in rows:
        other = row.row.device
        if other.identity == device.identity:
            found.append(row)
        elif row.layer.problem not in exact and other.is_like(device):
            found.append(replace(row, match="device class"))
    return tuple(found)
