"""The summary of a tuning run as text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from autotune.errors import shortened
from autotune.escape import counted
from autotune.problem import Layer
from autotune.study import Study
from autotune.trial import Trial

if TYPE_CHECKING:
    from autotune.tuning.layer_finals import Compared, FinalsResult
    from autotune.tuning.layer_result import DesignResult, LayerResult
    from autotune.tuning.trial_log import Seen

_MESSAGES = 8  # distinct failures that a layer's summary shows
_NUMBER = re.compile(r"\d+")


def summary(result: LayerResult) -> Iterator[str]:
    """Lines about a layer: evaluations, distinct failures, why it stopped, the result of the finals."""
    failures = ", ".join(f"{count} {outcome}" for outcome, count in sorted(result.failures.items()))
    yield (
        f"{result.name}: {result.evaluated} evaluated ({result.new} now), "
        f"{failures or 'no failures'}; stopped: {result.stopped}"
    )
    for count, seen in _kinds(result.messages.values())[:_MESSAGES]:
        yield f"  {count} x {shortened(' '.join(seen.message.split()), 160)} (such as {seen.config})"
    for design in result.designs:
        yield f"  {design.by.replace('_', ' ')}: {design_words(design, result.best)}"
    if result.finals:
        yield f"  finals: {result.finals.winner.config}: {result.finals.timing.median_us:.2f} us" + (
            f", not the search's fastest; noise floor {result.finals.noise:.2%}"
            if result.finals.moved
            else f"; noise floor {result.finals.noise:.2%}"
        )
        yield from _verdicts(result.finals)


def _kinds(messages: Collection[Seen]) -> list[tuple[int, Seen]]:
    """Group failures whose messages differ only in numbers, such as bytes beyond a limit; each with its most frequent
    message.
    """
    kinds: defaultdict[str, list[Seen]] = defaultdict(list)
    for seen in messages:
        kinds[_NUMBER.sub("0", seen.message)].append(seen)
    found = [(sum(seen.count for seen in kind), max(kind, key=lambda seen: seen.count)) for kind in kinds.values()]
    return sorted(found, key=lambda each: -each[0])


def _verdicts(finals: FinalsResult) -> Iterator[str]:
    """The winner compared with other kernels, and with the fastest and all others of each library that the study
    admits.
    """

    def other_class(each: Compared) -> str:
        return "" if each.accuracy == finals.winner.accuracy else f", another accuracy class ({each.accuracy})"

    if finals.unbeaten:
        yield f"  nothing is faster than the baseline {finals.unbeaten} itself"
    for each in finals.compared:
        if not each.library:
            against = "the starting config" if each.against == "default" else each.against
            yield f"  {_verdict(each)} against {against}: {_times_as_fast(each)}{other_class(each)}"
    for library in dict.fromkeys(each.library for each in finals.compared if each.library):
        rival = finals.rival(library)
        if rival is not None:
            time = f"{rival.time_us:.2f} us{other_class(rival)}"
            yield f"  {_verdict(rival)} against {rival.against}: {_times_as_fast(rival)} ({time})"
        for each in finals.compared:
            if each.library == library and each is not rival:
                yield f"    {each.against}: {each.time_us:.2f} us{other_class(each)}; {_times_as_fast(each)}"
    for name, why in finals.refused:
        yield f"    {name}: cannot run this layer: {why}"


def _verdict(compared: Compared) -> str:
    return compared.comparison.verdict.upper()


def _times_as_fast(compared: Compared) -> str:
    """The ratio; for a tie its confidence interval instead, which shows no difference beyond noise."""
    found = compared.comparison
    if found.verdict != "tie":
        return f"{1 / found.ratio:.3f} times as fast"
    most = f"{1 / found.low:.3f}" if found.low > 0 else "any number of"
    return f"not beyond noise, between {1 / found.high:.3f} and {most} times as fast (95 %)"


def design_words(design: DesignResult, best: Trial | None) -> str:
    """How many configs a search started with, where they come from and whether they helped."""
    began = counted(design.used, "config")
    if design.layers:
        (nearest, distance), *others = design.layers
        began += f", from {nearest} (distance {distance:.2f})" + (f" and {len(others)} more" if others else "")
    if design.best is None or best is None or not design.best.median_us or not best.median_us:
        return f"{began}; none of them is correct"
    if design.best.config == best.config:
        return f"{began}; the best of all is one of them"
    if best.median_us > design.best.median_us:
        slower = best.median_us / design.best.median_us - 1
        return f"{began}; the winner of the finals was {slower:.1%} slower in the search than the best of them"
    return f"{began}; the best of all is {design.best.median_us / best.median_us - 1:.1%} faster than the best of them"


def left(study: Study, layers: Sequence[Layer], results: Sequence[LayerResult], done: str) -> str:
    """What an interrupted run has not done."""
    begun = {result.layer.name: result for result in results}
    lacking = []
    for layer in layers:
        result = begun.get(layer.name)
        if result is None:
            lacking.append(f"{study.name}.{layer.name}")
        elif result.cut_short:
            lacking.append(f"{result.name} ({result.evaluated} of {study.trials} evaluated)")
    if lacking and (study.trials_total is not None or study.time_budget_total_s is not None):
        of = "" if study.trials_total is None else f" of {study.trials_total}"
        evaluated = sum(result.evaluated for result in results)
        lacking = [f"{study.name} ({evaluated}{of} evaluated, {len(results)} of {counted(len(layers), 'layer')} begun)"]
    words = f"not {done}: {', '.join(lacking)}" if lacking else f"every layer was {done}"
    return f"{words}; end-to-end times may be missing" if study.end_to_end else words
