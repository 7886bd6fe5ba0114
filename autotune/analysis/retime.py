"""best -> stale, retime: find best results that may be out of date, and verify and time recorded kernels again.

A result may be out of date after the driver, toolkit, timing or template has changed. Retimed kernels run interleaved
like finalists, and one of them runs twice to measure the noise floor. From then on, the store ranks a kernel by its new
time, even if it was imported. If the old time was measured in a different way (with launch gaps, by an older version),
the two times aren't compared: the kernel is `remeasured`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from autotune.analysis.rerender import kernel_of, located, rerender
from autotune.compilation.compile import Binary
from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import Disproved, Rejected
from autotune.evaluation.evaluator import Evaluator
from autotune.family.source import KernelSource
from autotune.family.template import KernelTemplate
from autotune.measurement.benchmark import median_half_width
from autotune.problem import Problem
from autotune.store import BestRow, RetimeRow, Store, TrialRow
from autotune.trial import END_TO_END, LONG_US, Outcome, comparable
from autotune.tuning.layer_finals import FINALS_S, timed_in_turn


@dataclass(frozen=True, slots=True)
class Retimed:
    """The result of measuring a kernel again."""

    retime: RetimeRow
    before: TrialRow
    """the trial before the retime"""
    noise: float | None
    """the largest relative difference at which a time counts as confirmed; None if the retime failed"""


def top_trials(rows: Sequence[TrialRow], info: DeviceInfo, winners: Sequence[TrialRow], most: int) -> list[TrialRow]:
    """Return the `most` fastest kernels for each measurement mode, accuracy class and determinism, winners included.

    Only kernels on the given device are considered. A kernel is included once, as the trial that is ranked. An imported
    kernel that was never measured here is included with its imported time.
    """
    chosen: dict[Hashable, list[TrialRow]] = {}
    kernels: set[Hashable] = set()
    first = {row.id for row in winners}
    here = [row for row in rows if row.device.identity == info.identity and row.measurement_mode != END_TO_END]
    for row in sorted(here, key=lambda row: (row.id not in first, row.ranking_median_us is None, _before_us(row))):
        kernel = (row.measurement_mode, row.trial.source_hash or row.trial.config)
        if row.trial.outcome == Outcome.CORRECT and kernel not in kernels:
            kernels.add(kernel)
            chosen.setdefault((row.measurement_mode, row.trial.accuracy, row.trial.deterministic), []).append(row)
    found: list[TrialRow] = []
    for group in chosen.values():
        found += sorted(group, key=lambda row: (row.id not in first, _before_us(row)))[:most]
    return found


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """A layer's kernels to measure again."""

    name: str
    """`study.layer`"""
    problem: Problem
    rows: tuple[TrialRow, ...]
    """the trials to measure again; empty if no kernel of the layer was correct on the device"""
    winners: tuple[TrialRow, ...]
    """the rows that `best` shows, or the fastest imported kernel of a kind that has no others"""


def plans(store: Store, what: str | None, info: DeviceInfo, most: int) -> list[LayerPlan]:
    """Plan to measure each layer's `most` fastest kernels of each kind again on a device."""
    best = store.best.list(what)
    listed = {row.row.id for row in best}
    layers = {layer.layer.problem: layer.name for layer in store.studies.layers(what)}
    found = []
    for problem, name in layers.items():
        correct = store.trials.list(problem, outcome="correct", generations="all")
        rows = top_trials(correct, info, [row.row for row in best], most)
        first: dict[tuple[str, str, bool], TrialRow] = {}
        for row in rows:
            first.setdefault((row.measurement_mode, row.trial.accuracy, row.trial.deterministic), row)
        classes = {(mode, accuracy) for (mode, accuracy, _), row in first.items() if row.id in listed}
        winners = tuple(
            row for (mode, accuracy, _), row in first.items() if row.id in listed or (mode, accuracy) not in classes
        )
        found.append(LayerPlan(name, problem, tuple(rows), winners))
    return found


def retime(
    rows: Sequence[TrialRow],
    problem: Problem,
    evaluator: Evaluator,
    store: Store,
    families: Mapping[str, KernelTemplate],
    *,
    say: Callable[[TrialRow, str], object] = lambda *_: None,
    budget_s: float = FINALS_S,
) -> Iterator[Retimed]:
    """Verify and time a layer's kernels again, and store each result.

    `budget_s` is the time for each measurement mode, in seconds. `say` is called with each kernel that can't run and
    the reason; nothing is stored for it.
    """
    evaluator.begin_layer(located(problem, families))
    here = (evaluator.info.name, evaluator.environment.driver, evaluator.environment.toolkit)
    refused = {row.source_hash for row in store.quarantine.list() if (row.device, row.driver, row.toolkit) == here}
    for measurement_mode in dict.fromkeys(row.measurement_mode for row in rows):
        compiled: list[tuple[TrialRow, KernelSource, Future[Binary]]] = []
        for row in (row for row in rows if row.measurement_mode == measurement_mode):
            source = kernel_of(row, store, families)
            if isinstance(source, str):
                say(row, source)
            elif source.hash in refused:
                say(row, "it is quarantined; `autotune clean --quarantine` lets it run again")
            else:
                compiled.append((row, source, evaluator.compile(source)))
        yield from _interleaved(compiled, measurement_mode, evaluator, store, budget_s)


