"""Group a results database's trials so that times within a group are comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.problem import Problem
from autotune.store import Store, TrialRow
from autotune.trial import END_TO_END, Value

REPLAYED = "replay"
"""The kind of device whose trials come from a recording themselves."""

Measured = tuple[Problem, tuple[str, str, int, int, int], tuple[str, str, str], str]
"""The properties that trials must share for their times to be comparable: layer, device, environment, measurement mode.
"""


def measured_rows(store: Store, problems: Sequence[Problem] | None = None) -> dict[Measured, tuple[TrialRow, ...]]:
    """Group the evaluated configs for some problems, or for all of them, so that times in a group are comparable.

    Within a group, configs are in the order of their first evaluation. If a config was evaluated several times, only
    the latest trial is included.
    """
    found: dict[Measured, dict[tuple[str, str], TrialRow]] = {}
    if problems is None:
        rows = store.trials.list(generations="all")
    else:
        rows = tuple(row for problem in problems for row in store.trials.list(problem))
    for row in sorted(rows, key=lambda row: row.id):
        evaluated = row.trial.compiled and row.ended_at is not None
        if evaluated and row.measurement_mode != END_TO_END and row.device.kind != REPLAYED:
            key = (row.problem, row.device.identity, row.environment.identity, row.measurement_mode)
            config = row.trial.config
            found.setdefault(key, {})[config.template, config.to_json()] = row
    return {key: tuple(latest.values()) for key, latest in found.items()}


@dataclass(frozen=True, slots=True)
class FamilyTrials:
    """One family's comparable trials."""

    family: str
    params: Mapping[str, Sequence[Value]]
    """the values of each parameter, as the header of the newest trial's family declares them"""
    rows: tuple[TrialRow, ...]
    """the trials whose parameters all have one of these values, oldest first"""


def families_of(store: Store, rows: Sequence[TrialRow]) -> list[FamilyTrials]:
    """Group comparable trials by family, in order of first occurrence."""
    of_family: dict[str, list[TrialRow]] = {}
    for row in rows:
        of_family.setdefault(row.trial.config.template, []).append(row)
    found = []
    for family, own in of_family.items():
        declared = store.templates.params(family, own[-1].template_hash)
        params = {name: declared.get(name, ()) for name in own[-1].trial.config.params}
        found.append(FamilyTrials(family, params, tuple(row for row in own if _has(row, params))))
    return found


def _has(row: TrialRow, params: Mapping[str, Sequence[Value]]) -> bool:
    """Return whether a trial has exactly these parameters, each with one of its declared values."""
    values = row.trial.config.params
    return values.keys() == params.keys() and all(values[name] in known for name, known in params.items())


def device_words(measured: Measured, groups: Mapping[Measured, Sequence[TrialRow]]) -> str:
    """Return a device's name, with the measurement mode or the driver if the layer has trials with several of them."""
    problem, device, environment, measurement_mode = measured
    alike = [key for key in groups if key[:2] == (problem, device)]
    words = groups[measured][0].device.name
    if len({key[3] for key in alike}) > 1:
        words += f", {measurement_mode}"
    if len({key[2] for key in alike}) > 1:
        words += f", driver {' '.join(environment)}"
    return words
