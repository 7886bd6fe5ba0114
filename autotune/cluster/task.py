"""The messages between `tune --cluster` and its workers: a task, the reports of its trials, and its end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autotune import __version__
from autotune.devices.device import DeviceInfo, Environment
from autotune.problem import Layer
from autotune.store import Suspect, TopTrial
from autotune.study import Study
from autotune.trial import Trial
from autotune.tuning.layer_finals import FinalsPlan
from autotune.tuning.layer_result import LayerResult
from autotune.tuning.layer_store import FinalsState, LayerStore
from autotune.tuning.tuned_layer import Part

EVALUATIONS = 20
"""new evaluations of one task"""
WORKER_LOST = "worker_lost"
"""the reason of a trial that was running when its worker was lost"""

Report = Callable[[LayerStore], object]
"""A task's call of its LayerStore, which the coordinator repeats on the StoredLayer of the results database."""


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
    """of its reports among Dask's events; also the name of the Dask Event that ends it after the current evaluation"""
    study: Study
    """of this layer alone, without its file's text"""
    layer: Layer
    name: str
    """`study.layer`"""
    part: Part
    families: Mapping[str, str]
    """family to hash; the worker's families must have the same"""
    files: Mapping[str, str]
    """name and text of the user's own families, their included files and their operations"""
    finals: FinalsPlan
    rates: Mapping[str, float]
    """rates of the device"""
    tuned: tuple[TopTrial, ...]
    """the best trials of similar layers, for a warm start"""
    trials: tuple[Trial, ...]
    """the layer's finished trials"""
    suspects: tuple[Suspect, ...]
    """trials that an earlier run left running"""
    next_number: int
    free_numbers: tuple[int, ...]
    """below `next_number`"""
    known: Mapping[str, Trial]
    """source hash to result, from other studies"""
    quarantined: frozenset[str]
    finals_state: FinalsState


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
    """of the layer's time budget"""
