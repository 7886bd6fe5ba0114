"""measure -> best: choose a layer's finalists, time them interleaved, pick the winner and store the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from autotune.compilation.compile import Binary
from autotune.devices.device import Baseline
from autotune.devices.torch_baseline import baselines_of
from autotune.errors import Disproved
from autotune.evaluation.evaluator import Evaluator
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.measurement.benchmark import paired_ratio
from autotune.problem import Problem
from autotune.store import BASELINE, Finals, Verdict
from autotune.trial import Config, Timing, Trial, comparable
from autotune.tuning.layer_store import StoredLayer
from autotune.workers.worker import FinalsRequest, FinalsTimings

TOP_TRIALS = 8  # number of best trials by median that take part
SUSPICIOUS = 0.9  # if a median is below this fraction of the earlier median, a fresh worker measures again
LEAST_NOISE = 0.002  # minimum of the noise floor, as a fraction


@dataclass(frozen=True, slots=True)
class Contender:
    """A trial in the finals, with the samples taken there."""

    trial: Trial
    timing: Timing
    source_size: int
    """characters of the rendered source; of two equally fast kernels, the shorter one counts as simpler"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The winner compared with another contender: `win`, `tie` or `loss`, from paired rounds and the noise floor."""

    verdict: str
    ratio: float
    """median over rounds of (winner's time / other's time)"""
    low: float
    high: float
    """95 % confidence interval of the ratio"""


def entrants(trials: Sequence[Trial], keep: Sequence[Trial]) -> list[Trial]:
    """Return the finalists without duplicates: the TOP_TRIALS best, the best of each family, and `keep`.

    `keep` contains the default config's trial and the incumbent.
    """
    ranked = sorted((trial for trial in trials if trial.median_us is not None), key=_median)
    distinct = list({trial.source_hash: trial for trial in reversed(ranked)}.values())[::-1]
    families = {trial.config.template: trial for trial in reversed(distinct)}
    wanted = [*distinct[:TOP_TRIALS], *families.values(), *(trial for trial in keep if trial.median_us is not None)]
    return sorted({trial.source_hash: trial for trial in wanted}.values(), key=_median)


def noise_floor(first: Timing, second: Timing) -> float:
    """Return the fraction by which the two timings of the same kernel in an A/A pair differ.

    It is the distance from 1 to the far end of the ratio's confidence interval, and at least LEAST_NOISE.
    """
    low, _, high = paired_ratio(first.samples_us, second.samples_us)
    return max(abs(low - 1), abs(high - 1), LEAST_NOISE)


def compare(ours: Timing, theirs: Timing, noise: float) -> Comparison:
    """Compare two kernels in paired rounds. A kernel wins if it is faster by more than the noise.

    Ratios between 1 / (1 + noise) and 1 + noise are within the noise. A much faster kernel can therefore win even if
    two timings of the same kernel differ by more than 100 %.
    """
    low, ratio, high = paired_ratio(ours.samples_us, theirs.samples_us)
    verdict = "win" if high < 1 / (1 + noise) else "loss" if low > 1 + noise else "tie"
    return Comparison(verdict, ratio, low, high)


def decide(contenders: Sequence[Contender], incumbent: int | None, noise: float) -> Contender:
    """Return the winner: the incumbent (a trial number) if it ties with the fastest, or else the simplest fast kernel.

    A simpler kernel only replaces the fastest if the ratio of their medians is within the noise too, because almost any
    two kernels tie after few or disturbed rounds.
    """
    fastest = min(contenders, key=lambda contender: contender.timing.median_us)
    as_fast = [fastest]
    for contender in contenders:
        against = compare(fastest.timing, contender.timing, noise)
        if against.verdict != "tie" or contender is fastest:
            continue
        if contender.trial.number == incumbent:
            return contender
        if against.ratio >= 1 / (1 + noise):
            as_fast.append(contender)
    return min(as_fast, key=lambda contender: (contender.source_size, contender.timing.median_us))


def _median(trial: Trial) -> float:
    return trial.median_us or 0.0


FINALS_S = 4.0  # limit for one layer's finals, wall clock
TOGETHER_S = 30.0  # limit for all finals of a run, wall clock
SHARE = 0.2  # maximum share of a total time budget that all finals may use


@dataclass(frozen=True, slots=True)
class FinalsPlan:
    """The settings for all finals of a run."""

    libraries: tuple[str, ...] = ()
    """libraries whose baselines take part, such as cudnn and inductor"""
    budget_s: float = FINALS_S
    """limit for one layer's finals, wall clock"""
    together_s: float | None = TOGETHER_S
    """limit for all finals of a run; None: no limit"""

    def each_s(self, layers: int, total_s: float | None) -> float:
        """Return the seconds that one layer's finals may take if `layers` layers share the overall limit.

        The limit is `together_s` and, if there is a total time budget of `total_s`, at most SHARE of that budget.
        """
        if self.together_s is None:
            return self.budget_s
        together_s = self.together_s if total_s is None else min(self.together_s, SHARE * total_s)
        return min(self.budget_s, together_s / max(layers, 1))


