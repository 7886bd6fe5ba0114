"""What a run on a cluster tells: how far it is, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.cluster.messages import DeviceClass
from autotune.tuning.layer_result import LayerResult


@dataclass(frozen=True, slots=True)
class Overview:
    """How far the whole cluster is."""

    agents: Mapping[str, str]
    """by name, what each does"""
    layers: int
    """times classes"""
    done: int
    trials: int
    """stored by this run"""
    elapsed_s: float
    dashboard: str


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """What came of a study on one class of devices."""

    device_class: DeviceClass
    results: tuple[LayerResult, ...]
    failed: Mapping[str, str]
    """layer to why it could not be tuned"""
