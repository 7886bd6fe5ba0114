"""How fast the untuned kernels of networks are, relative to tuned kernels, layer by layer.

    python -m tests.benchmarks.untuned_speed choose CHOICES.json STUDY.toml... [--n 64 8 1]
    python -m tests.benchmarks.untuned_speed time CHOICES.json STUDY.toml... --device cuda:0 --seconds 80

`choose` needs no GPU. For each layer of the studies, which `autotune import-model` writes, and each number of images,
it writes two kernels that `convert` would choose on an H200 without tuning: one from all bundled results, and one
without any result of the network (of any type, batch size or gradient), also left out of the cost model's fit.

`time` tunes the layers of each network for SECONDS, in one process for each network, which take turns on the GPU. The
searches begin with the results of recorded-networks, so they propose the recorded winners first. Then it verifies both
choices and the tuned kernel of each layer, and times them interleaved. The tuned time of a layer is the least of the
times. Prints the times of all layers, then their sums over the layers of each network.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from autotune.api.untuned import opened_results
from autotune.compilation.compile import Binary
from autotune.devices.device import DeviceInfo
from autotune.devices.host_machine import usable_cores
from autotune.errors import NoTemplate, Rejected
from autotune.evaluation.evaluator import DeviceEvaluator, Evaluator
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.problem import Layer, Problem
from autotune.replay.cost_records import LayerRecords, fit_model, layer_records, shape_of
from autotune.resources import RECORDED, recorded_database
from autotune.search.warm_start import MOST, warm_start
from autotune.store import Store
from autotune.study import Study
from autotune.study_reader import load_study, parse_study
from autotune.trial import Config, Measured
from autotune.tuning.open_spaces import open_spaces
from autotune.tuning.tune import tune
from autotune.workers.worker import FinalsRequest
from tests.benchmarks.first_config import top_trials

DEVICE = "NVIDIA H200"
RECORDED_AS = {
    "convnext_tiny": "convnext-t",
    "efficientnet_b0": "efficientnet-b0",
    "mobilenet_v3_large": "mobilenet-v3",
    "regnet_y_1_6gf": "regnety",
}
"""Networks whose recorded layers or studies begin with another name than the network's."""
WAYS = ("without", "with")
"""The two choices, by what becomes of the network's own results."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A network for some number of images."""

    study: Study
    n: int

    @property
    def name(self) -> str:
        """The name in the file of choices."""
        return f"{self.study.name}, n = {self.n}"

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers for this number of images, with names that are unique among all cells."""
        return tuple(
            replace(layer, name=f"{self.study.name}-n{self.n}-{layer.name}", problem=layer.problem.with_runtime(self.n))
            for layer in self.study.layers
        )


def choose(cells: Sequence[Cell]) -> Iterator[tuple[Cell, str, dict[str, Config]]]:
    """Yield both choices for each layer that a family supports."""
    templates = load_templates()
    records = layer_records([recorded_database(name) for name in RECORDED], templates)
    with opened_results("none.db", DEVICE) as results:
        for cell in cells:
            known = without(cell.study, records)
            model = fit_model(known, "", {})
            rates = next(layer.rates for layer in records if layer.device == results.device)
            tuned = {}
            for layer, answer in results.kernels(cell.study, cell.layers, templates, 1):
                if isinstance(answer, NoTemplate):
                    continue
                classes = cell.study.informative(layer.problem)
                if classes not in tuned:
                    tuned[classes] = top_trials(known, classes)
                spaces = open_spaces(cell.study, layer, templates, results.device)
                design = warm_start(layer.problem, results.device, tuned[classes], spaces, MOST, model, rates)
                proposal = design.proposal()
                assert proposal is not None
                found = {"without": proposal[1], "with": answer[0].source.config}
                yield cell, layer.name, found


def without(study: Study, records: Sequence[LayerRecords]) -> list[LayerRecords]:
    """The records without those of a network: its layers' shapes, and all that its studies and layers name."""
    prefix = RECORDED_AS.get(study.name, study.name)
    hidden = {shape_of(layer.problem) for layer in study.layers}
    for name in RECORDED:
        with Store(recorded_database(name), create=False) as store:
            for row in store.studies.list():
                recorded = parse_study(row.text, row.name)
                hidden |= {
                    shape_of(layer.problem)
                    for layer in recorded.layers
                    if recorded.name.startswith(prefix) or layer.name.startswith(prefix)
                }
    return [layer for layer in records if layer.shape not in hidden]


