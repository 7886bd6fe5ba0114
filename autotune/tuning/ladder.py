"""Tune each technique of a study separately, and compare its best kernels with the first and the previous technique's.

Each technique is an ordinary tuning run of the same study, narrowed to one family and a few values. Like all trials,
its trials are stored, resumed and never repeated, and a ladder can be read from them at any time. There are no finals,
because a technique's best kernel need not be the layer's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.errors import NoTemplate, StudyError
from autotune.evaluation.evaluator import Evaluator
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.store import Store, TrialRow
from autotune.study import Study, Technique
from autotune.trial import Config, Outcome
from autotune.tuning.trial_log import Progress
from autotune.tuning.tune import tune


@dataclass(frozen=True, slots=True)
class LadderStep:
    """The result of a technique on a layer."""

    technique: Technique
    layer: str
    best: TrialRow | None
    """fastest trial of the technique; None: no kernel is correct, or the technique does not support the layer"""
    over_first: float | None
    """speed-up over the first technique"""
    over_previous: float | None
    """speed-up over the previous technique"""
    evaluated: int
    why_not: str = ""

    @property
    def best_us(self) -> float | None:
        """The median of the technique's fastest trial."""
        return None if self.best is None else self.best.median_us

    @property
    def config(self) -> Config | None:
        """The config of the technique's fastest trial."""
        return None if self.best is None else self.best.trial.config

    @property
    def reported_ms(self) -> float | None:
        """The technique's time in milliseconds according to the report, on the report's GPU."""
        return self.technique.reported_ms.get(self.layer)


def require_techniques(study: Study) -> None:
    """Raise StudyError if a study has no techniques."""
    if not study.techniques:
        raise StudyError(f"{study.shown}: technique: a ladder needs [[technique]] tables")


def climb(
    study: Study,
    templates: Mapping[str, KernelTemplate],
    evaluator: Evaluator,
    store: Store,
    *,
    layers: Sequence[Layer],
    observe: Callable[[Progress], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
) -> list[LadderStep]:
    """Tune every technique of a study on each layer. Raises StudyError if there are no techniques."""
    require_techniques(study)
    refused: dict[tuple[str, str], str] = {}
    for technique in study.techniques:
        for layer in layers:
            if stopping():
                break
            narrowed = study.narrowed(technique)
            try:
                tune(
                    *(narrowed, templates, evaluator, store),
                    layers=(layer,),
                    observe=observe,
                    stopping=stopping,
                    finals=None,
                )
            except NoTemplate as error:
                refused[technique.name, layer.name] = str(error)
    here = (evaluator.info.identity, evaluator.environment.identity, study.measurement_mode)
    began = any(row.name == study.name for row in store.studies.list())
    rows = store.trials.list(study.name) if began else ()
    return ladder_steps(study, layers, circumstances(rows).get(here, ()), refused)


Circumstances = tuple[tuple[str, str, int, int, int], tuple[str, str, str], str]
"""The circumstances shared by all trials of a ladder: device and environment identities, and a measurement mode."""


def circumstances(rows: Sequence[TrialRow]) -> dict[Circumstances, list[TrialRow]]:
    """Group trials by device, environment and measurement mode, in order of first occurrence."""
    found: dict[Circumstances, list[TrialRow]] = {}
    for row in rows:
        found.setdefault((row.device.identity, row.environment.identity, row.measurement_mode), []).append(row)
    return found


def ladder_steps(
    study: Study,
    layers: Sequence[Layer],
    rows: Sequence[TrialRow],
    refused: Mapping[tuple[str, str], str],
) -> list[LadderStep]:
    """Return the ladder, layer by layer, from a study's trials on one device, in one environment and measurement mode.

    If a config was tried several times, its last trial counts. `refused` contains the reason for each pair of technique
    and layer (by name) for which there is nothing to try.
    """
    found: list[LadderStep] = []
    for layer in layers:
        first_us = previous_us = None
        of_layer = [row for row in rows if row.problem == layer.problem]
        for technique in study.techniques:
            own = _newest([row for row in of_layer if technique.has(row.trial.config)])
            timed = [row for row in own if row.median_us is not None]
            best = min(timed, key=lambda row: row.median_us or 0.0, default=None)
            best_us = best.median_us if best else None
            step = LadderStep(
                technique=technique,
                layer=layer.name,
                best=best,
                over_first=_ratio(first_us, best_us),
                over_previous=_ratio(previous_us, best_us),
                evaluated=len({row.trial.source_hash for row in own if row.trial.compiled}),
                why_not="" if best else refused.get((technique.name, layer.name)) or _commonest_failure(own),
            )
            found.append(step)
            first_us, previous_us = first_us or best_us, best_us or previous_us
    return found


def _newest(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Return each config's last trial, because a config stands for a different kernel after its family has changed."""
    finished = [row for row in rows if row.trial.outcome != Outcome.RUNNING]
    return list({row.trial.config: row for row in sorted(finished, key=lambda row: (row.started_at, row.id))}.values())


def _commonest_failure(rows: Sequence[TrialRow]) -> str:
    """Return the most frequent message among a technique's failed trials."""
    failed = Counter(row.trial.message for row in rows)
    return failed.most_common(1)[0][0] if failed else "not tried"


def _ratio(before_us: float | None, now_us: float | None) -> float | None:
    return before_us / now_us if before_us and now_us else None