PLAIN_FINALS = FinalsPlan()

InTurn = tuple[FinalsTimings, float]
"""Interleaved timings with their noise floor, which is the fraction by which two timings of the same kernel differ."""
Held = Generator[Future[object], None, "FinalsResult | None"]
"""A generator that runs finals. It resumes when the yielded future is done, so that other layers don't have to wait."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The finals' winner compared with another kernel."""

    against: str
    time_us: float
    """median of the other kernel in the same finals"""
    accuracy: str
    """accuracy class of the other kernel; a class that the study does not admit means a different computation"""
    comparison: Comparison
    library: str = ""
    """the library of a baseline; empty for a kernel"""
    trial_number: int | None = None
    """number of the other kernel's trial; None for a baseline"""


@dataclass(frozen=True, slots=True)
class FinalsResult:
    """The result of a layer's finals."""

    winner: Trial
    timing: Timing
    """the winner's timing in the finals"""
    moved: bool
    """whether the winner differs from the trial with the smallest median in the search"""
    noise: float
    """fraction by which two timings of the same kernel differ"""
    compared: tuple[Compared, ...]
    """comparisons of the winner with the other contenders that a verdict names"""
    admitted: tuple[str, ...]
    """accuracy classes that the study admits for this layer"""
    refused: tuple[tuple[str, str], ...] = ()
    """baselines that cannot run the layer, each with the reason"""
    unbeaten: str = ""
    """the winner's family if it is a baseline family, otherwise empty"""

    def rival(self, library: str) -> Compared | None:
        """Return a library's fastest baseline in any accuracy class that the study admits, or None."""
        own = [each for each in self.compared if each.library == library and each.accuracy in self.admitted]
        return min(own, key=lambda each: each.time_us, default=None)


@dataclass(frozen=True, slots=True)
class LayerFinals:
    """The finals of one layer."""

    plan: FinalsPlan
    evaluator: Evaluator
    writer: StoredLayer
    problem: Problem
    on_device: Callable[[Callable[[], InTurn]], Future[InTurn]]
    """runs a measurement of this layer after the measurements of earlier finals"""
    bounds: Mapping[str, BoundTemplate]
    admitted: tuple[str, ...]
    """accuracy classes that the study admits for this layer"""
    default: Config | None
    """a config that takes part regardless of rank"""
    cache: str
    seed: int
    disprove: Callable[[Trial, str], None]
    """called with the trial and the message of each kernel that is wrong after timing"""

    def hold(self, trials: Sequence[Trial], incumbent: Trial | None) -> Held:
        """Time the top trials interleaved, pick the winner, and store and return the result.

        Returns None if there is nothing to compare. The `incumbent`, which is the previous best, takes part regardless
        of its rank. `disprove` is called for each kernel that turns out wrong after timing; the finals then run again
        without these kernels.
        """
        while True:
            entered = entrants(trials, [*self._defaults(trials), *([incumbent] if incumbent else [])])
            if not entered or (len(entered) == 1 and not self.plan.libraries):
                return None
            sources = [render(self.bounds[trial.config.template], trial.config) for trial in entered]
            compiled = [self.evaluator.compile(source) for source in sources]
            for future in compiled:
                yield cast("Future[object]", future)
            kernels = [(source, binary.result()) for source, binary in zip(sources, compiled, strict=True)]
            measured = self.on_device(
                partial(
                    timed_in_turn,
                    self.evaluator,
                    entered,
                    kernels,
                    self._baselines(),
                    cache=self.cache,
                    budget_s=self.plan.budget_s,
                    seed=self.seed,
                )
            )
            yield cast("Future[object]", measured)
            try:
                timings, noise = measured.result()
            except Disproved as disproved:
                wrong = {entered[at].source_hash: words for at, words in disproved.messages.items()}
                for at, words in disproved.messages.items():
                    self.disprove(entered[at], words)
                trials = [trial for trial in trials if trial.source_hash not in wrong]
                incumbent = None if incumbent is None or incumbent.source_hash in wrong else incumbent
                continue
            contenders = [
                Contender(trial, timing, len(source.program.text))
                for trial, timing, source in zip(entered, timings.kernels, sources, strict=True)
            ]
            return self._decided(contenders, timings.baselines, noise, trials, incumbent)

    def _baselines(self) -> list[Baseline]:
        return [each for library in self.plan.libraries for each in baselines_of(library, self.problem, self.admitted)]

    def _defaults(self, trials: Sequence[Trial]) -> list[Trial]:
        return [trial for trial in trials if trial.config == self.default]

    def _decided(
        self,
        contenders: Sequence[Contender],
        baselines: Sequence[Timing | str],
        noise: float,
        trials: Sequence[Trial],
        incumbent: Trial | None,
    ) -> FinalsResult:
        """Pick the winner, compare it with the other contenders, and store the result."""
        winner = decide(contenders, incumbent.number if incumbent else None, noise)
        compared = _others(contenders, winner, self._defaults(trials), incumbent, self.bounds, noise)
        refused = _without_kernel(trials, [contender.trial for contender in contenders], self.bounds)
        for baseline, timing in zip(self._baselines(), baselines, strict=True):
            if isinstance(timing, str):
                refused.append((baseline.name, timing))
                continue
            comparison = compare(winner.timing, timing, noise)
            accuracy = baseline.accuracy(self.problem.dtype)
            compared.append(Compared(baseline.name, timing.median_us, accuracy, comparison, library=baseline.library))
        self._store(contenders, winner, compared, noise)
        fastest = min(trials, key=lambda trial: trial.median_us or math.inf)
        family = winner.trial.config.template
        return FinalsResult(
            winner=winner.trial,
            timing=winner.timing,
            moved=winner.trial.source_hash != fastest.source_hash,
            noise=noise,
            compared=tuple(compared),
            admitted=self.admitted,
            refused=tuple(refused),
            unbeaten=family if self.bounds[family].template.baseline else "",
        )

    def _store(
        self, contenders: Sequence[Contender], winner: Contender, compared: Sequence[Compared], noise: float
    ) -> None:
        median_us = winner.timing.median_us
        verdicts = tuple(
            Verdict(each.against, each.comparison.verdict, median_us, each.time_us, each.trial_number, each.accuracy)
            for each in compared
        )
        timings = tuple((contender.trial.number, contender.timing) for contender in contenders)
        finals = Finals(winner=winner.trial.number, timings=timings, verdicts=verdicts)
        self.writer.add_finals(finals, noise * median_us, noise)


