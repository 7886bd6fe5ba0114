"""Plan a run: read a study, apply the overrides, and check it against its families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from autotune.api.study_names import as_study, layers_named
from autotune.errors import StudyError
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.problem import Layer
from autotune.study import NamedRule, Study, operations_of


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values that replace a study's own, field by field; None keeps the study's."""

    templates: tuple[str, ...] | None = None
    """families"""
    trials: int | None = None
    time_budget_s: float | None = None
    trials_total: int | None = None
    time_budget_total_s: float | None = None
    min_gain: float | None = None
    seed: int | None = None
    sampler: str | None = None
    warm_start: bool | None = None
    prior: bool | None = None

    def of(self, study: Study) -> Study:
        """The study with the given values."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(study, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A study whose families exist and serve it."""

    study: Study
    layers: tuple[Layer, ...]
    """all layers of the study, or some"""
    families: Mapping[str, KernelTemplate]

    @property
    def names(self) -> frozenset[str]:
        """`study.layer` of each layer."""
        return frozenset(f"{self.study.name}.{layer.name}" for layer in self.layers)

    def rule(self, target: str | None, trials: int | None) -> NamedRule | None:
        """The rule to search instead of the layers: `target`, or the study's own; None to tune the layers.

        `trials`, if given, replaces the rule's. Raises StudyError if the study has no such rule.
        """
        study, name = self.study, target or self.study.target
        if name is None:
            return None
        rules = {rule.name: rule for rule in study.rules if rule.trials}
        if name not in rules:
            there = ", ".join(map(repr, rules)) or "none"
            raise StudyError(
                f"{study.path or study.name}: target {name!r}: no [[rule]] with trials has this name; there are {there}"
            )
        return replace(rules[name], trials=trials or rules[name].trials)


def plan_run(
    study: Study | str | Path,
    db: str | Path,
    folders: Sequence[Path] = (),
    *,
    layers: Sequence[str] = (),
    overrides: Overrides | None = None,
) -> RunPlan:
    """Read a study, apply the overrides, and check it against its families, including those in `folders`.

    Opens no device, and the database only to read the text of a stored study. Raises StudyError and TemplateError.
    """
    from autotune.tuning.tune import check_study

    wanted = as_study(study, db, folders)
    if overrides is not None:
        wanted = overrides.of(wanted)
    chosen = layers_named(wanted, layers)
    families = load_templates(folders, operations_of(wanted))
    check_study(wanted, families)
    return RunPlan(wanted, chosen, families)
