"""measure -> best: the finals of one layer, held: who enters, timed in turns, decided by `finals`, stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.devices.device import Baseline
from autotune.evaluation.evaluate import Evaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.store import Finals, Scope, Store, Verdict
from autotune.trial import Config, Timing, Trial
from autotune.tuning.finals import SUSPICIOUS, Comparison, Contender, compare, decide, entrants, noise_floor

FINALS_S = 4.0  # of one layer's finals, wall clock


@dataclass(frozen=True, slots=True)
class FinalsPlan:
    """What the finals of every layer of a run are held with."""

    baselines: tuple[Baseline, ...] = ()
    """what runs beside the kernels, such as cuDNN"""
    budget_s: float = FINALS_S
    """of one layer's finals, wall clock"""
    on_interrupt: bool = False
    """held also when the run was asked to stop, for the layer at hand"""


PLAIN_FINALS = FinalsPlan()


@dataclass(frozen=True, slots=True)
class FinalsResult:
    """What the finals of a layer said."""

    winner: Trial
    timing: Timing
    """the winner's, in the finals"""
    moved: bool
    """whether the winner is not the trial with the smallest median of the search"""
    noise: float
    """fraction by which a kernel differs from itself"""
    verdicts: tuple[tuple[str, Comparison], ...]
    """what the winner was compared with, and how it stands"""


def hold_finals(
    plan: FinalsPlan,
    evaluator: Evaluator,
    store: Store,
    scope: Scope,
    *,
    bounds: Mapping[str, BoundTemplate],
    trials: Sequence[Trial],
    default: Config | None,
    incumbent: Trial | None,
    cache: str,
    seed: int,
) -> FinalsResult | None:
    """Time the leaders of a layer in turns, decide, and store what was said; None when there is nothing to compare.

    The evaluator has begun the layer. `default` and `incumbent` (the previous best) take part whatever their rank.
    """
    defaults = [trial for trial in trials if trial.config == default]
    entered = entrants(trials, [*defaults, *([incumbent] if incumbent else [])])
    if len(entered) == 1 and not plan.baselines:
        return None
    sources = [render(bounds[trial.config.template], trial.config) for trial in entered]
    compiled = [evaluator.compile(source) for source in sources]
    kernels = [(source, binary.result()) for source, binary in zip(sources, compiled, strict=True)]

    def timed() -> tuple[Timing, ...]:
        """Timings of the kernels, of the first once more (the A/A pair), and of the baselines."""
        return evaluator.finals([*kernels, kernels[0]], plan.baselines, cache=cache, budget_s=plan.budget_s, seed=seed)

    timings = unsuspicious(timed, entered, evaluator)
    noise = noise_floor(timings[0], timings[len(entered)])
    contenders = [
        Contender(trial, timing, len(source.program.text))
        for trial, timing, source in zip(entered, timings, sources, strict=False)
    ]
    winner = decide(contenders, incumbent.number if incumbent else None, noise)
    others = _others(contenders, winner, defaults, incumbent)
    others += [
        (baseline.name, timing, None)
        for baseline, timing in zip(plan.baselines, timings[len(entered) + 1 :], strict=True)
    ]
    compared = tuple((against, compare(winner.timing, timing, noise)) for against, timing, _ in others)
    store.add_finals(
        scope,
        Finals(
            winner=winner.trial.number,
            timings=tuple((contender.trial.number, contender.timing) for contender in contenders),
            verdicts=tuple(
                Verdict(against, comparison.verdict, winner.timing.median_us, timing.median_us, number)
                for (against, timing, number), (_, comparison) in zip(others, compared, strict=True)
            ),
        ),
    )
    store.set_noise_floor(evaluator.info, evaluator.environment, scope.policy, noise * winner.timing.median_us, noise)
    fastest = min(trials, key=lambda trial: trial.median_us or math.inf)
    return FinalsResult(winner.trial, winner.timing, winner.trial.source_hash != fastest.source_hash, noise, compared)


def unsuspicious(
    timed: Callable[[], tuple[Timing, ...]], entered: Sequence[Trial], evaluator: Evaluator
) -> tuple[Timing, ...]:
    """Timings; taken again in a fresh worker when one is much smaller than it was in the search."""
    timings = timed()
    for trial, timing in zip(entered, timings, strict=False):
        if timing.median_us < SUSPICIOUS * (trial.median_us or 0.0):
            evaluator.refresh()
            return timed()
    return timings


def _others(
    contenders: Sequence[Contender], winner: Contender, defaults: Sequence[Trial], incumbent: Trial | None
) -> list[tuple[str, Timing, int | None]]:
    """What the winner is compared with, of the kernels: name, timing and trial number."""
    others: list[tuple[str, Timing, int | None]] = []
    for contender in contenders:
        if contender.trial is winner.trial:
            continue
        if incumbent and contender.trial.number == incumbent.number:
            others.append(("previous best", contender.timing, contender.trial.number))
        if contender.trial in defaults:
            others.append(("default", contender.timing, contender.trial.number))
    return others