def _interleaved(
    compiled: Sequence[tuple[TrialRow, KernelSource, Future[Binary]]],
    measurement_mode: str,
    evaluator: Evaluator,
    store: Store,
    budget_s: float,
) -> Iterator[Retimed]:
    """Verify each kernel, time the correct ones interleaved, and store the results."""
    info, environment = evaluator.info, evaluator.environment
    verified: list[tuple[TrialRow, KernelSource, Binary]] = []
    for row, source, future in compiled:
        try:
            binary = future.result()
            evaluator.evaluate(source, binary, cache=measurement_mode, best_us=None)
        except Rejected as rejected:
            message = f"{rejected.outcome} {rejected.reason}: {rejected.message}"
            yield Retimed(store.retimes.add(row, info, environment, "failed", None, message), row, None)
        else:
            verified.append((row, source, binary))
    yield from _timed(verified, measurement_mode, evaluator, store, budget_s)


def _timed(
    verified: Sequence[tuple[TrialRow, KernelSource, Binary]],
    measurement_mode: str,
    evaluator: Evaluator,
    store: Store,
    budget_s: float,
) -> Iterator[Retimed]:
    """Time kernels interleaved and store the results. If a kernel's output is wrong after the timing, it has failed."""
    if not verified:
        return
    info, environment = evaluator.info, evaluator.environment
    kernels = [(source, binary) for _, source, binary in verified]
    own = [row.trial for row, _, _ in verified]
    try:
        timings, noise = timed_in_turn(evaluator, own, kernels, cache=measurement_mode, budget_s=budget_s, seed=0)
    except Disproved as disproved:
        for at, words in disproved.messages.items():
            row = verified[at][0]
            yield Retimed(store.retimes.add(row, info, environment, "failed", None, words), row, None)
        left = [one for at, one in enumerate(verified) if at not in disproved.messages]
        yield from _timed(left, measurement_mode, evaluator, store, budget_s)
        return
    floor = store.noise_floors.latest(info, measurement_mode)
    store.noise_floors.add(info, environment, measurement_mode, noise * timings.kernels[0].median_us, noise)
    stands_by = store.retimes.latest_timings([row.id for row, _, _ in verified])
    for (row, _, _), timing in zip(verified, timings.kernels, strict=True):
        reach = max(
            noise, floor.noise_fraction if floor else 0.0, median_half_width(timing.samples_us) / timing.median_us
        )
        before = stands_by.get(row.id) or row.trial.timing
        alike = before is None or comparable(before, timing)
        word = label(_before_us(row), timing.median_us, reach) if alike else "remeasured"
        yield Retimed(store.retimes.add(row, info, environment, word, timing), row, reach)


def label(before_us: float, after_us: float, noise: float) -> str:
    """Return `confirmed` if the times differ by at most `noise` (a fraction), and otherwise `regressed` or `moved`
    (faster).
    """
    ratio = after_us / before_us
    if abs(ratio - 1) <= noise:
        return "confirmed"
    return "regressed" if ratio > 1 else "moved"


def _before_us(row: TrialRow) -> float:
    """Return the time in microseconds that ranked a kernel before the retime."""
    return row.ranking_median_us or row.median_us or 0.0


_HASH_SHOWN = 12  # digits of a template's hash to show


@dataclass(frozen=True, slots=True)
class StaleResult:
    """Something that has changed since a best kernel was last measured."""

    best: BestRow
    changed: str
    """what has changed: driver, toolkit, flags, launch or template"""
    was: str
    now: str
    compared_with: str


class Changes:
    """Finds what has changed since best kernels were last measured."""

    def __init__(self, store: Store, what: str | None, opened: Iterable[tuple[DeviceInfo, Environment]]) -> None:
        """`opened` are the devices in this machine. All others are compared with their newest recorded run."""
        self._retimed = {row.row.id: row.environment for row in store.retimes.list(what) if row.timing}
        self._here = {device.identity: environment for device, environment in opened}
        self._newest = store.devices.newest_environments()

    def of(self, best: BestRow) -> Iterator[StaleResult]:
        """Yield changes in the environment, and in how short kernels are timed."""
        row = best.row
        was = self._retimed.get(row.id, row.environment)
        here = self._here.get(row.device.identity)
        now = here or self._newest[row.device.identity]
        for name in ("driver", "toolkit", "flags"):
            before, after = getattr(was, name), getattr(now, name)
            if before != after:
                yield StaleResult(best, name, before, after, "this machine" if here else "its newest run")
        if row.device.can.graphs and best.timing.launch == "stream" and best.median_us < LONG_US:
            yield StaleResult(best, "launch", "stream, with launch gaps", "graph", "how short kernels are timed")


def template_change(best: BestRow, families: Mapping[str, KernelTemplate]) -> Iterator[StaleResult]:
    """Yield the change in a kernel's family, unless it still renders the same kernel."""
    row = best.row
    family = families.get(row.trial.config.template)
    if family is not None and family.hash == row.template_hash:
        return
    now = rerender(row, families)
    if isinstance(now, str):
        text = now if family is None else f"{family.hash[:_HASH_SHOWN]}, which {now}"
        yield StaleResult(best, "template", row.template_hash[:_HASH_SHOWN], text, "the installed families")
