"""Plan a run: read a study, apply the overrides, and check it against its families."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.api.study_names import as_study
from autotune.devices.device import BASELINES
from autotune.devices.torch_baseline import baselines_of
from autotune.errors import DeviceError, StoreWarning, StudyError
from autotune.family.space import narrow
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.problem import Layer
from autotune.study import SAMPLERS, Study, operations_of
from autotune.toml_table import did_you_mean, is_time
from autotune.trial import Value
from autotune.tuning.layer_finals import FINALS_S, PLAIN_FINALS, TOGETHER_S, FinalsPlan

if TYPE_CHECKING:
    from autotune.store import LayerRow


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values that override a study's. None keeps the study's value."""

    templates: tuple[str, ...] | None = None
    """the families to search"""
    trials: int | None = None
    time_budget_s: float | None = None
    trials_total: int | None = None
    time_budget_total_s: float | None = None
    min_gain: float | None = None
    seed: int | None = None
    sampler: str | None = None
    warm_start: bool | None = None

    def of(self, study: Study) -> Study:
        """Return the study with these overrides applied."""
        overrides = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(study, **{name: value for name, value in overrides.items() if value is not None})


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A study whose families exist and support it."""

    study: Study
    layers: tuple[Layer, ...]
    """the layers to tune, which may be all or some of the study's layers"""
    families: Mapping[str, KernelTemplate]
    finals: FinalsPlan = PLAIN_FINALS
    fresh: bool = False
    """whether to start the search over; stored results stay in the database"""

    @property
    def names(self) -> frozenset[str]:
        """`study.layer` of each layer."""
        return frozenset(f"{self.study.name}.{layer.name}" for layer in self.layers)


def plan_run(
    study: Study | str | Path,
    db: str | Path,
    folders: Sequence[Path] = (),
    *,
    layers: Sequence[str] = (),
    overrides: Overrides | None = None,
    baselines: Sequence[str] = (),
    finals_s: float | None = None,
    fresh: bool = False,
) -> RunPlan:
    """Read a study, apply the overrides, and check it against its families, including those in `folders`.

    No device is opened, and the database is opened only to read a stored study's text and layers. Warns (StoreWarning)
    if the database has trials of layers that the study no longer contains, unless the run starts over. Raises
    StudyError, TemplateError and DeviceError.
    """
    planned = as_study(study, db, folders)
    if overrides is not None:
        planned = overrides.of(planned)
    chosen = layers_named(planned, layers)
    operations = operations_of(planned)
    families = load_templates(folders, operations, of={each.name for each in operations})
    check_study(planned, families)
    finals = _finals(planned, tuple(dict.fromkeys(baselines)), finals_s)
    if not fresh:
        _warn_dropped_layers(planned, db)
    return RunPlan(planned, chosen, families, finals, fresh)


def layers_named(study: Study, names: Sequence[str]) -> tuple[Layer, ...]:
    """Return the study's layers with these names, or all of them if there are no names.

    Raises StudyError for an unknown name.
    """
    known = {layer.name: layer for layer in study.layers}
    wanted = [name.removeprefix(f"{study.name}.") for name in names]
    for name in wanted:
        if name not in known:
            raise StudyError(f"--layer {name}: {study.name} has no such layer; it has {', '.join(known)}")
    return tuple(known[name] for name in wanted) or study.layers


def check_study(study: Study, families: Mapping[str, KernelTemplate]) -> None:
    """Raise StudyError if a study refers to an unknown family, parameter, value or sampler."""
    named: list[tuple[str, str, Mapping[str, Sequence[Value]]]] = [
        *((study.shown, name, {}) for name in study.templates or ()),
        *((study.shown, name, kept) for name, kept in (study.space or {}).items()),
        *((f"{study.shown}: technique {each.name!r}", each.template, each.space) for each in study.techniques),
    ]
    for where, name, kept in named:
        if name not in families:
            raise StudyError(
                f"{where}: no family named {name!r}{did_you_mean(name, families)}; there are {', '.join(families)}"
            )
        try:
            narrow(families[name], kept)
        except StudyError as error:
            raise StudyError(f"{where}: {error}") from None
    if study.sampler not in SAMPLERS:
        raise StudyError(f"{study.shown}: sampler = {study.sampler!r}: expected one of {', '.join(SAMPLERS)}")


def _finals(study: Study, baselines: tuple[str, ...], finals_s: float | None) -> FinalsPlan:
    """Return the settings for the finals.

    Raises DeviceError for an unknown library, and StudyError for one that has no kernels for these operations. The
    device is checked later, in `api.run.check_baselines`.
    """
    if unknown := [name for name in baselines if name not in BASELINES]:
        raise DeviceError(f"--baseline {unknown[0]}: expected one of {', '.join(BASELINES)}")
    if baselines and not any(baselines_of(library, layer.problem) for library in baselines for layer in study.layers):
        operations = ", ".join(sorted({layer.problem.operation.name for layer in study.layers}))
        raise StudyError(
            f"--baseline {baselines[0]}: is for {', '.join(BASELINES[baselines[0]])}, not for {operations}; leave it "
            "out, or use your own kernel as a baseline, with baseline = true in its family's header"
        )
    if finals_s is not None and not is_time(finals_s):
        raise StudyError(f"finals_s = {finals_s}: expected seconds above 0")
    together_s = None if finals_s else TOGETHER_S
    return FinalsPlan(baselines, finals_s or FINALS_S, together_s=together_s)


def _warn_dropped_layers(study: Study, db: str | Path) -> None:
    """Warn (StoreWarning) about layers that have trials under the study's name but are no longer part of it.

    If the study contains none of the stored layers, the stored study is a different one, and the store refuses the
    name.
    """
    names, problems = {layer.name for layer in study.layers}, {layer.problem for layer in study.layers}
    recorded = _stored_layers(study.name, db)
    kept = [row for row in recorded if row.layer.name in names or row.layer.problem in problems]
    dropped = [row.layer.name for row in recorded if row.trials and row not in kept]
    if kept and dropped:
        warnings.warn(
            f"{study.name}: {db} has trials of {', '.join(dropped)}, which this study no longer has; "
            f"if it is another network, give it another name",
            StoreWarning,
            stacklevel=3,
        )


def _stored_layers(name: str, db: str | Path) -> tuple[LayerRow, ...]:
    """Return a study's stored layers, or nothing if the database doesn't contain the study."""
    from autotune.store import Store, has_results

    if not has_results(db):
        return ()
    with Store(db, create=False) as store:
        return store.studies.layers(name) if any(row.name == name for row in store.studies.list()) else ()
