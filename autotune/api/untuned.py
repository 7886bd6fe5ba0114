"""Choose kernels for layers that may never have been tuned: recorded winners or predicted configs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import TypeAlias

from autotune.analysis.rerender import located
from autotune.analysis.rooflines import with_roofline
from autotune.api.answers import recorded_named
from autotune.api.device_names import Say, evaluator_of
from autotune.devices.backends import parse_device
from autotune.devices.device import DeviceInfo, abilities_of
from autotune.devices.driver_api import device_info, has_libcuda
from autotune.errors import DeviceError, NoTemplate, StoreError
from autotune.exporting import SelectedKernel
from autotune.exporting.kernel import Origin, recorded_origin
from autotune.family.render import render
from autotune.family.template import KernelTemplate
from autotune.problem import Layer, Problem
from autotune.resources import RECORDED, recorded_database
from autotune.search.threads import single_threaded
from autotune.store import BestRow, Store, TopTrial, has_results
from autotune.study import Study
from autotune.tuning.initial_design import Predicted, predict

Chosen: TypeAlias = tuple[SelectedKernel, str]
"""A kernel and a phrase that says where it comes from."""


@dataclass(frozen=True, slots=True)
class Untuned:
    """A kernel for each layer that some family supports."""

    kernels: tuple[SelectedKernel, ...]
    origins: Mapping[str, str]
    """`study.layer` to the origin of the layer's kernel"""
    left_out: Mapping[str, str]
    """`study.layer` to the reason why the layer has no kernel"""


@contextmanager
def opened_results(db: str, device: str | None, say: Say = lambda *_: None) -> Iterator[Results]:
    """Open the user's database, if it exists, and the bundled ones, while a thread opens the device."""
    with ExitStack() as opened:
        databases = {name: str(recorded_database(name)) for name in RECORDED}
        if has_results(db):
            databases = {db: db, **{name: path for name, path in databases.items() if path != db}}
        stores = {name: opened.enter_context(Store(path, create=False)) for name, path in databases.items()}
        recorded = [info for store in stores.values() for info in store.devices.list()]
        thread = opened.enter_context(ThreadPoolExecutor(1))
        yield Results(stores, thread.submit(_device, recorded, device, say))


@single_threaded()
def untuned_kernels(
    study: Study,
    layers: Sequence[Layer],
    families: Mapping[str, KernelTemplate],
    results: Results,
    *,
    jobs: int = 1,
    found: Callable[[SelectedKernel], None] = lambda _: None,
) -> Untuned:
    """Choose a kernel for each of these layers without running any.

    This is the fastest recorded kernel for this GPU that the study admits, from the first database that contains one.
    If there is none, it is the config predicted to be fastest. If `jobs` is above 1, forks of this process make the
    predictions. `found` is called with each kernel as soon as it has been chosen. Raises DeviceError if there is no
    such device.
    """
    chosen: dict[str, Chosen] = {}
    left_out: dict[str, str] = {}
    for layer, answer in results.kernels(study, layers, families, jobs):
        name = f"{study.name}.{layer.name}"
        if isinstance(answer, NoTemplate):
            left_out[name] = str(answer)
        else:
            chosen[name] = answer
            found(answer[0])
    names = [name for layer in layers if (name := f"{study.name}.{layer.name}") in chosen]
    return Untuned(tuple(chosen[name][0] for name in names), {name: chosen[name][1] for name in names}, left_out)


def selected_kernel(
    store: Store, row: BestRow, study: Study, db: str, families: Mapping[str, KernelTemplate]
) -> SelectedKernel:
    """Return a recorded kernel with everything that an export needs.

    If `families` includes the folder of the kernel's operation, the kernel's problem refers to it. Raises StoreError if
    the database lacks the kernel's source or its family's header.
    """
    problem = located(row.layer.problem, families)
    row = replace(row, layer=replace(row.layer, problem=problem))
    source = store.sources.get(row.row.trial.source_hash or "")
    if source is None:
        raise StoreError(f"{db}: the source of {row.name} is not in the database; tune it again")
    header = store.templates.header(source.config.template, row.row.template_hash)
    if not header:
        raise StoreError(f"{db}: the header of {source.config.template} is not in the database; tune {row.name} again")
    origin = recorded_origin(row, with_roofline(store, row).floor_us)
    return SelectedKernel(origin, replace(source, problem=problem), header, study.admitted(problem))


def _device(recorded: Sequence[DeviceInfo], name: str | None, say: Say) -> DeviceInfo:
    """Return a device of this machine, or a recorded device."""
    kind, number = "cuda", "0"
    if name is not None:
        try:
            kind, number = parse_device(name)
        except DeviceError:
            return recorded_named(name, [info for info in recorded if info.can.gpu_times])[0]
    if abilities_of(kind).gpu and (name is not None or has_libcuda()):  # needs no PyCUDA, which only tuning requires
        info = device_info(int(number or 0))
        say(info, name or "cuda:0", "the first CUDA device" if name is None else "requested")
        return info
    evaluator = evaluator_of(name, 1, say=say)
    evaluator.close()
    return evaluator.info


