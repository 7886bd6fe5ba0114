"""Kernels for the layers of a study that may never have been tuned: recorded winners, else predicted configs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from autotune.analysis.rooflines import best_per_class
from autotune.api.device_names import Say, evaluator_of
from autotune.api.recorded_kernel import selected_kernel
from autotune.devices.backends import parse_device
from autotune.devices.device import DeviceInfo, devices_named
from autotune.errors import DeviceError, NoTemplate
from autotune.exporting import SelectedKernel
from autotune.exporting.predicted_kernel import predicted_kernel
from autotune.family.template import KernelTemplate
from autotune.problem import Layer, Problem
from autotune.resources import RECORDED, recorded_database
from autotune.search import single_threaded
from autotune.store import BestRow, Store, TopTrial, has_results
from autotune.study import Study
from autotune.tuning.prediction import predict


@dataclass(frozen=True, slots=True)
class Untuned:
    """A kernel for each layer that some family supports."""

    kernels: tuple[SelectedKernel, ...]
    origins: Mapping[str, str]
    """`study.layer` to where its kernel comes from"""
    left_out: Mapping[str, str]
    """`study.layer` to why it has none"""


@single_threaded()
def untuned_kernels(
    study: Study,
    layers: Sequence[Layer],
    families: Mapping[str, KernelTemplate],
    db: str,
    *,
    device: str | None,
    say: Say = lambda *_: None,
    found: Callable[[SelectedKernel], None] = lambda _: None,
) -> Untuned:
    """A kernel for each of these layers on a device, without running one.

    It is the fastest recorded kernel of this GPU that the study admits, of `db` or else of the bundled results, or the
    config that is predicted to be fastest. `found` is called with each as it is chosen. Raises DeviceError if there is
    no such device.
    """
    with ExitStack() as opened:
        databases = {name: str(recorded_database(name)) for name in RECORDED}
        if has_results(db):
            databases = {db: db, **{name: path for name, path in databases.items() if path != db}}
        stores = {name: opened.enter_context(Store(path, create=False)) for name, path in databases.items()}
        results = _Results(stores, _device([*stores.values()], device, say))
        kernels, origins, left_out = [], {}, {}
        for layer in layers:
            name = f"{study.name}.{layer.name}"
            try:
                kernel, origins[name] = results.kernel(study, layer, families)
            except NoTemplate as error:
                left_out[name] = str(error)
            else:
                kernels.append(kernel)
                found(kernel)
    return Untuned(tuple(kernels), origins, left_out)


def _device(stores: Sequence[Store], name: str | None, say: Say) -> DeviceInfo:
    """A device of this machine, or a recorded one."""
    recorded = [info for store in stores for info in store.devices.list()]
    if name is not None:
        try:
            parse_device(name)
        except DeviceError:
            if matching := devices_named(name, recorded):
                return matching[0]
            names = ", ".join(dict.fromkeys(info.name for info in recorded if info.can.gpu))
            raise DeviceError(f"{name}: no recorded device of this name: {names}; or give cuda:N or host") from None
    evaluator = evaluator_of(name, 1, say=say)
    evaluator.close()
    return evaluator.info


@dataclass(frozen=True, slots=True)
class _Results:
    """Several results databases, in the order in which they are asked about a device."""

    stores: Mapping[str, Store]
    device: DeviceInfo
    top: dict[tuple[str, ...], tuple[TopTrial, ...]] = field(default_factory=dict)
    """the trials that correct predictions, by accuracy classes"""
    best: dict[str, Mapping[Problem, Sequence[BestRow]]] = field(default_factory=dict)
    """the best kernels of this model of GPU in each database, once they were read"""

    def kernel(self, study: Study, layer: Layer, families: Mapping[str, KernelTemplate]) -> tuple[SelectedKernel, str]:
        """A layer's kernel, and where it comes from. Raises NoTemplate if no family supports the layer."""
        for name, row in self._recorded(study, layer):
            named = replace(row, study=study.name, layer=layer)
            origin = f"recorded, {row.median_us:.2f} us as {row.name} in {name}"
            return selected_kernel(self.stores[name], named, study, name, families), origin
        classes = study.informative(layer.problem)
        if classes not in self.top:
            kinds = (self.device.kind,)
            each = (store.top_trials.list(None, kinds=kinds, accuracies=classes) for store in self.stores.values())
            self.top[classes] = tuple(trial for trials in each for trial in trials)
        predicted = predict(study, layer, families, self.device, self.top[classes], self._rates)
        origin = "default config"
        if predicted.predicted_us is not None:
            origin = f"cost model, {predicted.predicted_us:.2f} us predicted and never timed"
        return predicted_kernel(study, predicted), origin

    def _recorded(self, study: Study, layer: Layer) -> Iterator[tuple[str, BestRow]]:
        """The fastest admitted kernel of this model of GPU in each database, by the database's name."""
        for name, store in self.stores.items():
            if name not in self.best:
                self.best[name] = self._best(store)
            rows = [
                row
                for row in self.best[name].get(layer.problem, ())
                if row.row.trial.accuracy in study.admitted(layer.problem)
                and row.row.measurement_mode == study.measure.cache
                and store.sources.get(row.row.trial.source_hash or "") is not None
            ]
            if rows:
                yield name, min(rows, key=lambda row: row.median_us)

    def _best(self, store: Store) -> Mapping[Problem, Sequence[BestRow]]:
        found: dict[Problem, list[BestRow]] = {}
        for row in best_per_class(store.best.list(kind=self.device.kind)):
            if (row.row.device.name, row.row.device.arch) == (self.device.name, self.device.arch):
                found.setdefault(row.layer.problem, []).append(row)
        return found

    @property
    def _rates(self) -> Mapping[str, float]:
        return next((rates for store in self.stores.values() if (rates := store.rates.best(self.device))), {})
