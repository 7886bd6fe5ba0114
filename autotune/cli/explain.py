"""`dispatch --explain`: the kernel that a stored dispatcher chooses for a layer, tuned or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.api.answers import dispatcher_of
from autotune.cli.best import layers_of_file, named_layers
from autotune.cli.filters import one_device
from autotune.cli.tables import show
from autotune.columns import Column, Items
from autotune.devices.device import DeviceInfo
from autotune.dispatch.dispatcher import Choice
from autotune.errors import StoreError
from autotune.problem import Layer, as_conv2d

if TYPE_CHECKING:
    from autotune.store import DispatcherRow, Store


@dataclass(frozen=True, slots=True)
class _Served:
    """A layer, and the kernel that a dispatcher chooses for it."""

    name: str
    """study.layer"""
    layer: Layer
    made: DispatcherRow
    choice: Choice


COLUMNS = (
    Column[_Served]("layer", lambda row: row.name),
    Column[_Served]("problem", lambda row: str(row.layer.problem), terminal=False),
    Column[_Served]("device", lambda row: row.made.device.name),
    Column[_Served]("dispatcher", lambda row: row.made.study),
    Column[_Served]("default_first", lambda row: row.choice.default_first),
    Column[_Served]("kernel", lambda row: row.choice.kernel.name if row.choice.kernel else "to be tuned"),
    Column[_Served]("template", lambda row: row.choice.kernel.config.template if row.choice.kernel else None),
    Column[_Served]("config", lambda row: row.choice.kernel.config if row.choice.kernel else None),
    Column[_Served](
        "passed_over",
        lambda row: Items(tuple(row.choice.passed_over)),
        terminal=False,
    ),
)


def explain(what: str, db: str, device: str | None, style: str | None) -> None:
    """Show the kernel that each device's latest dispatcher chooses for the layers of a study, or for one layer.

    The layers may be those of a study file that was never tuned. `default_first`: no threshold of the rule applies to
    the layer, so the safe default comes first.
    """
    from autotune.store import Store

    of_file = layers_of_file(what)
    with Store(db, create=False) as store:
        info = one_device(store, device)
        layers = of_file or named_layers(store, what)
        made_of = latest_dispatchers(store, [layer for _, layer in layers], info)
        dispatchers = [(made, dispatcher_of(store, made)) for made in made_of]
    show(
        [
            _Served(name, layer, made, dispatcher.choose(layer.problem))
            for name, layer in layers
            for made, dispatcher in dispatchers
        ],
        COLUMNS,
        style,
    )


def latest_dispatchers(store: Store, layers: Sequence[Layer], info: DeviceInfo | None) -> Sequence[DispatcherRow]:
    """The latest dispatcher of each device, or of this one, that was built from all layers of its study.

    `layers` are the layers in question. Raises StoreError if there is no dispatcher, StudyError for other operations.
    """
    for layer in layers:
        as_conv2d(layer.problem, "a dispatcher")
    found: dict[tuple[str, str, int, int, int], DispatcherRow] = {}
    for row in store.dispatchers.list():
        if not row.held_out and (info is None or row.device.identity == info.identity):
            found.setdefault(row.device.identity, row)
    if not found:
        on = f" on {info.name}" if info else ""
        raise StoreError(
            f"{store.path}: no dispatcher was made{on} of all layers of a study; run `autotune dispatch STUDY` first"
        )
    return list(found.values())


def unsupported_layers(store: Store, layers: Sequence[Layer], info: DeviceInfo) -> tuple[Layer, ...]:
    """The layers that no kernel of a device's latest dispatcher fits. Raises StoreError where it has none."""
    (made,) = latest_dispatchers(store, layers, info)
    dispatcher = dispatcher_of(store, made)
    return tuple(layer for layer in layers if dispatcher.choose(layer.problem).kernel is None)
