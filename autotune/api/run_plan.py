"""Plan a run: read a study, replace what the user overrules, and check it with its families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from autotune.api.study_names import as_study, layers_named
from autotune.errors import StudyError
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.problem import Layer
from autotune.study import NamedRule, Study, operations_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Overrides:
    """What replaces a study's own words; None keeps them."""

    templates: tuple[str, ...] | None = None
    """families"""
    trials: int | None = None
    time_budget_s: float | None = None
    trials_total: int | None = None
    time_budget_total_s: float | None = None
    stop_below: float | None = None
    seed: int | None = None
    sampler: str | None = None
    warm_start: bool | None = None
    prior: bool | None = None

    def of(self, study: Study) -> Study:
        """The study with these words."""
        return replace(
            study,
            templates=_first(self.templates, study.templates),
            trials=_first(self.trials, study.trials),
            time_budget_s=_first(self.time_budget_s, study.time_budget_s),
            trials_total=_first(self.trials_total, study.trials_total),
            time_budget_total_s=_first(self.time_budget_total_s, study.time_budget_total_s),
            stop_below=_first(self.stop_below, study.stop_below),
            seed=_first(self.seed, study.seed),
            sampler=_first(self.sampler, study.sampler),
            warm_start=_first(self.warm_start, study.warm_start),
            prior=_first(self.prior, study.prior),
        )


def _first(given: T | None, own: T) -> T:
    return own if given is None else given


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A study whose families exist and serve it."""

    study: Study
    layers: tuple[Layer, ...]
    """of the study, or some of them"""
    families: Mapping[str, KernelTemplate]

    @property
    def names(self) -> frozenset[str]:
        """`study.layer` of each layer."""
        return frozenset(f"{self.study.name}.{layer.name}" for layer in self.layers)

    def rule(self, target: str | None, trials: int | None) -> NamedRule | None:
        """The rule that is searched in place of the layers: `target`, else the study's; None where there is none.

        `trials` replace the rule's where given. Raises StudyError where the study has no such rule.
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
    """Read a study, replace what is overruled, and check it with its families, those of `folders` among them.

    Opens neither a device nor, but for the text of a stored study, the database. Raises StudyError and TemplateError.
    """
    from autotune.tuning.tune import check_study

    wanted = as_study(study, db, folders)
    if overrides is not None:
        wanted = overrides.of(wanted)
    chosen = layers_named(wanted, layers)
    families = load_templates(folders, operations_of(wanted))
    check_study(wanted, families)
    return RunPlan(wanted, chosen, families)
