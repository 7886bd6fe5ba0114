"""`autotune.importance`: which of a family's parameters affect the times of a layer's kernels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.api.answers import devices_asked
from autotune.api.device_names import Say
from autotune.api.study_names import check_layer_names, matches, name_of
from autotune.errors import StoreError
from autotune.study import Study
from autotune.toml_table import did_you_mean

if TYPE_CHECKING:
    from autotune.replay.recorded_trials import FamilyTrials
    from autotune.search.importance import Importance


@dataclass(frozen=True, slots=True)
class FamilyImportance:
    """The importance of one family's parameters on one layer and device."""

    layer: str
    """`study.layer`"""
    device: str
    """the device's name"""
    template: str
    """the family's name"""
    found: Importance
    """the importance of the family's parameters"""


def importance_of(trials: FamilyTrials) -> Importance | None:
    """Compute how important a family's parameters are, or return None if it has too few correct trials."""
    from autotune.search.importance import importance as importance_in

    return importance_in(trials.params, [(row.trial.config, row.median_us) for row in trials.rows if row.median_us])


def importance(
    what: Study | str | Path,
    *,
    db: str | Path = "autotune.db",
    device: str | None = None,
    families: Collection[str] = (),
    layers: Collection[str] = (),
    say: Say = lambda *_: None,
) -> tuple[FamilyImportance, ...]:
    """Return how important parameters are for each layer of a study, or for a single layer.

    Each family with at least 20 correct trials gets an entry. `device` (part of a recorded name), `families` and
    `layers` restrict the result. `say` is called if `device` refers to a device of this machine. Raises StoreError if
    there are no such trials, and DeviceError if the database has none from the device.
    """
    from autotune.replay.recorded_trials import device_words, families_of, measured_rows
    from autotune.store import Store

    name = name_of(what)
    with Store(db, create=False) as store:
        devices = devices_asked(store, device, say=say)
        on = None if devices is None else {info.identity for info in devices}
        known = store.studies.layers(name)
        names = {row.layer.problem: row.name for row in known if matches(row.name, layers)}
        check_layer_names(layers, known, name, str(db))
        groups = measured_rows(store, list(names))
        rows = tuple(
            FamilyImportance(names[measured[0]], device_words(measured, groups), one.family, found)
            for measured, trials in groups.items()
            if on is None or trials[0].device.identity in on
            for one in families_of(store, trials)
            if (not families or one.family in families) and (found := importance_of(one))
        )
        known_families = store.templates.families()
        replayed = any(info.kind == "replay" for info in store.devices.list())
    if not rows:
        unknown = [name for name in families if name not in known_families]
        if unknown:
            hint = did_you_mean(unknown[0], sorted(known_families))
            raise StoreError(f"--family {unknown[0]}: {db} has nothing of this name{hint}")
        family = f"the family {' or '.join(families)}" if families else "any family"
        measured_ones = "measured, not replayed" if replayed else "correct"
        raise StoreError(f"{db}: {name}: fewer than 20 trials of {family} are {measured_ones}")
    return rows
