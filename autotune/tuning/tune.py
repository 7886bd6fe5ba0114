"""Tune a study by going through all steps: problem, template, space, render, compile, verify, measure, store,
search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from autotune.evaluation.evaluator import Evaluator
from autotune.family.space import SearchSpace
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.search.threads import single_threaded
from autotune.store import Store
from autotune.study import Study, distinct_layers
from autotune.tuning.initial_design import stored_design
from autotune.tuning.layer_finals import PLAIN_FINALS, FinalsPlan
from autotune.tuning.layer_result import LayerResult
from autotune.tuning.layer_store import StoredLayer, template_records
from autotune.tuning.open_spaces import open_spaces
from autotune.tuning.schedule import Schedule
from autotune.tuning.trial_log import Network, Progress
from autotune.tuning.tuned_layer import OpenLayer, Run


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
    """Tune a study's layers, or only the given ones, and return the result of each.

    If `search` is false, only the finals run, on the study's stored trials. If `finals` is None, no finals run, and a
    best kernel chosen by earlier finals stays the best. `templates` contains every family that the study refers to.
    Raises StudyError, before any kernel runs, if a layer has no family.
    """
    began_s = clock()
    wanted = study.layers if layers is None else layers
    run = Run(study, evaluator, observe, stopping, clock, search, finals, store.rates.best(evaluator.info))
    opened = _open_layers(run, templates, wanted, store, fresh=fresh)
    try:
        found = Schedule(run, opened, listing_s=clock() - began_s).run()
    except (KeyboardInterrupt, SystemExit):  # a second Ctrl-C, or SIGTERM
        for layer in opened:
            layer.writer.withdraw()
        raise
    results = {result.layer.problem: result for result in found}
    return tuple(results[layer.problem].of(study.name, layer) for layer in wanted if layer.problem in results)


def _open_layers(
    run: Run, templates: Mapping[str, KernelTemplate], layers: Sequence[Layer], store: Store, *, fresh: bool
) -> list[OpenLayer]:
    """Open all layers of different shapes, unless the run is stopped, and begin or resume the study.

    Raises StudyError if a layer has no family; nothing has been stored then.
    """
    study, evaluator, distinct = run.study, run.evaluator, distinct_layers(layers)
    spaces: list[tuple[Layer, list[SearchSpace]]] = []
    if run.search and distinct:
        evaluator.expect(distinct[0].problem)
    for layer in distinct:
        if spaces and run.stopping():
            break
        if len(distinct) > 1:  # a thousand layers take minutes
            run.observe(_listing(run, layer, len(distinct)))
        listed = evaluator.listed(layer.problem, cache=study.measure.cache)
        spaces.append((layer, open_spaces(study, layer, templates, evaluator.info, listed)))
    key, records = store.studies.begin(study, fresh=fresh), template_records(templates)
    info, environment, mode = evaluator.info, evaluator.environment, study.measurement_mode
    opened = []
    for layer, own in spaces:
        stored = StoredLayer.open(store, key, layer, info, environment, mode, records)
        design = partial(stored_design, study, layer, own, stored, run.rates)
        opened.append(OpenLayer(layer, own, stored.state(), stored, design))
    return opened


def _listing(run: Run, layer: Layer, layers: int) -> Progress:
    """Return a progress report for listing a layer's search spaces, before the stored trials are read."""
    study = run.study
    budget = study.trials_total or study.trials * layers
    network = Network(
        layers, 0, 0.0, 0.0, None, 0, budget, 0.0, study.time_budget_total_s, searching=layers, concluded=0, ended=False
    )
    label = f"{study.name}.{layer.name}"
    return Progress(label, 0, study.trials, None, {}, 0.0, 0, ended=False, network=network, phase="listing")