class Alone(DeviceEvaluator):
    """Runs kernels while no other process of this benchmark does: all lock one file, and share the device's memory."""

    def __init__(self, device: str, jobs: int, lock: Path, processes: int) -> None:
        super().__init__([device], jobs)
        self.lock, self._info = lock, super().info
        for worker in self._workers:
            part = replace(self._info, memory_bytes=self._info.memory_bytes // processes)
            worker.opened = replace(worker.opened, info=part)

    @property
    def info(self) -> DeviceInfo:
        """The identity and limits of the whole device."""
        return self._info

    def begin_layer(self, problem: Problem) -> None:
        """Make a layer's data."""
        with self.lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            super().begin_layer(problem)

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Verify and time a kernel."""
        with self.lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return super().evaluate(source, binary, cache=cache, best_us=best_us)


@dataclass(frozen=True, slots=True)
class Search:
    """The search of a network's layers, in a process of its own."""

    study: Study
    layers: tuple[Layer, ...]
    device: str
    processes: int
    """number of searches at once"""
    db: Path

    def __call__(self) -> tuple[int, dict[str, tuple[Config, float]]]:
        """Return the number of evaluations, and the fastest config of each layer with its time."""
        lock = self.db.with_name("gpu.lock")
        evaluator = Alone(self.device, 1 + usable_cores() // self.processes, lock, self.processes)
        try:
            with Store(self.db) as store:
                study = replace(self.study, name=f"untuned-{self.study.name}", layers=self.layers)
                results = tune(study, load_templates(), evaluator, store, finals=None)
        finally:
            evaluator.close()
        best = {each.layer.name: (each.best.config, each.best.median_us) for each in results if each.best}
        return sum(each.new for each in results), {name: (config, us) for name, (config, us) in best.items() if us}


def timed(
    cells: Sequence[Cell],
    choices: Mapping[str, Mapping[str, Mapping[str, Config]]],
    searches: Mapping[str, Mapping[str, tuple[Config, float]]],
    evaluator: DeviceEvaluator,
    finals_s: float,
) -> Iterator[tuple[Cell, Layer, dict[str, float]]]:
    """Yield the microseconds of each layer's tuned kernel and of both choices, interleaved unless all are the same.

    A choice that is wrong or cannot be compiled has no time: PyTorch would compute the layer.
    """
    templates = load_templates()
    compiled: dict[str, Future[Binary]] = {}
    work = []
    for cell in cells:
        for layer in cell.layers:
            if layer.name not in choices[cell.name] or layer.name not in searches[cell.study.name]:
                continue
            config, us = searches[cell.study.name][layer.name]
            of = _sources(layer, {"tuned": config, **choices[cell.name][layer.name]}, evaluator, templates)
            work.append((cell, layer, of, us))
            if len({source.hash for source in of.values()}) > 1:
                compiled |= {source.hash: evaluator.compile(source) for source in of.values()}
    for cell, layer, of, us in work:
        unlike = list({source.hash: source for source in of.values()}.values())
        if len(unlike) == 1:
            yield cell, layer, dict.fromkeys(of, us)
            continue
        evaluator.begin_layer(layer.problem)
        correct = []
        for source in unlike:
            try:
                binary = compiled[source.hash].result()
                evaluator.verify(source, binary, once=True)
                correct.append((source, binary))
            except Rejected as rejected:
                print(f"{layer.name}: {source.config}: {rejected.outcome}: {rejected.message}", flush=True)
        request = FinalsRequest(tuple(correct), (), cell.study.measure.cache, finals_s, 0)
        timings = evaluator.finals(request).kernels if correct else ()
        medians = {source.hash: timing.median_us for (source, _), timing in zip(correct, timings, strict=True)}
        yield cell, layer, {way: medians[each.hash] for way, each in of.items() if each.hash in medians}


def _sources(
    layer: Layer, configs: Mapping[str, Config | None], evaluator: Evaluator, templates: Mapping[str, KernelTemplate]
) -> dict[str, KernelSource]:
    """The kernels of a layer by way; none for configs that their families no longer have."""
    found = {}
    for way, config in configs.items():
        if config is not None and (current := templates[config.template].current_config(config)):
            found[way] = render(BoundTemplate(templates[config.template], layer.problem, evaluator.info), current)
    return found


def lines(times: Sequence[tuple[Cell, Layer, dict[str, float]]]) -> Iterator[str]:
    """A row for each network and number of images, then the geometric means."""
    yield "| network | layers | tuned, us | untuned, us | untuned without the network's results, us | speeds |"
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    for cell in dict.fromkeys(cell.name for cell, _, _ in times):
        rows = [(layer.count, of) for each, layer, of in times if each.name == cell and set(of) >= set(WAYS)]
        best_us = sum(count * min(of.values()) for count, of in rows)
        us = {way: sum(count * of[way] for count, of in rows) for way in WAYS}
        for way in WAYS:
            speeds[way].append(best_us / us[way])
        here = ", ".join(f"{speeds[way][-1]:.3f}" for way in reversed(WAYS))
        yield f"| {cell} | {len(rows)} | {best_us:.1f} | {us['with']:.1f} | {us['without']:.1f} | {here} |"
    for way in WAYS:
        yield f"{way} the network's results: {statistics.geometric_mean(speeds[way]):.3f} of the tuned speed"


def main() -> None:
    """Choose, or tune and time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("choose", "time"))
    parser.add_argument("choices", type=Path)
    parser.add_argument("studies", type=Path, nargs="+")
    parser.add_argument("--n", type=int, nargs="+", default=[64])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=80.0)
    parser.add_argument("--finals-seconds", type=float, default=0.1)
    parser.add_argument(
        "--db", type=Path, default=recorded_database("recorded-networks"), help="copied before the search"
    )
    arguments = parser.parse_args()
    cells = [Cell(load_study(file), n) for n in arguments.n for file in arguments.studies]
    path: Path = arguments.choices
    stored = json.loads(path.read_text()) if path.exists() else {}
    if arguments.step == "choose":
        for cell, name, configs in choose([cell for cell in cells if cell.name not in stored]):
            written = {way: [config.template, config.params] for way, config in configs.items()}
            stored.setdefault(cell.name, {})[name] = written
            path.write_text(json.dumps(stored, indent=1))
        return
    choices = {
        cell: {
            layer: {way: Config.of(template, params) for way, (template, params) in ways.items()}
            for layer, ways in layers.items()
        }
        for cell, layers in stored.items()
    }
    started, times = time.monotonic(), []
    networks = {cell.study.name: cell.study for cell in cells}
    searches = {}
    for name, study in networks.items():
        db = path.with_name(f"{name}.db").resolve()
        shutil.copy(arguments.db, db)
        layers = tuple(
            layer
            for cell in cells
            if cell.study.name == name
            for layer in cell.layers
            if layer.name in choices[cell.name]
        )
        limited = replace(study, time_budget_total_s=arguments.seconds)
        searches[name] = Search(limited, layers, arguments.device, len(networks), db)
    with ProcessPoolExecutor(len(searches), get_context("fork")) as processes:
        found = dict(zip(searches, processes.map(Search.__call__, searches.values()), strict=True))
    print({name: evaluations for name, (evaluations, _) in found.items()}, "evaluations", flush=True)
    print(f"{time.monotonic() - started:.0f} s", flush=True)
    evaluator = DeviceEvaluator([arguments.device], usable_cores())
    best = {name: configs for name, (_, configs) in found.items()}
    try:
        for cell, layer, of in timed(cells, choices, best, evaluator, arguments.finals_seconds):
            times.append((cell, layer, of))
            print(layer.name, layer.count, {way: round(us, 3) for way, us in of.items()}, flush=True)
    finally:
        evaluator.close()
        print("\n".join(lines(times)))
        print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
