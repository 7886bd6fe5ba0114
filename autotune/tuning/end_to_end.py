"""Time a study's layers from host memory to host memory with their best kernels, for every way to split the batch.

Each way to split and copy the batch is a trial in the measurement mode `end_to_end`, stored and resumed like any other.
It uses the layer's best kernel, rendered for the segments' sizes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from autotune.compilation.compile import Binary, Program
from autotune.errors import Rejected, StudyError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import Admission, BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.measurement.end_to_end_timer import EndToEndPlan, EndToEndRequest, cut
from autotune.problem import Layer
from autotune.store import BestRow, EndToEndRow, Store, TemplateRecord
from autotune.study import EndToEnd, Study
from autotune.trial import END_TO_END, Config, Outcome, Phases, Trial
from autotune.tuning.layer_store import STRIKES, StoredLayer
from autotune.tuning.pipeline import rejected_trial, running_trial
from autotune.tuning.trial_log import Progress, TrialLog

_HEADER = (
    "summary = 'The layer from host memory to host memory: streams take the segments of the batch in turn; each copies "
    "its input, runs the kernel, copies its output.'"
)
FAMILY = TemplateRecord(END_TO_END, hashlib.sha256(_HEADER.encode()).hexdigest(), _HEADER)
"""The record that replaces a template in end-to-end trials."""


@dataclass(frozen=True, slots=True)
class EndToEndResult:
    """The end-to-end result of one layer."""

    layer: Layer
    name: str
    kernel: BestRow | None
    """the layer's best kernel; None: the layer has no correct kernel"""
    rows: tuple[EndToEndRow, ...]
    """correct trials with this kernel, fastest first"""
    failures: Mapping[str, int]


def configs(choices: EndToEnd, n: int) -> Iterator[Config]:
    """Yield every distinct combination of the choices, ordered by the number of segments.

    Combinations with more streams than segments, or with more segments than n can be split into, are left out.
    """
    for pinned in choices.pinned:
        for segments in sorted(set(choices.segments)):
            for streams in sorted(set(choices.streams)):
                if streams <= segments and len(cut(n, segments)) == segments:
                    yield Config.of(END_TO_END, {"streams": streams, "segments": segments, "pinned": pinned})


