"""study, template -> a run's layers, with their search spaces and their entries in the results database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from autotune.family.space import SearchSpace
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.store import Store
from autotune.study import distinct_layers
from autotune.tuning.initial_design import stored_design
from autotune.tuning.layer_store import StoredLayer, template_records
from autotune.tuning.open_spaces import open_spaces
from autotune.tuning.trial_log import Network, Progress
from autotune.tuning.tuned_layer import OpenLayer, Run


def open_layers(
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
