"""Which trials an answer is about: `--device`, `--accuracy`, `--family` and `--layer` together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from autotune.analysis.trial_columns import layer_name
from autotune.api.answers import device_named, devices_asked
from autotune.api.study_names import matches
from autotune.cli.options import ACCURACY, FAMILIES, LAYERS, OF_DEVICE
from autotune.devices.device import DeviceInfo
from autotune.toml_table import did_you_mean

if TYPE_CHECKING:
    from autotune.store import Store


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """Which trials to include; None and () exclude nothing."""

    device: str | None = None
    accuracy: str | None = None
    templates: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self == FilterOptions()

    def of(self, store: Store) -> TrialFilter:
        """Which trials are of these. Raises DeviceError for a device that the database has nothing of."""
        devices = devices_asked(store, self.device, say=say_device)
        return TrialFilter(self, None if devices is None else frozenset(info.name for info in devices))

    def warn_unknown(self, store: Store) -> None:
        """Say which layers and families the database has none of: why nothing is left may be that."""
        known = store.studies.layer_names()
        for option, names, there in (
            ("--layer", self.layers, known | {name.rpartition(".")[2] for name in known}),
            ("--family", self.templates, store.templates.families()),
        ):
            for name in names:
                if name not in there:
                    hint = did_you_mean(name, sorted(there))
                    click.echo(f"{option} {name}: {store.path} has nothing of this name{hint}", err=True)


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """Whether a trial is one of those."""

    only: FilterOptions
    devices: frozenset[str] | None
    """their names"""

    def __call__(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of trials or of events is one of those."""
        only = self.only
        return (
            (self.devices is None or row["device"] in self.devices)
            and only.accuracy in (None, row["accuracy"])
            and (not only.templates or row["template"] in only.templates)
            and matches(layer_name(row), only.layers)
        )


def filter_options(function: Callable[..., None]) -> Callable[..., None]:
    """The four options, passed on as `only`."""

    @functools.wraps(function)
    def chosen(
        *arguments: object,
        device: str | None,
        accuracy: str | None,
        only_families: tuple[str, ...],
        only_layers: tuple[str, ...],
        **given: object,
    ) -> None:
        function(*arguments, only=FilterOptions(device, accuracy, only_families, only_layers), **given)

    for option in reversed((OF_DEVICE, ACCURACY, FAMILIES, LAYERS)):
        chosen = option(chosen)
    return chosen


def one_device(store: Store, device: str | None) -> DeviceInfo | None:
    """The device, here or recorded, that an answer is for; None: any. Raises DeviceError unless one has this name."""
    return None if device is None else device_named(store, device, say=say_device)


def say_device(info: DeviceInfo, name: str, why: str) -> None:
    """Say on standard error which device was taken and why."""
    remark = "; a CPU's ranking of kernels says nothing about a GPU's" if info.can.cpu else ""
    click.echo(f"device {name}: {info.name} ({why}){remark}", err=True)
