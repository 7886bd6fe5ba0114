"""How good the first configs of a search are, on recorded results, each network left out in turn.

    python -m tests.benchmarks.first_config [--device H200] [--from H200] [--known]

Prints, for each way to choose among the recorded configs of a layer, the time of its first config and of the best of
its first five over the best recorded time: median and 95th percentile over the layers of all studies. The records of a
network are left out with all of the same shapes, whatever their type and batch size; `--known` keeps those of other
devices. `--from` uses the records of one device only.

The recorded configs were chosen by searches, so most of them are fast: `random` tells how much that is.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.distance import device_distance, layer_distance
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.problem import Problem
from autotune.replay.cost_records import LayerRecords, Shape, fit_model, layer_records, shape_of
from autotune.resources import RECORDED, recorded_database
from autotune.search.cost_model import CostModel
from autotune.search.warm_start import warm_start
from autotune.store import Store, TopTrial
from autotune.study_reader import parse_study
from autotune.trial import Config

NETWORKS = (
    *("resnet50", "resnext50", "vgg16", "decoders", "mobilenetv2", "mobilenet-v2", "mobilenet-v3", "efficientnet-b0"),
    *("convnext-t", "gpt2", "llama3-8b", "bert", "vit-b", "clip", "whisper", "mistral", "lstm", "lora", "lenet-k5"),
    *("lenet-k7", "fashion-k7", "quickstart"),
)
"""Prefixes of the names of layers, or else of studies, that belong to one network. A layer without such a prefix is a
network of its own.
"""
REPORTS = {
    "report-000": "lenet-k5",
    "report-001": "lenet-k7",
    "report-002": "fashion-k7",
    "report-003": "lenet-k5",
    "report-004": "lenet-k7",
}
MOST = 5
"""evaluations"""
SEED = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """A layer of a study on a device, to choose configs for."""

    network: str
    records: LayerRecords
    admitted: tuple[str, ...]
    informative: tuple[str, ...]
    """the accuracy classes that the study admits, and those whose trials a search of it begins from"""
    times_us: Mapping[Config, float]
    """of the recorded configs that the study admits"""

    def ratios(self, configs: Sequence[Config]) -> list[float]:
        """The times of the configs over the best one."""
        best_us = min(self.times_us.values())
        return [self.times_us[config] / best_us for config in configs]


Choose = Callable[[Judged, Sequence[LayerRecords]], list[Config]]
"""chooses MOST configs of a layer, given what is known of others"""


def network_of(study: str, layer: str) -> str:
    """The network to which a layer belongs."""
    for report, network in REPORTS.items():
        if study.startswith(report):
            return network
    named = (network for name in (layer, study) for network in NETWORKS if name.startswith(network))
    return next(named, f"{study}.{layer}")


def judged_layers(records: Sequence[LayerRecords], device: str) -> list[Judged]:
    """The layers of all studies with at least two recorded configs, each layer and choice of classes once."""
    names: dict[Problem, set[tuple[str, str, tuple[str, ...], tuple[str, ...]]]] = {}
    for name in RECORDED:
        with Store(recorded_database(name), create=False) as store:
            studies = [parse_study(row.text, row.name) for row in store.studies.list()]
        for study in studies:
            for layer in study.layers:
                classes = study.admitted(layer.problem), study.informative(layer.problem)
                names.setdefault(layer.problem, set()).add((study.name, layer.name, *classes))
    found = []
    for here in records:
        if device not in here.device.name:
            continue
        seen: set[tuple[str, ...]] = set()
        for study_name, name, admitted, informative in sorted(names.get(here.problem, ())):
            times_us = {
                config: float(time_us)
                for family in here.families
                for config, accuracy, time_us in zip(
                    family.configs, family.accuracies, family.observed.times_us, strict=True
                )
                if accuracy in admitted
            }
            if admitted not in seen and len(times_us) > 1:
                seen.add(admitted)
                found.append(Judged(network_of(study_name, name), here, admitted, informative, times_us))
    return found


def default(templates: Mapping[str, KernelTemplate]) -> Choose:
    """The families' defaults in the order of `tune`, then the other configs."""
    order = list(templates)

    def choose(judged: Judged, _: Sequence[LayerRecords]) -> list[Config]:
        def rank(config: Config) -> tuple[bool, int]:
            firsts = {param.name: param.values[0] for param in templates[config.template].params}
            return config.params != firsts, order.index(config.template)

        return sorted(judged.times_us, key=rank)[:MOST]

    return choose


