"""A check's coverage: tested pairs, untested pairs with the reasons, and values that all failures share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.checking.cases import CasePlan, Factor
from autotune.checking.check import CheckRow, FamilyCheck
from autotune.checking.int32_overflow import BEYOND
from autotune.checking.pairwise import Share
from autotune.errors import Rejected
from autotune.escape import counted
from autotune.family.space import BoundTemplate
from autotune.trial import Config, Outcome

_NO_TIME = "not reached; --full tests all"
_RULES = "the space's rules reject them on every derived problem"
_SOME_RULES = f"{_RULES}, or no sampled config has them in a space too large to enumerate"

_NO_PROBLEM = "`supports` or the space's rules reject them, the problems are invalid, or they take too long"
_TRIED = 12  # maximum number of problems to try for the reason why a value is refused
_RARE = 4  # a value is rare if at most one in this many correct configs has it


@dataclass(frozen=True, slots=True)
class Gap:
    """A value, pairs of values or a problem that the check didn't exercise, with the reason."""

    what: str
    why: str
    pairs: tuple[str, ...] = ()
    """the pairs of values, if the gap stands for several pairs"""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of a finished check."""

    features: Share
    """pairs of features of the problems"""
    params: Share
    """pairs of parameter values"""
    mixed: Share
    """pairs of a feature and a parameter value"""
    gaps: tuple[Gap, ...]


def coverage(check: FamilyCheck) -> Coverage:
    """Return the number of tested pairs of supported features and parameter values, and the untested ones."""
    plan = check.plan
    derived = _features(plan) if plan.derivation.problems else []
    return Coverage(
        features=plan.covering.share(plan.features, plan.features),
        params=plan.covering.share(plan.params, plan.params),
        mixed=plan.covering.share(plan.features, plan.params),
        gaps=(*derived, *_params(plan), *_pairs(plan), *_problems(check)),
    )


def _features(plan: CasePlan) -> list[Gap]:
    gaps = []
    for place, number in enumerate(plan.features):
        factor = plan.factors[number]
        admitted, _ = plan.problems.values(place)
        feasible, covered = plan.covering.values(number)
        refused = [value for value, served in zip(factor.values, admitted, strict=True) if not served]
        gaps += _gap(factor, refused, "`supports` refuses it")
        empty = [value for value, *served in zip(factor.values, admitted, feasible, strict=True) if served == [1, 0]]
        gaps += _gap(factor, empty, f"no config is feasible: {_first_refusal(plan)}")
        late = [value for value, *served in zip(factor.values, feasible, covered, strict=True) if served == [1, 0]]
        gaps += _gap(factor, late, _NO_TIME)
    return gaps


def _gap(factor: Factor, values: Sequence[str], why: str) -> list[Gap]:
    return [Gap(f"{factor.name} {', '.join(values)}", why)] if values else []


def _first_refusal(plan: CasePlan) -> str:
    found = plan.derivation.without_config
    return f"{found[0][1]} (on {found[0][0]})" if found else "the rules of the space"


def _params(plan: CasePlan) -> list[Gap]:
    gaps = []
    for number, param in zip(plan.params, plan.template.params, strict=True):
        feasible, covered = plan.covering.values(number)
        for at, value in enumerate(param.values):
            if not feasible[at]:
                gaps.append(Gap(f"{param.name} = {value}", _refused(plan, ((number, at),))))
            elif not covered[at]:
                gaps.append(Gap(f"{param.name} = {value}", _NO_TIME))
    return gaps


def _refused(plan: CasePlan, wanted: Sequence[tuple[int, int]]) -> str:
    """Return why some parameter values are rejected: the shortest reason on any of a few problems."""
    reasons = []
    for subject in plan.subjects[:: max(1, len(plan.subjects) // _TRIED)]:
        values = {param.name: param.values[0] for param in plan.template.params}
        for number, at in wanted:
            param = plan.template.params[number - plan.params.start]
            values[param.name] = param.values[at]
        reasons.append(_reason(subject.bound, Config.of(plan.template.name, values)))
    reason = min(filter(None, reasons), key=len, default="")
    return f"rejected on every derived problem, for example: {reason}" if reason else _SOME_RULES


def _reason(bound: BoundTemplate, config: Config) -> str:
    try:
        bound.check(config)
    except Rejected as rejected:
        return rejected.message
    return ""


def _pairs(plan: CasePlan) -> list[Gap]:
    gaps = []
    every = (
        ("of features", plan.features, plan.features),
        ("of parameter values", plan.params, plan.params),
        ("of a feature and a parameter value", plan.features, plan.params),
    )
    for what, left, right in every:
        open_pairs = plan.covering.open_pairs(left, right, feasible=True)
        refused = plan.covering.open_pairs(left, right, feasible=False)
        why = _NO_PROBLEM if right == plan.features else _SOME_RULES if plan.sampled else _RULES
        for pairs, reason in ((open_pairs, _NO_TIME), (refused, why)):
            if pairs:
                said = tuple(f"{plan.factors[a].said(x)} {plan.factors[b].said(y)}" for a, x, b, y in pairs)
                gaps.append(Gap(f"{counted(len(pairs), 'pair')} {what}", reason, said))
    return gaps


def _problems(check: FamilyCheck) -> list[Gap]:
    plan = check.plan
    gaps = [Gap(f"layer {name}", why) for name, why in plan.left_out]
    gaps += [Gap(str(problem), why) for problem, why in check.refused.items()]
    for large in check.large:
        if large.config is None or not check.large_run:
            gaps.append(Gap(f"more than {BEYOND} elements, {large.bound.problem}", large.why_not or _NO_TIME))
    return gaps


def in_common(check: FamilyCheck, rows: Sequence[CheckRow], failed: Sequence[CheckRow]) -> tuple[str, ...]:
    """Return values, or pairs of values, that all failures have but no correct config.

    If there are none, return values that all failures share with only a few correct configs, since a broken branch
    may be right on some problems.
    """
    right = [row.factors for row in rows if row.outcome == Outcome.CORRECT and row.factors]
    wrong = [row.factors for row in failed if row.factors]
    if not wrong or not right:
        return ()
    factors = check.plan.factors
    shared = [at for at, value in enumerate(wrong[0]) if value >= 0 and all(row[at] == value for row in wrong)]
    least: dict[str, int] = {}
    for size in (1, 2):
        found = {
            " and ".join(factors[at].said(wrong[0][at]) for at in places): sum(
                all(row[at] == wrong[0][at] for at in places) for row in right
            )
            for places in itertools.combinations(shared, size)
        }
        if exclusive := tuple(words for words, count in found.items() if not count):
            return exclusive
        least = least or found
    fewest = min(least.values(), default=len(right))
    return tuple(
        f"{words} (also {count} correct configs)"
        for words, count in least.items()
        if count == fewest and _RARE * count <= len(right)
    )
