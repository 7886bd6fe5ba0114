"""`autotune.best`: select the best kernels in a results database, for Python and for the command `best`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.api.study_names import name_of
from autotune.devices.backends import KINDS, parse_device
from autotune.devices.device import DeviceInfo, devices_named
from autotune.errors import DeviceError, StoreError, StudyError
from autotune.problem import Layer, Problem, as_conv2d
from autotune.study import Study

if TYPE_CHECKING:
    from autotune.api.device_names import Say
    from autotune.dispatch.dispatcher import Dispatcher
    from autotune.store import BestRow, DispatcherRow, Store


def best(
    what: Study | Problem | str | Path | None = None,
    *,
    db: str | Path = "autotune.db",
    device: str | DeviceInfo | None = None,
    accuracy: str | None = None,
) -> tuple[BestRow, ...]:
    """Return the best kernel of each layer, device and accuracy class.

    `what` is a study (an object, file or name), `study.layer`, a layer's name, or a problem, whatever its layers are
    called; None selects everything. With `device` (cuda:N, host, null, or part of a recorded device's name), only
    kernels for this device are returned, and `match` says how well the device of each kernel matches. If nothing is
    found, the result is empty. Raises StoreError, DeviceError and StudyError.
    """
    from autotune.store import Store

    name = what if isinstance(what, Problem) else name_of(what)
    with Store(db, create=False) as store:
        info = device_named(store, device) if isinstance(device, str) else device
        return store.best.list(name, info, accuracy=accuracy)


def device_named(store: Store, name: str, *, say: Say = lambda *_: None) -> DeviceInfo:
    """Return a device of this machine or a recorded one. Raises DeviceError unless exactly one device matches."""
    try:
        parse_device(name)
    except DeviceError:
        matching = recorded_named(name, store.devices.list())
        if len(matching) > 1:
            names = ", ".join(info.name for info in matching)
            message = f"{name}: several recorded devices have names that contain this: {names}; give more of the name"
            raise DeviceError(message) from None
        return matching[0]
    from autotune.api.device_names import (
        evaluator_of,
    )  # imported here because most answers open no device

    evaluator = evaluator_of(name, 1, say=say)
    evaluator.close()
    return evaluator.info


def recorded_named(name: str, recorded: Sequence[DeviceInfo]) -> Sequence[DeviceInfo]:
    """Return the recorded devices whose name contains `name`. Raises DeviceError if there are none."""
    matching = devices_named(name, recorded)
    if not matching:
        names = ", ".join(dict.fromkeys(info.name for info in recorded)) or "none"
        raise DeviceError(f"{name}: no recorded device of this name; there are {names}; or give cuda:N, host or null")
    return matching


def devices_asked(store: Store, device: str | None, *, say: Say = lambda *_: None) -> Sequence[DeviceInfo] | None:
    """Return the recorded devices that `device` refers to, or None for all devices.

    `device` is cuda:N, a kind (cuda, host, null, replay), or part of a recorded device's name. Raises DeviceError if no
    recorded device matches.
    """
    if device is None:
        return None
    if device.partition(":")[0] in KINDS and ":" in device:
        return [device_named(store, device, say=say)]
    recorded = store.devices.list()
    if device in KINDS:
        return [info for info in recorded if info.kind == device]
    return recorded_named(device, recorded)


def dispatcher_of(store: Store, made: DispatcherRow) -> Dispatcher:
    """Read the dispatcher stored in a row. Raises StoreError if it can't be read."""
    from autotune.dispatch.dispatcher import Dispatcher

    try:
        return Dispatcher.from_json(made.document)
    except StudyError as error:
        raise StoreError(f"{store.shown}: a stored dispatcher cannot be read ({error}); build it again") from error


def latest_dispatchers(
    store: Store, layers: Iterable[Layer], devices: Sequence[DeviceInfo] | None = None, study: str | None = None
) -> list[DispatcherRow]:
    """Return the latest dispatcher for each of these devices, or for every device, newest first.

    Dispatchers built with held-out layers are excluded. `layers` are the layers that the caller is interested in.
    Raises StoreError if there is no dispatcher, and StudyError if one of the layers isn't a conv2d.
    """
    for layer in layers:
        as_conv2d(layer.problem, "a dispatcher")
    on = None if devices is None else {info.identity for info in devices}
    latest: dict[tuple[str, str, int, int, int], DispatcherRow] = {}
    for row in store.dispatchers.list(study):
        if not row.held_out and (on is None or row.device.identity in on):
            latest.setdefault(row.device.identity, row)
    if not latest:
        where = f" on {', '.join(info.name for info in devices)}" if devices else ""
        raise StoreError(
            f"{store.shown}: no dispatcher was made{where} of all layers of {study or 'a study'}; "
            "run `autotune dispatch STUDY` first"
        )
    return list(latest.values())
