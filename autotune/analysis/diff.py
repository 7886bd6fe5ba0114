"""best -> diff: the best of each layer on two sides, which are two studies, two devices or two dates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from autotune.devices.device import DeviceInfo, devices_named
from autotune.errors import StoreError
from autotune.measurement.benchmark import median_half_width
from autotune.store import BestRow, StudyRow
from autotune.trial import Timing, comparable

SIDES = ("study", "device", "date")
"""What a side can be."""


@dataclass(frozen=True, slots=True)
class StudySide:
    """One generation of a study."""

    name: str
    generation: int

    kind = "study"

    def __str__(self) -> str:
        return f"{self.name} generation {self.generation}"


@dataclass(frozen=True, slots=True)
class DeviceSide:
    """One recorded device."""

    device: DeviceInfo

    kind = "device"

    def __str__(self) -> str:
        return self.device.name


@dataclass(frozen=True, slots=True)
class DateSide:
    """What was the best at a moment."""

    until: datetime

    kind = "date"

    def __str__(self) -> str:
        return f"{self.until:%Y-%m-%d %H:%M} UTC"


Side = StudySide | DeviceSide | DateSide


def resolve(word: str, studies: Sequence[StudyRow], devices: Sequence[DeviceInfo], by: str | None = None) -> Side:
    """The side that a word stands for.

    That is a study (`NAME`, the newest generation begun here, or `NAME@GENERATION`), a device (its name or a part of
    it) or a date (ISO 8601; a day stands for its end, UTC).

    `by`, one of SIDES, admits only that. Raises StoreError when a word stands for nothing or for two things.
    """
    found: list[Side] = []
    if by in (None, "study"):
        found += _studies(word, studies)
    if by in (None, "device"):
        found += [DeviceSide(info) for info in devices_named(word, devices)]
    if by in (None, "date"):
        found += _dates(word)
    if len(found) == 1:
        return found[0]
    if found:
        kinds = sorted({side.kind for side in found})
        if len(kinds) > 1:
            raise StoreError(f"{word!r} is a {' and a '.join(kinds)}; say which with --by {' or --by '.join(kinds)}")
        raise StoreError(f"{word!r} fits {', '.join(str(side) for side in found)}; give more of the name")
    known = {
        "study": f"the studies {_listed(_study_names(studies))}",
        "device": f"the devices {_listed([info.name for info in devices])}",
        "date": "ISO dates such as 2026-11-20 or 2026-11-20T14:00",
    }
    raise StoreError(
        f"{word!r} is nothing to compare; there are {', '.join(known[kind] for kind in SIDES if by in (None, kind))}"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "(none)"


def _study_names(studies: Sequence[StudyRow]) -> list[str]:
    counts = Counter(study.name for study in studies)
    return [name if count == 1 else f"{name}@1 to {name}@{count}" for name, count in counts.items()]


def _studies(word: str, studies: Sequence[StudyRow]) -> list[Side]:
    named = [study for study in studies if study.name == word]
    if named:
        own = [study for study in named if study.imported_from is None]
        return [StudySide(word, max(study.generation for study in own or named))]
    return [StudySide(study.name, study.generation) for study in studies if word == f"{study.name}@{study.generation}"]


def _dates(word: str) -> list[Side]:
    try:
        return [DateSide(datetime.combine(date.fromisoformat(word), time.max, UTC))]
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(word)
        return [DateSide(moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC))]
    except (ValueError, OverflowError):
        return []


@dataclass(frozen=True, slots=True)
class Difference:
    """A layer's best on both sides; one side may have none."""

    before: BestRow | None
    after: BestRow | None
    noise: float | None
    """fraction below which no difference is claimed; None with one side"""

    @property
    def either(self) -> BestRow:
        """The side that there is, the second if both are."""
        found = self.after or self.before
        assert found is not None  # noqa: S101 - one side at least
        return found

    @property
    def ratio(self) -> float | None:
        """Time on the second side over time on the first; None with one side, or for times taken in different ways."""
        if self.before is None or self.after is None or not comparable(self.before.timing, self.after.timing):
            return None
        return self.after.median_us / self.before.median_us

    @property
    def verdict(self) -> str:
        """`faster` or `slower` for the second side beyond noise, `same`, `only A` or `only B`.

        `not comparable` where one was timed with launch gaps and the other from a graph.
        """
        if self.before is None or self.after is None:
            return "only A" if self.after is None else "only B"
        if self.ratio is None:
            return "not comparable"
        if abs(self.ratio - 1) <= (self.noise or 0.0):
            return "same"
        return "slower" if self.ratio > 1 else "faster"

    @property
    def config_changed(self) -> bool | None:
        """Whether another config is the best; None with one side."""
        if self.before is None or self.after is None:
            return None
        return self.before.row.trial.config != self.after.row.trial.config

    @property
    def changes(self) -> str:
        """What changed in the config, such as `bands=1->3`."""
        if self.before is None or self.after is None or not self.config_changed:
            return ""
        old, new = self.before.row.trial.config, self.after.row.trial.config
        if old.template != new.template:
            return f"{old.template}->{new.template}"
        earlier = old.params
        return " ".join(
            f"{name}={earlier.get(name)}->{value}" for name, value in new.pairs if earlier.get(name) != value
        )


def differences(
    before: Sequence[BestRow],
    after: Sequence[BestRow],
    floor: Callable[[BestRow], float | None],
    *,
    across_devices: bool = False,
) -> tuple[Difference, ...]:
    """Pair the two sides by shape, class, determinism, measurement mode and, unless devices are compared, device.

    `floor` is the noise floor recorded for a best's device and measurement mode. Layers keep the first side's order.
    """
    firsts, seconds = _keyed(before, across_devices=across_devices), _keyed(after, across_devices=across_devices)
    found = []
    for key in dict.fromkeys([*firsts, *seconds]):
        first, second = firsts.get(key), seconds.get(key)
        noise = None
        if first is not None and second is not None:
            floors = (floor(first) or 0.0, floor(second) or 0.0)
            noise = max(*floors, _uncertainty(first.timing) + _uncertainty(second.timing))
        found.append(Difference(first, second, noise))
    return tuple(found)


def _keyed(rows: Sequence[BestRow], *, across_devices: bool) -> dict[Hashable, BestRow]:
    """The rows by what makes two of them comparable; twins of one shape are counted."""
    found: dict[Hashable, BestRow] = {}
    for row in rows:
        trial = row.row.trial
        device = None if across_devices else row.row.device.identity
        key = (row.layer.problem, device, trial.accuracy, trial.deterministic, row.row.measurement_mode)
        twin = 0
        while (key, twin) in found:
            twin += 1
        found[key, twin] = row
    return found


def _uncertainty(timing: Timing) -> float:
    """Fraction by which the median of the samples may be off."""
    if not timing.samples_us or not timing.median_us:
        return 0.0
    return median_half_width(timing.samples_us) / timing.median_us
