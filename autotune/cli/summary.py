"""Print the results of a tuning run: a summary of each layer, and end-to-end times."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from autotune.cli.output import note
from autotune.cli.tables import show
from autotune.columns import Cells, field_cells, key_columns
from autotune.errors import shortened
from autotune.escape import counted
from autotune.problem import Layer
from autotune.study import Study
from autotune.trial import Trial

if TYPE_CHECKING:
    from autotune.store import EndToEndRow
    from autotune.tuning.end_to_end import EndToEndResult
    from autotune.tuning.layer_finals import Compared, FinalsResult
    from autotune.tuning.layer_result import DesignResult, LayerResult
    from autotune.tuning.trial_log import Seen

_MESSAGES = 8  # number of distinct failures that a layer's summary shows
_NUMBER = re.compile(r"\d+")


def summary(result: LayerResult) -> Iterator[str]:
    """Summarise a layer: evaluations, distinct failures, the reason why the search stopped, and the finals."""
    failures = ", ".join(f"{count} {outcome}" for outcome, count in sorted(result.failures.items()))
    yield (
        f"{result.name}: {result.evaluated} evaluated ({result.new} now), "
        f"{failures or 'no failures'}; stopped: {result.stopped}"
    )
    for count, seen in _kinds(result.messages.values())[:_MESSAGES]:
        yield f"  {count} x {shortened(' '.join(seen.message.split()), 160)} (such as {seen.config})"
    if result.design is not None:
        yield f"  {result.design.by.replace('_', ' ')}: {design_words(result.design, result.best)}"
    if result.finals:
        yield f"  finals: {result.finals.winner.config}: {result.finals.timing.median_us:.2f} us" + (
            f", not the search's fastest; noise floor {result.finals.noise:.2%}"
            if result.finals.moved
            else f"; noise floor {result.finals.noise:.2%}"
        )
        yield from _verdicts(result.finals)


def _kinds(messages: Collection[Seen]) -> list[tuple[int, Seen]]:
    """Group failures whose messages differ only in numbers, and show each group by its most frequent message."""
    kinds: defaultdict[str, list[Seen]] = defaultdict(list)
    for seen in messages:
        kinds[_NUMBER.sub("0", seen.message)].append(seen)
    counts = [(sum(seen.count for seen in kind), max(kind, key=lambda seen: seen.count)) for kind in kinds.values()]
    return sorted(counts, key=lambda kind: -kind[0])


def _verdicts(finals: FinalsResult) -> Iterator[str]:
    """Compare the winner with other kernels and with each library.

    A library's line shows its fastest kernel that the study admits, followed by lines for its other kernels.
    """

    def times_as_fast(compared: Compared) -> str:
        """Divide the printed times, or return the confidence interval of a tie, whose times may differ a lot."""
        comparison = compared.comparison
        if comparison.verdict != "tie":
            return f"{compared.time_us / finals.timing.median_us:.3f} times as fast"
        low, high = 1 / comparison.high, 1 / comparison.low if comparison.low > 0 else math.inf
        return f"within noise, {low:.3f} to {high:.3f} times as fast (95 % confidence)"

    def other_class(compared: Compared) -> str:
        return "" if compared.accuracy == finals.winner.accuracy else f", another accuracy class ({compared.accuracy})"

    if finals.unbeaten:
        yield f"  nothing is faster than the baseline {finals.unbeaten} itself"
    for other in finals.compared:
        if not other.library:
            against = "the starting config" if other.against == "default" else other.against
            yield f"  {_verdict(other)} against {against}: {times_as_fast(other)}{other_class(other)}"
    for library in dict.fromkeys(other.library for other in finals.compared if other.library):
        rival = finals.rival(library)
        if rival is not None:
            time = f"{rival.time_us:.2f} us{other_class(rival)}"
            yield f"  {_verdict(rival)} against {rival.against}: {times_as_fast(rival)} ({time})"
        for other in finals.compared:
            if other.library == library and other is not rival:
                yield f"    {other.against}: {other.time_us:.2f} us{other_class(other)}; {times_as_fast(other)}"
    for name, why in finals.refused:
        yield f"    {name}: cannot run this layer: {why}"


def _verdict(compared: Compared) -> str:
    return compared.comparison.verdict.upper()


def design_words(design: DesignResult, best: Trial | None) -> str:
    """Describe the configs with which a search started: their number, their origin, and whether they helped."""
    began = counted(design.used, "config")
    if design.layers:
        (nearest, distance), *others = design.layers
        began += f", from {nearest} (distance {distance:.2f})" + (f" and {len(others)} more" if others else "")
    if design.best is None or best is None or not design.best.median_us or not best.median_us:
        return f"{began}; none of them is correct"
    if design.best.config == best.config:
        return f"{began}; the overall best is one of them"
    if best.median_us > design.best.median_us:
        slower = best.median_us / design.best.median_us - 1
        return f"{began}; the finals' winner was {slower:.1%} slower in the search than the best of them"
    return f"{began}; the overall best is {design.best.median_us / best.median_us - 1:.1%} faster than the best of them"


def left(study: Study, layers: Sequence[Layer], results: Sequence[LayerResult], done: str) -> str:
    """Describe the unfinished part of an interrupted run."""
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
    text = f"not {done}: {', '.join(lacking)}" if lacking else f"every layer was {done}"
    return f"{text}; end-to-end times may be missing" if study.end_to_end else text


_END_TO_END = (
    *key_columns("layer", "pinned", "streams", "segments", "median_us", "kernel_us", "copy_us"),
    *key_columns("copy_in_us", "copy_out_us", hidden=True),
    *key_columns("hidden_fraction", "allocate_us", "with_allocation_us"),
    *key_columns("distinct_segments", "host_bytes", "error_over_bound", "accuracy", "kernel", hidden=True),
    *key_columns("source_hash", hidden=True),
)


def show_end_to_end(results: Sequence[EndToEndResult], style: str | None) -> None:
    """Show end-to-end plans, all of them in JSON or CSV.

    On a terminal, each kind of host memory gets the plan with the whole batch and the fastest plan.
    """
    for result in results:
        note(_end_to_end_summary(result))
    show([line for result in results for line in _plans(result, every=style is not None)], _END_TO_END, style)


def _plans(result: EndToEndResult, *, every: bool) -> list[Cells]:
    if result.kernel is None:
        return []
    lines = [_plan_cells(result.name, str(result.kernel.row.trial.config), row) for row in result.rows]
    if every:
        return lines
    kept: list[Cells] = []
    for pinned in ("no", "yes"):
        group = [line for line in lines if line["pinned"] == pinned]
        uncut = [line for line in group if line["segments"] == 1]
        kept += uncut[:1] + [line for line in group[:1] if line not in uncut]
    return kept


def _plan_cells(layer: str, kernel: str, plan: EndToEndRow) -> Cells:
    """Return the cells of an end-to-end plan. `copy_us` is the time of the copies in both directions."""
    from autotune.analysis.trial_rows import kernel_cells

    row, parts = plan.row, plan.parts
    median_us = row.median_us or 0.0
    return {
        **kernel_cells(row),
        **field_cells(parts),
        **{name: row.trial.config.params[name] for name in ("pinned", "streams", "segments")},
        "layer": layer,
        "median_us": median_us,
        "copy_us": parts.copy_in_us + parts.copy_out_us,
        "with_allocation_us": median_us + parts.allocate_us,
        "kernel": kernel,
    }


def _end_to_end_summary(result: EndToEndResult) -> str:
    if result.kernel is None:
        return f"{result.name}: no correct kernel to time end to end"
    failures = ", ".join(f"{count} {outcome}" for outcome, count in sorted(result.failures.items()))
    return (
        f"{result.name}: {len(result.rows)} ways end to end, {failures or 'no failures'}; "
        f"kernel {result.kernel.row.trial.config.template}, {result.kernel.median_us:.1f} us by itself"
    )
