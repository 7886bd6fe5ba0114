"""The messages between `tune --cluster` and the cluster workers: tasks, reports on trials, and the tasks' results."""

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
"""number of new evaluations in a task after a layer's first one"""
WORKER_LOST = "worker_lost"
"""the reason of a failed trial that was running when its worker was lost"""

Report = Callable[[StoredLayer], object]
"""A call that stores a result, which the coordinator makes on the layer in the results database."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Devices with comparable results: equal identities, equal environments and the same version of autotune."""

    label: str
    """the name of the resource in Dask"""
    info: DeviceInfo = field(compare=False)
    environment: Environment = field(compare=False)

    @staticmethod
    def of(info: DeviceInfo, environment: Environment) -> DeviceClass:
        """Return a device's class."""
        identity = repr((info.identity, environment.identity, __version__))
        digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
        return DeviceClass(f"{info.kind}:{info.name}:{digest}", info, environment)


@dataclass(frozen=True, slots=True)
class LayerTask:
    """A request for a layer's next evaluations on a device class and, after the last one, for its finals."""

    id: str
    topic: str
    """Dask topic of the task's reports, and name of the Dask Event that ends the task after the current evaluation"""
    study: Study
    """the study with only this layer, and without the text of the study file"""
    layer: Layer
    state: LayerState
    part: Part
    families: bytes
    """all families by name, pickled and compressed once for all tasks"""
    finals: FinalsPlan
    rates: Mapping[str, float]
    """calibrated rates of the device"""
    tuned: tuple[TopTrial, ...]
    """the best trials of similar layers, for a warm start"""


class _Reporter:
    """A substitute for StoredLayer that reports each call."""

    def __init__(self, report: Callable[[Report], object]) -> None:
        self._report = report

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *given, **named: self._report(methodcaller(name, *given, **named))


def reporting(report: Callable[[Report], object]) -> StoredLayer:
    """Return a substitute for a task's layer that reports each call to the coordinator.

    The coordinator makes the same call on the layer in the results database.
    """
    return cast(StoredLayer, _Reporter(report))


@dataclass(frozen=True, slots=True)
class TaskReport:
    """Something that happened in a running task."""

    task: str
    """id of the task"""
    worker: str
    """name of the worker that runs the task"""
    call: Report | None
    """the reported call; None: the task has begun"""


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """A task's result, sent after all of its reports."""

    result: LayerResult
    spent_s: float
    """seconds of the layer's time budget that the task used"""
