"""Tune a study by going through all steps: problem, template, space, render, compile, verify, measure, store,
search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from autotune.evaluation.evaluator import Evaluator
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.search.threads import single_threaded
from autotune.store import Store
from autotune.study import Study
from autotune.tuning.layer_finals import PLAIN_FINALS, FinalsPlan
from autotune.tuning.layer_result import LayerResult
from autotune.tuning.open_layers import open_layers
from autotune.tuning.schedule import Schedule
from autotune.tuning.trial_log import Progress
from autotune.tuning.tuned_layer import Run


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
    opened = open_layers(run, templates, wanted, store, fresh=fresh)
    try:
        found = Schedule(run, opened, listing_s=clock() - began_s).run()
    except (KeyboardInterrupt, SystemExit):  # a second Ctrl-C, or SIGTERM
        for layer in opened:
            layer.writer.withdraw()
        raise
    results = {result.layer.problem: result for result in found}
    return tuple(results[layer.problem].of(study.name, layer) for layer in wanted if layer.problem in results)
