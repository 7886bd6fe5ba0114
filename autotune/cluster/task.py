"""The messages between `tune --cluster` and its workers: a task, the reports of its trials, and its end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import methodcaller
from typing import cast

from autotune import __version__
from autotune.devices.device import DeviceInfo, Environment
from autotune.problem import Layer
from autotune.store import TopTrial
from autotune.study import Study
from autotune.tuning.layer_finals import FinalsPlan
from autotune.tuning.layer_result import LayerResult
from autotune.tuning.layer_store import LayerState, StoredLayer
from autotune.tuning.tuned_layer import Part

EVALUATIONS = 20
"""new evaluations of one task"""
WORKER_LOST = "worker_lost"
"""the reason of a trial that was running when its worker was lost"""

Report = Callable[[StoredLayer], object]
"""A call that writes a task's result; the coordinator makes it on the layer in its results database."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Devices with comparable results: of one identity, in one environment, with one version of autotune."""

    label: str
    """the name of Dask's resource"""
    info: DeviceInfo = field(compare=False)
    environment: Environment = field(compare=False)

    @staticmethod
    def of(info: DeviceInfo, environment: Environment) -> DeviceClass:
        """The class of a device."""
        identity = repr((info.identity, environment.identity, __version__))
        digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
        return DeviceClass(f"{info.kind}:{info.name}:{digest}", info, environment)


@dataclass(frozen=True, slots=True)
class LayerTask:
    """The next evaluations of one layer on a device of one class, and its finals after the last evaluation."""

    id: str
    topic: str
    """the topic of its reports in Dask, and the name of the Dask Event that ends it after the current evaluation"""
    study: Study
    """the study with this layer alone, without its file's text"""
    layer: Layer
    state: LayerState
    part: Part
    families: bytes
    """the families of `tune` by name, pickled and compressed once for all tasks"""
    finals: FinalsPlan
    rates: Mapping[str, float]
    """rates of the device"""
    tuned: tuple[TopTrial, ...]
    """the best trials of similar layers, for a warm start"""


class _Reporter:
    """A layer whose every method reports the call."""

    def __init__(self, report: Callable[[Report], object]) -> None:
        self._report = report

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *given, **named: self._report(methodcaller(name, *given, **named))


def reporting(report: Callable[[Report], object]) -> StoredLayer:
    """The layer of a task: it reports each call to the coordinator, which makes it on the layer in its database."""
    return cast(StoredLayer, _Reporter(report))


@dataclass(frozen=True, slots=True)
class TaskReport:
    """An event of a task."""

    task: str
    """its id"""
    worker: str
    """the name of the worker that runs it"""
    call: Report | None
    """None: the task begins"""


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The result of a task, after all of its reports."""

    result: LayerResult
    spent_s: float
    """seconds of the layer's time budget that it used"""
