"""Tune a study: study, problem, template, space, render, compile, verify, measure, store, search."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from autotune.devices.device import DeviceInfo
from autotune.errors import DeviceError, NoTemplate, StudyError
from autotune.evaluation.evaluator import Evaluator
from autotune.family.space import Admission, BoundTemplate, SearchSpace, narrow, refusal
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.search import InitialDesign, single_threaded
from autotune.search.prior import prior
from autotune.search.warm_start import MOST, warm_start
from autotune.store import Scope, Store, StudyRecord, TemplateRecord, TopTrial
from autotune.study import SAMPLERS, Study, distinct_layers, unadmitted
from autotune.toml_table import did_you_mean
from autotune.trial import Value
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
    finals; None: no finals, so that `best` does not change where earlier finals decided it. Raises StudyError before
    anything runs if a layer has no family.
    """
    began_s = clock()
    check_study(study, templates)
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
    info, rates = evaluator.info, store.rates.best(evaluator.info)
    if search and study.prior and not (study.warm_start and store.studies.list()):
        _check_calibrated(info, rates)
    key = store.studies.begin(StudyRecord.of(study), fresh=fresh)
    records = [TemplateRecord(template.name, template.hash, template.header) for template in templates.values()]
    run = Run(study, evaluator, observe, stopping, clock, search, finals, rates)
    distinct = distinct_layers(chosen)
    scopes = {
        layer.name: store.scopes.open(
            key, layer, evaluator.info, evaluator.environment, measurement_mode(study), records
        )
        for layer in distinct
    }

    def designs(layer: Layer) -> tuple[InitialDesign, ...]:
        tuned = tuned_before(study, layer, scopes[layer.name], store, info)
        return initial_designs(study, layer, spaces[layer.name], info, tuned, rates)

    parts = [
        (layer, spaces[layer.name], StoredLayer(store, scopes[layer.name], info, evaluator.environment))
        for layer in distinct
    ]
    schedule = Schedule(run, parts, designs, listing_s=clock() - began_s)
    found = {result.layer.problem: result for result in schedule.run()}
    return tuple(found[layer.problem].of(study.name, layer) for layer in chosen if layer.problem in found)


def _listing(study: Study, layer: Layer, layers: int) -> Progress:
    """The report that a layer's search spaces are listed, before its stored trials are read."""
    budget = study.trials_total or study.trials * layers
    network = Network(
        layers, 0, 0.0, 0.0, None, 0, budget, 0.0, study.time_budget_total_s, searching=layers, concluded=0, ended=False
    )
    return Progress(
        f"{study.name}.{layer.name}", 0, study.trials, None, {}, 0.0, 0, ended=False, network=network, phase="listing"
    )


def check_study(study: Study, templates: Mapping[str, KernelTemplate]) -> None:
    """Raise StudyError if a study names an unknown family, parameter, value or sampler."""
    where = str(study.path or study.name)
    for name, narrowed in (*((name, {}) for name in study.templates or ()), *(study.space or {}).items()):
        _check_family(where, name, narrowed, templates)
    for technique in study.techniques:
        _check_family(f"{where}: technique {technique.name!r}", technique.template, technique.space, templates)
    for rule in study.rules:
        for name in (*rule.below, *rule.above):
            family, narrowed = study.side(name)
            _check_family(f"{where}: rule {rule.name!r}", family, narrowed, templates)
    if study.sampler not in SAMPLERS:
        raise StudyError(f"{where}: sampler = {study.sampler!r}: expected one of {', '.join(SAMPLERS)}")


def _check_family(
    where: str, name: str, narrowed: Mapping[str, Sequence[Value]], templates: Mapping[str, KernelTemplate]
) -> None:
    """Raise StudyError for an unknown family, or for parameters and values that it does not have."""
    if name not in templates:
        raise StudyError(
            f"{where}: no template named {name!r}{did_you_mean(name, templates)}; there are {', '.join(templates)}"
        )
    try:
        narrow(templates[name], narrowed)
    except StudyError as error:
        raise StudyError(f"{where}: {error}") from None


def initial_designs(
    study: Study,
    layer: Layer,
    spaces: Sequence[SearchSpace],
    info: DeviceInfo,
    tuned: Sequence[TopTrial],
    rates: Mapping[str, float],
) -> tuple[InitialDesign, ...]:
    """The initial design of a layer: the best configs of similar layers and devices, or else that of the prior."""
    most = min(MOST, study.trials)
    if study.warm_start:
        design = warm_start(layer.problem, info, tuned, spaces, most)
        if design.layers:
            return (design,)
    if study.prior:
        return (prior(spaces, info, _check_calibrated(info, rates), most=most, seed=study.seed),)
    return ()


def tuned_before(study: Study, layer: Layer, scope: Scope, store: Store, info: DeviceInfo) -> tuple[TopTrial, ...]:
    """The stored trials of layers and devices from which a search of this layer may start."""
    if not study.warm_start:
        return ()
    kinds = ("cuda", "replay") if info.kind == "replay" else (info.kind,)
    return store.top_trials.list(scope, kinds=kinds, accuracies=study.informative(layer.problem))


def _check_calibrated(info: DeviceInfo, rates: Mapping[str, float]) -> Mapping[str, float]:
    """The rates of a device. Raises DeviceError if it lacks one that a prior needs."""
    if not {"copy", "fp32"} <= rates.keys():
        advice = (
            "leave the prior out"
            if info.kind == "replay"
            else "run `autotune devices --calibrate` with this database first"
        )
        raise DeviceError(f"prior: {info.name} was never calibrated; {advice}")
    return rates


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
        said = "; ".join([*empty, *refusals][:_SHOWN_REFUSALS])
        more = len(empty) + len(refusals) - _SHOWN_REFUSALS
        raise NoTemplate(
            f"{where} ({layer.problem}): no template supports it: {said}{f'; and {more} more' if more > 0 else ''}"
        )
    return spaces
