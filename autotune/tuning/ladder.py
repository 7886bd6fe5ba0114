"""A study's techniques one after another: the best kernel of each on each layer, against the first and the one before.

Each technique is an ordinary tuning run of the same study, narrowed to one family and a few values, so its trials are
stored, resumed and never repeated like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.errors import NoTemplate, StudyError
from autotune.evaluation.evaluate import Evaluator
from autotune.family.space import narrow
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.store import Store
from autotune.study import Study, Technique
from autotune.trial import Config
from autotune.tuning.layer_finals import FinalsPlan
from autotune.tuning.layer_record import Progress
from autotune.tuning.tune import tune

_FINALS = FinalsPlan(budget_s=0.5)  # of each technique on each layer


@dataclass(frozen=True, slots=True)
class Rung:
    """One technique on one layer."""

    technique: Technique
    layer: str
    best_us: float | None
    """None: no correct kernel, or the layer does not fit the technique"""
    config: Config | None
    over_first: float | None
    """speed-up over the first technique"""
    over_previous: float | None
    """speed-up over the technique before"""
    evaluated: int
    why_not: str = ""

    @property
    def reported_ms(self) -> float | None:
        """The report's own time on its GPU."""
        return self.technique.reported_ms.get(self.layer)


def check_techniques(study: Study, templates: Mapping[str, KernelTemplate]) -> None:
    """Raise StudyError when a study has no techniques, or one names a family, parameter or value that there is not."""
    where = study.path or study.name
    if not study.techniques:
        raise StudyError(f"{where}: technique: a ladder needs [[technique]] tables")
    for technique in study.techniques:
        if technique.template not in templates:
            raise StudyError(
                f"{where}: technique {technique.name!r}: no template named {technique.template!r}; "
                f"there are {', '.join(templates)}"
            )
        try:
            narrow(templates[technique.template], technique.space)
        except StudyError as error:
            raise StudyError(f"{where}: technique {technique.name!r}: {error}") from None


def climb(
    study: Study,
    templates: Mapping[str, KernelTemplate],
    evaluator: Evaluator,
    store: Store,
    *,
    layers: Sequence[Layer],
    observe: Callable[[Progress], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
) -> list[Rung]:
    """Tune every technique on each of the layers. Raises StudyError as `check_techniques` does."""
    check_techniques(study, templates)
    first: dict[str, float] = {}
    previous: dict[str, float] = {}
    rungs: list[Rung] = []
    for technique in study.techniques:
        for layer in layers:
            if stopping():
                return rungs
            try:
                (result,) = tune(
                    study.narrowed(technique),
                    templates,
                    evaluator,
                    store,
                    layers=(layer,),
                    observe=observe,
                    stopping=stopping,
                    finals=_FINALS,
                )
            except NoTemplate as error:
                rungs.append(Rung(technique, layer.name, None, None, None, None, 0, str(error)))
                continue
            best_us = result.best.median_us if result.best else None
            rungs.append(
                Rung(
                    technique=technique,
                    layer=layer.name,
                    best_us=best_us,
                    config=result.best.config if result.best else None,
                    over_first=_ratio(first.get(layer.name), best_us),
                    over_previous=_ratio(previous.get(layer.name), best_us),
                    evaluated=result.evaluated,
                    why_not="" if result.best else result.why_not,
                )
            )
            if best_us is not None:
                first.setdefault(layer.name, best_us)
                previous[layer.name] = best_us
    return rungs


def _ratio(before_us: float | None, now_us: float | None) -> float | None:
    return before_us / now_us if before_us and now_us else None
