"""Tune a study: study, problem, template, space, render, compile, verify, measure, store, search."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from autotune.evaluation.evaluator import Evaluator
from autotune.family.space import SearchSpace
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.search.threads import single_threaded
from autotune.search.warm_start import WarmStart
from autotune.store import Store
from autotune.study import Study, distinct_layers
from autotune.tuning.initial_design import initial_design, tuned_before
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
        listed = evaluator.listed(layer.problem, cache=study.measure.cache)
        spaces[layer.name] = open_spaces(study, layer, templates, evaluator.info, listed)
    chosen = chosen[: len(spaces)]
    info, environment = evaluator.info, evaluator.environment
    rates = store.rates.best(info)
    key = store.studies.begin(study, fresh=fresh)
    records = template_records(templates)
    written: list[StoredLayer] = []

    def opened(layer: Layer) -> OpenLayer:
        stored = StoredLayer.open(store, key, layer, info, environment, study.measurement_mode, records)
        written.append(stored)
        own = spaces[layer.name]

        def design() -> WarmStart | None:
            return initial_design(study, layer, own, info, tuned_before(study, layer, stored), rates)

        return OpenLayer(layer, own, stored.state(), stored, design)

    run = Run(study, evaluator, observe, stopping, clock, search, finals, rates)
    schedule = Schedule(run, [opened(layer) for layer in distinct_layers(chosen)], listing_s=clock() - began_s)
    try:
        results = {result.layer.problem: result for result in schedule.run()}
    except (KeyboardInterrupt, SystemExit):  # a second Ctrl-C, or SIGTERM
        for stored in written:
            stored.withdraw()
        raise
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
