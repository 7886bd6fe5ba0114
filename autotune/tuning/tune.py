"""Tune a study: study, problem, template, space, render, compile, verify, measure, store, search."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from autotune.devices.device import DeviceInfo
from autotune.errors import NoTemplate, StudyError
from autotune.evaluation.evaluator import Evaluator
from autotune.family.space import Admission, BoundTemplate, SearchSpace, refusal
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.search import single_threaded
from autotune.store import Store, StudyRecord, TemplateRecord
from autotune.study import Study, distinct_layers, unadmitted
from autotune.tuning.layer_finals import PLAIN_FINALS, FinalsPlan
from autotune.tuning.layer_result import LayerResult
from autotune.tuning.layer_store import StoredLayer
from autotune.tuning.schedule import Schedule
from autotune.tuning.trial_log import Network, Progress
from autotune.tuning.tuned_layer import RECORDED_REJECTIONS, Run

_SHOWN_REFUSALS = 3


@single_threaded()
def tune(
    study: Study,
    templates: Mapping[str, KernelTemplate],
    evaluator: Evaluator,
    store: Store,
    *,
    layers: Sequence[Layer] | None = None,
    fresh: bool = False,
    observe: Callable[[Progress], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
    search: bool = True,
    finals: FinalsPlan | None = PLAIN_FINALS,
) -> tuple[LayerResult, ...]:
    """Tune all or the given layers of a study and return the result of each.

    Without `search` it only runs the finals, on the stored trials of the study. `finals` are the settings of the
    finals; None: no finals, so that `best` does not change where earlier finals decided it. `templates` has every
    family that the study names. Raises StudyError before anything runs if a layer has no family.
    """
    began_s = clock()
    chosen = study.layers if layers is None else layers
    if search and chosen:
        evaluator.expect(chosen[0].problem)
    spaces: dict[str, list[SearchSpace]] = {}
    for layer in chosen:
        if spaces and stopping():
            break
        if len(chosen) > 1:  # a thousand layers take minutes
            observe(_listing(study, layer, len(chosen)))
        spaces[layer.name] = open_spaces(study, layer, templates, evaluator)
    chosen = chosen[: len(spaces)]
    info, environment = evaluator.info, evaluator.environment
    rates = store.rates.best(info)
    key = store.studies.begin(StudyRecord.of(study), fresh=fresh)
    records = [TemplateRecord(template.name, template.hash, template.header) for template in templates.values()]
    parts = [
        (layer, spaces[layer.name], StoredLayer(store, scope, info, environment))
        for layer in distinct_layers(chosen)
        for scope in [store.scopes.open(key, layer, info, environment, measurement_mode(study), records)]
    ]
    run = Run(study, evaluator, observe, stopping, clock, search, finals, rates)
    results = {result.layer.problem: result for result in Schedule(run, parts, listing_s=clock() - began_s).run()}
    return tuple(results[layer.problem].of(study.name, layer) for layer in chosen if layer.problem in results)


def _listing(study: Study, layer: Layer, layers: int) -> Progress:
    """The report that a layer's search spaces are listed, before its stored trials are read."""
    budget = study.trials_total or study.trials * layers
    network = Network(
        layers, 0, 0.0, 0.0, None, 0, budget, 0.0, study.time_budget_total_s, searching=layers, concluded=0, ended=False
    )
    return Progress(
        f"{study.name}.{layer.name}", 0, study.trials, None, {}, 0.0, 0, ended=False, network=network, phase="listing"
    )


def _check_memory(study: Study, layer: Layer, info: DeviceInfo) -> None:
    """Raise StudyError if the arrays of a layer and its second set of test data exceed the device's memory."""
    problem = layer.problem
    needed, one, two = (2 * problem.with_runtime(n).tensor_bytes for n in (problem.runtime_size, 1, 2))
    if needed > info.memory_bytes:
        most = (info.memory_bytes - one) // (two - one) + 1
        runtime = problem.operation.runtime
        advice = f"{runtime} = {most} would do" if most > 0 else f"no {runtime} would do, make the layer smaller"
        raise StudyError(
            f"{study.path or study.name}: layer {layer.name} ({problem}): verifying it takes {needed / 2**30:.4g} GiB "
            f"of memory, {info.name} has {info.memory_bytes / 2**30:.4g}; {advice}"
        )


def measurement_mode(study: Study) -> str:
    """The way in which trials are verified and timed, as part of their identity."""
    return study.measure.cache


def open_spaces(
    study: Study, layer: Layer, templates: Mapping[str, KernelTemplate], evaluator: Evaluator
) -> list[SearchSpace]:
    """The search spaces of the families that support a layer; small ones also if empty, to record their rejections.

    A family whose `search_when` does not hold is left out if another family has a config, unless the study names it.
    Raises StudyError if the layer does not fit the device's memory, and NoTemplate with the reasons if no family
    supports it.
    """
    _check_memory(study, layer, evaluator.info)
    listed = evaluator.listed(layer.problem, cache=study.measure.cache)
    admission = Admission(study.admitted(layer.problem), study.workspace_limit_bytes, listed, study.prune)
    spaces: list[SearchSpace] = []
    refusals = []
    declared = layer.problem.operation.name
    named = [name for name in study.templates or templates if templates[name].operation.name == declared]
    where = f"{study.path or study.name}: layer {layer.name}"
    if not named:
        raise NoTemplate(f"{where}: none of the families is one of {declared}")
    serving = []
    for name in named:
        bound = BoundTemplate(templates[name], layer.problem, evaluator.info, admission)
        if bound.supported:
            serving.append(bound)
        else:
            refusals.append(f"{name} requires: {bound.unmet}")
    searched = [bound for bound in serving if bound.searched or study.templates]
    kept = study.space or {}
    for bounds in (searched, [bound for bound in serving if bound not in searched]):
        if not any(space.default for space in spaces):
            spaces += [SearchSpace(bound, kept.get(bound.template.name), seed=study.seed) for bound in bounds]
    if any(space.default for space in spaces):
        return spaces
    if why := unadmitted(study.accuracy, layer.problem.dtype):
        raise NoTemplate(f"{where}: {why}")
    if not any(0 < space.product <= RECORDED_REJECTIONS for space in spaces):
        empty = [
            f"{space.template} has no feasible config: {refusal(space.bound, space.params) or 'none is recorded'}"
            for space in spaces
        ]
        reasons = "; ".join([*empty, *refusals][:_SHOWN_REFUSALS])
        more = len(empty) + len(refusals) - _SHOWN_REFUSALS
        raise NoTemplate(
            f"{where} ({layer.problem}): no template supports it: {reasons}{f'; and {more} more' if more > 0 else ''}"
        )
    return spaces