class Results:
    """Several results databases, in the order they are searched for kernels."""

    def __init__(self, stores: Mapping[str, Store], device: Future[DeviceInfo]) -> None:
        self._stores, self._opened = stores, device
        self._best: dict[str, Mapping[Problem, Sequence[BestRow]]] = {}
        self._tuned: dict[tuple[str, ...], tuple[TopTrial, ...]] = {}

    @property
    def device(self) -> DeviceInfo:
        """The device, once it is open. Raises DeviceError if there is none."""
        return self._opened.result()

    def kernels(
        self, study: Study, layers: Sequence[Layer], families: Mapping[str, KernelTemplate], jobs: int
    ) -> Iterator[tuple[Layer, Chosen | NoTemplate]]:
        """Yield each layer with its kernel, or with the reason why no family supports it. Recorded kernels come
        first.
        """
        pairs = [(layer, self._recorded(study, layer, families)) for layer in layers]
        new = [layer for layer, recorded in pairs if recorded is None]
        tuned = {classes: self.tuned(classes) for classes in {study.informative(layer.problem) for layer in new}}
        predicted = _Predictions(study, families, self.device, tuned, self._rates).of(new, jobs)
        yield from ((layer, recorded) for layer, recorded in pairs if recorded is not None)
        yield from predicted

    def _recorded(self, study: Study, layer: Layer, families: Mapping[str, KernelTemplate]) -> Chosen | None:
        """Return the fastest admitted kernel for this GPU model, from the first database that contains one."""
        for name, best in self.best().items():
            store = self._stores[name]
            rows = [
                row
                for row in best.get(layer.problem, ())
                if row.row.trial.accuracy in study.admitted(layer.problem)
                and row.row.measurement_mode == study.measure.cache
                and store.sources.get(row.row.trial.source_hash or "") is not None
            ]
            if rows:
                row = min(rows, key=lambda row: row.median_us)
                named = replace(row, study=study.name, layer=layer)
                origin = f"recorded, {row.median_us:.2f} us as {row.name} in {name}"
                return selected_kernel(store, named, study, name, families), origin
        return None

    def best(self) -> Mapping[str, Mapping[Problem, Sequence[BestRow]]]:
        """Return the best kernels for this GPU model, by database and problem."""
        if not self._best:
            self._best |= {name: self._read(store) for name, store in self._stores.items()}
        return self._best

    def _read(self, store: Store) -> Mapping[Problem, Sequence[BestRow]]:
        found: dict[Problem, list[BestRow]] = {}
        for row in store.best.list(kind=self.device.kind):
            if (row.row.device.name, row.row.device.arch) == (self.device.name, self.device.arch):
                found.setdefault(row.layer.problem, []).append(row)
        return found

    def tuned(self, classes: tuple[str, ...]) -> tuple[TopTrial, ...]:
        """Return the trials in these accuracy classes, which correct the cost model's predictions."""
        if classes not in self._tuned:
            kinds = (self.device.kind,)
            each = (store.top_trials.list(None, kinds=kinds, accuracies=classes) for store in self._stores.values())
            self._tuned[classes] = tuple(trial for trials in each for trial in trials)
        return self._tuned[classes]

    @property
    def _rates(self) -> Mapping[str, float]:
        return next((rates for store in self._stores.values() if (rates := store.rates.best(self.device))), {})


@dataclass(frozen=True, slots=True)
class _Predictions:
    """The inputs of predictions for untuned layers."""

    study: Study
    families: Mapping[str, KernelTemplate]
    device: DeviceInfo
    tuned: Mapping[tuple[str, ...], Sequence[TopTrial]]
    """trials of similar layers, by accuracy classes"""
    rates: Mapping[str, float]

    def of(self, layers: Sequence[Layer], jobs: int) -> Iterator[tuple[Layer, Chosen | NoTemplate]]:
        """Yield each layer's kernel as soon as it has been predicted.

        If `jobs` is above 1, forks of this process start predicting immediately. A prediction takes 0.2 s, and a fork
        doesn't have to read families and trials again.
        """
        if min(jobs, len(layers)) < 2:
            return ((layer, self.one(layer)) for layer in layers)
        forks = ProcessPoolExecutor(min(jobs, len(layers)), get_context("fork"), _forked.append, (self,))
        asked = {forks.submit(_predicted, layer): layer for layer in layers}
        forks.shutdown(wait=False)
        return ((asked[each], each.result()) for each in as_completed(asked))

    def one(self, layer: Layer) -> Chosen | NoTemplate:
        """Return the kernel of the config predicted to be fastest."""
        tuned = self.tuned[self.study.informative(layer.problem)]
        try:
            predicted = predict(self.study, layer, self.families, self.device, tuned, self.rates)
        except NoTemplate as error:
            return error
        origin = "default config"
        if predicted.predicted_us is not None:
            like = (each.device for each in tuned if each.problem == layer.problem)
            others = dict.fromkeys(device.name for device in like if device.arch == self.device.arch)
            model = f"cost model from results of {' and '.join(others)}" if others else "cost model"
            origin = f"{model}, {predicted.predicted_us:.2f} us predicted and never timed"
        return _predicted_kernel(self.study, predicted), origin


_forked: list[_Predictions] = []
"""The inputs of a forked process's predictions: a list with one element, set when the process starts."""


def _predicted(layer: Layer) -> Chosen | NoTemplate:
    return _forked[0].one(layer)


def _predicted_kernel(study: Study, predicted: Predicted) -> SelectedKernel:
    """Render the kernel of a predicted config, which has never run."""
    layer, bound = predicted.layer, predicted.bound
    names = (study.name, layer.name, bound.device, bound.template.hash, study.measure.cache)
    origin = Origin(*names, predicted_us=predicted.predicted_us)
    source = render(bound, predicted.config)
    return SelectedKernel(origin, source, bound.template.header, study.admitted(layer.problem))