def time_end_to_end(
    study: Study,
    choices: EndToEnd,
    templates: Mapping[str, KernelTemplate],
    evaluator: DeviceEvaluator,
    store: Store,
    *,
    layers: Sequence[Layer],
    observe: Callable[[Progress], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[EndToEndResult, ...]:
    """Time tuned layers end to end, each with its best kernel in the accuracy classes that the study admits.

    Raises StudyError if the templates don't include a best kernel's family.
    """
    key = store.studies.begin(study)
    results = []
    for layer in layers:
        if stopping():
            break
        kernel = best_kernel(study, key.generation, layer, evaluator, store)
        info, environment = evaluator.info, evaluator.environment
        stored = StoredLayer.open(store, key, layer, info, environment, END_TO_END, [FAMILY])
        if kernel is None:
            results.append(EndToEndResult(layer, stored.scope.name, None, (), {}))
            continue
        line = _EndToEndLine(study, choices, layer, kernel, templates, evaluator, stored, clock)
        results.append(line.run(observe, stopping))
    return tuple(results)


def best_kernel(
    study: Study, generation: int, layer: Layer, evaluator: DeviceEvaluator, store: Store
) -> BestRow | None:
    """Return the fastest kernel that the study found for a layer on this device, in the classes that it admits."""
    rows = [
        row
        for row in store.best.of_study(study.name, generation, f"{study.name}.{layer.name}")
        if row.row.device.identity == evaluator.info.identity
        and row.row.measurement_mode == study.measurement_mode
        and row.row.trial.accuracy in study.admitted(layer.problem)
    ]
    return min(rows, key=lambda row: row.median_us, default=None)


class _EndToEndLine:
    """Times one layer under every plan that isn't in the database yet."""

    def __init__(
        self,
        study: Study,
        choices: EndToEnd,
        layer: Layer,
        kernel: BestRow,
        templates: Mapping[str, KernelTemplate],
        evaluator: DeviceEvaluator,
        stored: StoredLayer,
        clock: Callable[[], float],
    ) -> None:
        self.study, self.choices, self.layer, self.kernel = study, choices, layer, kernel
        self.evaluator, self.stored, self.store, self.clock = evaluator, stored, stored.store, clock
        self.scope = scope = stored.scope
        declared = layer.problem.operation
        if not declared.independent:
            raise StudyError(f"{scope.name}: {declared.name} has independent = false, so its batch cannot be split")
        family = kernel.row.trial.config.template
        if family not in templates:
            raise StudyError(
                f"{scope.name}: its best kernel is of the family {family}, which is not among the templates "
                f"({', '.join(templates)}); give its folder with --family-dir, or tune the layer again"
            )
        self.template = templates[family]
        self.admission = Admission(study.admitted(layer.problem), study.workspace_limit_bytes)
        self.whole = self._render(layer.problem.runtime_size)
        self.compiled: dict[str, Future[Binary]] = {}

    def run(self, observe: Callable[[Progress], None], stopping: Callable[[], bool]) -> EndToEndResult:
        """Time the plans without a stored result, and return the results of all of them."""
        wanted = list(configs(self.choices, self.layer.problem.runtime_size))
        state = self.stored.state()
        known = {trial.config: trial for trial in state.trials if trial.source_hash in (None, self.whole.hash)}
        label = f"{self.scope.name} end to end"
        log = TrialLog(state, label=label, budget=len(wanted), observe=observe, clock=self.clock)
        suspects = {suspect.config: suspect for suspect in log.suspects(set(wanted).__contains__)}
        begun = False
        for done, config in enumerate(wanted, 1):
            if stopping():
                break
            trial = known.get(config)
            if trial is None:
                if not begun:
                    self.evaluator.begin_layer(self.layer.problem)
                    begun = True
                suspect = suspects.get(config)
                number, attempts = (suspect.number, suspect.attempts) if suspect else (log.take_number(), 0)
                trial = self._try(number, config, attempts)
            log.add(trial, known=config in known)
            log.report(done, trial=trial, ended=done == len(wanted))
        rows = [row for row in self.store.end_to_end.list(self.scope.name) if self._ours(row, set(wanted))]
        rows.sort(key=lambda row: row.row.median_us or 0.0)
        return EndToEndResult(self.layer, self.scope.name, self.kernel, tuple(rows), dict(log.failures))

    def _ours(self, row: EndToEndRow, wanted: set[Config]) -> bool:
        trial = row.row.trial
        return (
            trial.median_us is not None
            and trial.config in wanted
            and trial.source_hash == self.whole.hash
            and row.row.device.identity == self.evaluator.info.identity
            and row.row.environment.identity == self.evaluator.environment.identity
        )

    def _render(self, n: int) -> KernelSource:
        bound = BoundTemplate(self.template, self.layer.problem.with_runtime(n), self.evaluator.info, self.admission)
        return render(bound, self.kernel.row.trial.config)

    def _try(self, number: int, config: Config, attempts: int) -> Trial:
        """Store a trial as `running`, then verify and time its plan."""
        trial = running_trial(number, config, self.whole)
        values = config.params
        plan = EndToEndPlan(int(values["streams"]), int(values["segments"]), values["pinned"] == "yes")
        key = self.store.trials.begin(self.scope, number, config, self.whole)
        parts = None
        try:
            if attempts >= STRIKES:
                raise Rejected(Outcome.RUNTIME, "crash", f"{attempts} runs ended while it was running")
            sources = [self._render(n) for n in sorted({segment.n for segment in cut(self._n, plan.segments)})]
            started = self.clock()
            binaries = [self._binary(source.program) for source in sources]
            compile_us = 1e6 * (self.clock() - started)
            timed = self.evaluator.end_to_end(
                EndToEndRequest(self.layer.problem, plan, tuple(zip(sources, binaries, strict=True)))
            )
        except Rejected as rejected:
            trial = rejected_trial(trial, rejected)
        else:
            measured, parts = timed.measured, timed.parts
            resources = binaries[0].resources
            trial = replace(
                trial,
                outcome=Outcome.CORRECT,
                timing=measured.timing,
                error=measured.error,
                resources=resources,
                smem_bytes=resources.static_smem_bytes + max(stage.smem_bytes for stage in self.whole.stages),
                occupancy=self.kernel.row.trial.occupancy,
                phases=Phases(compile_us=compile_us) + measured.phases,
            )
        self.store.trials.end(key, trial, parts)
        return trial

    @property
    def _n(self) -> int:
        return self.layer.problem.runtime_size

    def _binary(self, program: Program) -> Binary:
        """Compile a program, or return an earlier binary, because most families render the same text for every n."""
        if program.hash not in self.compiled:
            self.compiled[program.hash] = self.evaluator.build(program)
        return self.compiled[program.hash].result()
