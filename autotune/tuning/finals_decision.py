"""measure -> best: compare the top trials of a layer in interleaved measurements.

The fastest median of a search is a noisy choice: hundreds of kernels are compared, minutes apart. In the finals a few
kernels run interleaved, in a random order in each round, and one of them runs twice. The difference within that pair is
the noise floor; smaller differences are ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.measurement.benchmark import paired_ratio
from autotune.trial import Timing, Trial

TOP_TRIALS = 8  # best trials by median that take part
SUSPICIOUS = 0.9  # a median below this times the earlier one is measured again in a fresh worker
LEAST_NOISE = 0.002  # minimum of the noise floor, as a fraction


@dataclass(frozen=True, slots=True)
class Contender:
    """A trial in the finals and its samples there."""

    trial: Trial
    timing: Timing
    source_size: int
    """characters of the rendered text; the shorter one of two equal kernels counts as simpler"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The winner against one other: `win`, `tie` or `loss`, from paired rounds and the noise floor."""

    verdict: str
    ratio: float
    """median over rounds of winner's time / other's time"""
    low: float
    high: float
    """95 % confidence interval of the ratio"""


def entrants(trials: Sequence[Trial], keep: Sequence[Trial]) -> list[Trial]:
    """The finalists: the TOP_TRIALS best, each family's best, and `keep` (default, incumbent), each once."""
    ranked = sorted((trial for trial in trials if trial.median_us is not None), key=_median)
    distinct = list({trial.source_hash: trial for trial in reversed(ranked)}.values())[::-1]
    families = {trial.config.template: trial for trial in reversed(distinct)}
    wanted = [*distinct[:TOP_TRIALS], *families.values(), *(trial for trial in keep if trial.median_us is not None)]
    return sorted({trial.source_hash: trial for trial in wanted}.values(), key=_median)


def noise_floor(first: Timing, second: Timing) -> float:
    """The fraction by which a kernel differs from itself: the A/A pair's interval around 1, at least LEAST_NOISE."""
    low, _, high = paired_ratio(first.samples_us, second.samples_us)
    return max(abs(low - 1), abs(high - 1), LEAST_NOISE)


def compare(ours: Timing, theirs: Timing, noise: float) -> Comparison:
    """Whether ours is faster than theirs by more than the noise, in paired rounds."""
    low, ratio, high = paired_ratio(ours.samples_us, theirs.samples_us)
    verdict = "win" if high < 1 - noise else "loss" if low > 1 + noise else "tie"
    return Comparison(verdict, ratio, low, high)


def decide(contenders: Sequence[Contender], incumbent: int | None, noise: float) -> Contender:
    """The winner: the fastest, unless it ties with the incumbent (a trial's number), else with a simpler kernel."""
    fastest = min(contenders, key=lambda contender: contender.timing.median_us)
    tied = [
        contender
        for contender in contenders
        if contender is fastest or compare(fastest.timing, contender.timing, noise).verdict == "tie"
    ]
    for contender in tied:
        if contender.trial.number == incumbent:
            return contender
    return min(tied, key=lambda contender: (contender.source_size, contender.timing.median_us))


def _median(trial: Trial) -> float:
    return trial.median_us or 0.0
