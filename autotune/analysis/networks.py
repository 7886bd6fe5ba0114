"""best -> networks: a network's layers with their shares of the total time, rivals and floors, and the totals."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.analysis.rooflines import BestWithRoofline
from autotune.errors import StudyError
from autotune.problem import Layer
from autotune.study import Study
from autotune.study_reader import parse_study
from autotune.study_writer import known_to

if TYPE_CHECKING:
    from autotune.store import FinalsRow, Store, Verdict


@dataclass(frozen=True, slots=True)
class NetworkLayer:
    """A network's layer, with its fastest kernel among the accuracy classes that may win."""

    layer: Layer
    kernel: BestWithRoofline | None
    rival: Verdict | None
    """the fastest library or baseline that the study admits, in the finals that the kernel won"""

    def times(self, time_us: float | None) -> float | None:
        """Multiply the time of one run by the number of times that the network runs the layer."""
        return None if time_us is None else self.layer.count * time_us

    @property
    def time_us(self) -> float | None:
        """Time of one run in microseconds, or None if there is no kernel."""
        return self.kernel.best.median_us if self.kernel else None

    @property
    def floor_us(self) -> float | None:
        """Floor of one run in microseconds, or None if it isn't known."""
        return self.kernel.floor_us if self.kernel else None

    @property
    def rival_us(self) -> float | None:
        """The rival's time for one run in microseconds, as measured in the finals."""
        return self.rival.against_us if self.rival else None

    @property
    def verdict(self) -> str | None:
        """WIN, TIE or LOSS against the rival, with the ratio of their times, or `none` if there is no kernel."""
        if self.kernel is None:
            return "none"
        return _verdict(self.rival.verdict, self.rival.against_us / self.rival.median_us) if self.rival else None


@dataclass(frozen=True, slots=True)
class Network:
    """A study's layers on one device in one measurement mode."""

    study: str
    device: str
    measurement_mode: str
    layers: tuple[NetworkLayer, ...]

    @property
    def time_us(self) -> float | None:
        """Total time of the layers that have a kernel, or None if there are none."""
        return sum(us for one in self.layers if (us := one.times(one.time_us)) is not None) or None

    @property
    def floor_us(self) -> float | None:
        """Total of the floors, or None if one of them is unknown."""
        return _whole([one.times(one.floor_us) for one in self.layers])

    @property
    def rival_us(self) -> float | None:
        """Total time of the rivals, or None if a layer has none."""
        return _whole([one.times(one.rival_us) for one in self.layers])

    def share(self, one: NetworkLayer) -> float | None:
        """Return a layer's share of the network's time."""
        own, whole = one.times(one.time_us), self.time_us
        return own / whole if own is not None and whole else None

    @property
    def verdict(self) -> str | None:
        """The verdict against all rivals together, without considering the measurements' noise."""
        if self.time_us is None or self.rival_us is None:
            return None
        ratio = self.rival_us / self.time_us
        return _verdict("win" if ratio > 1 else "loss" if ratio < 1 else "tie", ratio)


def networks(store: Store, name: str, kernels: Sequence[BestWithRoofline]) -> list[Network]:
    """Total a study's best kernels by device and measurement mode. A single layer without a rival has no total."""
    layers = [row.layer for row in store.studies.layers(name) if row.study == name]
    if any(kernel.best.study != name for kernel in kernels):
        return []
    study = stored_study(store, name)
    finals = [row for row in store.finals.list(name) if row.superseded_at is None]
    found = []
    places = dict.fromkeys((one.best.row.device, one.best.row.measurement_mode) for one in kernels)
    for device, measurement_mode in places:
        rows = []
        for layer in layers:
            admitted = study.admitted(layer.problem)
            own = [
                one
                for one in kernels
                if (one.best.layer.name, one.best.row.device, one.best.row.measurement_mode)
                == (layer.name, device, measurement_mode)
                and one.best.row.trial.accuracy in admitted
            ]
            kernel = min(own, key=lambda one: one.best.median_us, default=None)
            rows.append(NetworkLayer(layer, kernel, rival_of(kernel, finals, admitted) if kernel else None))
        if len(rows) > 1 or any(row.rival for row in rows):
            found.append(Network(name, device.name, measurement_mode, tuple(rows)))
    return found


def rival_of(kernel: BestWithRoofline, finals: Sequence[FinalsRow], admitted: Sequence[str]) -> Verdict | None:
    """Return the fastest rival in the admitted classes, from the latest finals that made a kernel the best."""
    held = [row for row in finals if row.winner.id == kernel.best.row.id]
    if not held or kernel.best.decided_by != "finals":
        return None
    rivals = [one for one in held[-1].verdicts if one.is_rival and one.against_accuracy in admitted]
    return min(rivals, key=lambda one: one.against_us, default=None)


def stored_study(store: Store, name: str) -> Study:
    """Return the study as it was last tuned, with operations that are bundled or stored with its layers.

    If the study's text can't be parsed, it has no layers.
    """
    text = next((row.text for row in reversed(store.studies.list()) if row.name == name), "")
    with contextlib.suppress(StudyError):
        return parse_study(text, name)
    with contextlib.suppress(StudyError):
        recorded = Study(name, tuple(row.layer for row in store.studies.layers(name)))
        return parse_study(text, name, find=known_to(recorded))
    return Study(name, ())


def _verdict(word: str, ratio: float) -> str:
    return f"{word.upper()} {ratio:.2f}x"


def _whole(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None