def by_chance(judged: Judged, _: Sequence[LayerRecords]) -> list[Config]:
    """Recorded configs at random."""
    configs = sorted(judged.times_us, key=str)
    return [configs[index] for index in np.random.default_rng(SEED).permutation(len(configs))[:MOST]]


def nearest(judged: Judged, known: Sequence[LayerRecords]) -> list[Config]:
    """The configs of the nearest layers that were also recorded here, the fastest first."""
    here = judged.records
    distances = {
        id(layer): layer_distance(here.problem, layer.problem) + device_distance(here.device, layer.device)
        for layer in known
    }
    found: dict[Config, None] = {}
    for layer in sorted(known, key=lambda layer: distances[id(layer)]):
        if math.isinf(distances[id(layer)]):
            break
        times = {
            config: time_us
            for family in layer.families
            for config, time_us in zip(family.configs, family.observed.times_us, strict=True)
        }
        fastest = sorted(times, key=times.__getitem__)
        found.update(dict.fromkeys(config for config in fastest if config in judged.times_us))
    return [*found, *(config for config in judged.times_us if config not in found)][:MOST]


def by_model(templates: Mapping[str, KernelTemplate], *, corrected: bool) -> Choose:
    """The initial design of a search: the cost model, corrected by the records of near layers or not."""
    models: dict[int, CostModel] = {}

    def choose(judged: Judged, known: Sequence[LayerRecords]) -> list[Config]:
        key = hash(tuple(id(layer) for layer in known))
        if key not in models:
            models[key] = fit_model(known, "", {})
        here = judged.records
        spaces = []
        for family in {config.template: None for config in judged.times_us}:
            listed = frozenset(config for config in judged.times_us if config.template == family)
            admission = Admission(judged.admitted, listed=listed)
            spaces.append(SearchSpace(BoundTemplate(templates[family], here.problem, here.device, admission)))
        tuned = top_trials(known, judged.informative) if corrected else ()
        design = warm_start(here.problem, here.device, tuned, spaces, MOST, models[key], here.rates)
        told: dict[Config, float] = {}
        while (config := design.next(told, ())) is not None:
            told[config] = math.log(judged.times_us[config])
        return list(told)

    return choose


def top_trials(known: Sequence[LayerRecords], admitted: Sequence[str]) -> list[TopTrial]:
    """The configs of a database that a search of these accuracy classes uses: the fastest of each family and layer."""
    found = []
    for layer in known:
        for family in layer.families:
            fastest = sorted(
                zip(family.observed.times_us, family.configs, family.accuracies, strict=True), key=lambda one: one[0]
            )
            found += [
                TopTrial("", layer.problem, layer.device, config, float(time_us))
                for time_us, config, accuracy in fastest[:60]
                if accuracy in admitted
            ]
    return sorted(found, key=lambda trial: trial.median_us)


def main() -> None:
    """Print a line for each way to choose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="H200")
    parser.add_argument("--from", dest="of", default="", help="the only device whose records are known")
    parser.add_argument("--known", action="store_true", help="keep the network's records of other devices")
    arguments = parser.parse_args()
    templates = load_templates()
    records = layer_records([recorded_database(name) for name in RECORDED], templates)
    judged = judged_layers(records, arguments.device)
    shapes: dict[str, set[Shape]] = {}
    for one in judged:
        shapes.setdefault(one.network, set()).add(shape_of(one.records.problem))

    def known_to(one: Judged) -> list[LayerRecords]:
        hidden = shapes[one.network]
        return [
            layer
            for layer in records
            if arguments.of in layer.device.name
            and (layer.shape not in hidden or (arguments.known and layer.device != one.records.device))
        ]

    ways: dict[str, Choose] = {
        "random": by_chance,
        "default": default(templates),
        "nearest layer's": nearest,
        "cost model": by_model(templates, corrected=False),
        "cost model, corrected": by_model(templates, corrected=True),
    }
    for name, choose in ways.items():
        ratios = [one.ratios(choose(one, known_to(one))) for one in judged]
        words = [
            f"{what} {np.quantile(of, 0.5):.3f}, {np.quantile(of, 0.95, method='higher'):.3f}"
            for what, of in (("first", [each[0] for each in ratios]), ("best of five", [min(each) for each in ratios]))
        ]
        print(f"{name} ({len(ratios)} layers): {'; '.join(words)}", flush=True)


if __name__ == "__main__":
    main()
