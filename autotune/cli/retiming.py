"""`retime`, its parts: what is measured again, whether the winners hold, and that as testcases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import click

from autotune.analysis.retime import LayerPlan, NotRetimed, Retimed, plan
from autotune.analysis.retime import retime as measure_again
from autotune.analysis.rooflines import undominated
from autotune.cli.junit import Case
from autotune.devices.device import DeviceInfo
from autotune.errors import StoreError
from autotune.evaluation.evaluator import Evaluator
from autotune.family.template import KernelTemplate
from autotune.store import Store, TrialRow

WINNER_LOST = 3
"""exit code: a winner regressed beyond noise, or is no longer correct"""


def judge(plans: Sequence[LayerPlan], found: Sequence[Retimed], db: str) -> None:
    """End with the status that says whether the winners hold."""
    if not found:
        raise StoreError(f"{db}: nothing was re-timed, so nothing is known of the winners")
    winners = {row.id for plan in plans for row in plan.winners}
    lost = [one for one in found if one.before.id in winners and one.retime.label in ("regressed", "failed")]
    if lost:
        words = ", ".join(f"{one.before.name} ({one.before.trial.accuracy}) {one.retime.label}" for one in lost)
        click.echo(f"autotune: {len(lost)} of {len(winners)} winners are not what they were: {words}", err=True)
        sys.exit(WINNER_LOST)


def plans_of(store: Store, name: str | None, info: DeviceInfo, most: int) -> list[LayerPlan]:
    """What is to be measured again of each layer."""
    best = store.best.list(name)
    shown = undominated(best)
    layers = {layer.layer.problem: layer.name for layer in store.studies.layers(name)}
    return [plan(layer, problem, store, info, best, shown, most) for problem, layer in layers.items()]


def retimed(
    store: Store,
    plans: Sequence[LayerPlan],
    evaluator: Evaluator,
    families: Mapping[str, KernelTemplate],
    stopping: Callable[[], bool],
) -> Iterator[Retimed | NotRetimed]:
    """Re-time layer by layer; what cannot be, and layers without anything to re-time, are told on standard error."""
    for layer in plans:
        if stopping():
            break
        if not layer.rows:
            click.echo(f"{layer.name}: no correct trial of {evaluator.info.name} to re-time", err=True)
            continue
        for result in measure_again(layer.rows, layer.problem, evaluator, store, families):
            if isinstance(result, NotRetimed):
                number = result.row.trial.number
                click.echo(f"{layer.name}: trial {number} is not re-timed: {result.why}", err=True)
            yield result


def measured(results: Sequence[Retimed | NotRetimed]) -> list[Retimed]:
    """Those that could be run."""
    return [result for result in results if isinstance(result, Retimed)]


def unreached(plans: Sequence[LayerPlan], results: Sequence[Retimed | NotRetimed]) -> list[str]:
    """The layers that an interrupted run did not come to."""
    done = {_row(result).problem for result in results}
    return [layer.name for layer in plans if layer.rows and layer.problem not in done]


def _row(result: Retimed | NotRetimed) -> TrialRow:
    return result.before if isinstance(result, Retimed) else result.row


def testcases(plans: Sequence[LayerPlan], results: Sequence[Retimed | NotRetimed]) -> list[Case]:
    """A testcase for each winner."""
    known = {_row(result).id: result for result in results}
    return [_case(layer.name, row, known.get(row.id)) for layer in plans for row in layer.winners]


def _case(layer: str, row: TrialRow, result: Retimed | NotRetimed | None) -> Case:
    kind = ", ".join(
        [
            row.trial.accuracy,
            f"{row.measurement_mode} cache",
            *([] if row.trial.deterministic else ["not deterministic"]),
        ]
    )
    name = f"{row.device.name}, {kind}"
    if not isinstance(result, Retimed):
        return Case(layer, name, "skipped", result.why if result else "interrupted before its turn")
    label, before_us, after_us = result.retime.label, result.retime.before_us, result.retime.after_us
    if after_us is None or result.noise is None:
        return Case(layer, name, "error", f"{row.trial.config}: {result.retime.message}")
    words = f"{label}: {before_us:.2f} us before, {after_us:.2f} us now, noise {result.noise:.2%}; {row.trial.config}"
    return Case(layer, name, "failure" if label == "regressed" else "passed", words)