def timed_in_turn(
    evaluator: Evaluator,
    trials: Sequence[Trial],
    kernels: Sequence[tuple[KernelSource, Binary]],
    baselines: Sequence[Baseline] = (),
    *,
    cache: str,
    budget_s: float,
    seed: int,
) -> InTurn:
    """Time the kernels of these trials interleaved. The first one is timed twice to find the noise floor.

    If a kernel is much faster than in the search, all of them are timed again in a fresh worker. Kernels that lost the
    race in the search don't count, because their only sample is their first run. Raises Disproved for kernels that are
    no longer correct.
    """

    def timed() -> FinalsTimings:
        try:
            return evaluator.finals(FinalsRequest((*kernels, kernels[0]), tuple(baselines), cache, budget_s, seed))
        except Disproved as disproved:
            raise Disproved({at % len(kernels): words for at, words in disproved.messages.items()}) from disproved

    timings = timed()
    for trial, timing in zip(trials, timings.kernels, strict=False):
        alike = trial.timing is not None and trial.reason != "too_slow" and comparable(trial.timing, timing)
        if alike and timing.median_us < SUSPICIOUS * (trial.median_us or 0.0):
            evaluator.refresh()
            timings = timed()
            break
    *own, again = timings.kernels
    return replace(timings, kernels=tuple(own)), noise_floor(own[0], again)


def _without_kernel(
    trials: Sequence[Trial], entered: Sequence[Trial], bounds: Mapping[str, BoundTemplate]
) -> list[tuple[str, str]]:
    """Return the baseline families that have no correct kernel for the layer, each with its last trial's message."""
    present = {trial.config.template for trial in entered}
    messages = {trial.config.template: trial.message for trial in trials}
    missing = (name for name, bound in bounds.items() if bound.template.baseline and name not in present)
    return [(f"{BASELINE}{name}", messages.get(name) or "no trial of it") for name in missing]


def _others(
    contenders: Sequence[Contender],
    winner: Contender,
    defaults: Sequence[Trial],
    incumbent: Trial | None,
    bounds: Mapping[str, BoundTemplate],
    noise: float,
) -> list[Compared]:
    """Compare the winner with the previous best, the default, and the fastest kernel of each baseline family."""
    others: list[Compared] = []
    fastest: dict[str, Contender] = {}
    for contender in sorted(contenders, key=lambda contender: contender.timing.median_us):
        fastest.setdefault(contender.trial.config.template, contender)
    for contender in contenders:
        if contender.trial is winner.trial:
            continue
        trial, timing = contender.trial, contender.timing
        names = ["previous best"] if incumbent and trial.number == incumbent.number else []
        names += ["default"] if trial in defaults else []
        family = trial.config.template
        if bounds[family].template.baseline and contender is fastest[family] and family != winner.trial.config.template:
            names.append(f"{BASELINE}{family}")
        comparison = compare(winner.timing, timing, noise)
        others += [
            Compared(name, timing.median_us, trial.accuracy, comparison, trial_number=trial.number) for name in names
        ]
    return others
