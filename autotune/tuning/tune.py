"""Tune a study: study, problem, template, space, render, compile, verify, measure, store, search."""

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
from autotune.tuning.layer_store import open_layers
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
    wanted = study.layers if layers is None else layers
    if search and wanted:
        evaluator.expect(wanted[0].problem)
    spaces: dict[str, list[SearchSpace]] = {}
    for layer in wanted:
        if spaces and stopping():
            break
        if len(wanted) > 1:  # a thousand layers take minutes
            observe(_listing(study, layer, len(wanted)))
        listed = evaluator.listed(layer.problem, cache=study.measure.cache)
        spaces[layer.name] = open_spaces(study, layer, templates, evaluator.info, listed)
    chosen = wanted[: len(spaces)]
    rates = store.rates.best(evaluator.info)
    stored = open_layers(store, study, distinct_layers(chosen), evaluator, templates, fresh=fresh)
    opened = [
        OpenLayer(layer, own, writer.state(), writer, partial(stored_design, study, layer, own, writer, rates))
        for layer, writer in stored
        for own in [spaces[layer.name]]
    ]
    run = Run(study, evaluator, observe, stopping, clock, search, finals, rates)
    try:
        found = Schedule(run, opened, listing_s=clock() - began_s).run()
    except (KeyboardInterrupt, SystemExit):  # a second Ctrl-C, or SIGTERM
        for _, writer in stored:
            writer.withdraw()
        raise
    results = {result.layer.problem: result for result in found}
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
