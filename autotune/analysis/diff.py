"""Rows of `diff` -> their cells, such as the faster side. Also find the side that a word stands for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autotune.analysis.trial_rows import problem_of_row
from autotune.columns import Cells
from autotune.devices.device import DeviceInfo, devices_named
from autotune.errors import StoreError
from autotune.measurement.benchmark import median_half_width
from autotune.store import Side, StudyRow, stored_config
from autotune.trial import Config


def resolve(word: str, studies: Sequence[StudyRow], devices: Sequence[DeviceInfo]) -> Side:
    """Find the side that a word stands for.

    A side is a study (`NAME` for the newest generation that started in this database, or `NAME@GENERATION`) or a device
    (its name or a part of it). Raises StoreError if the word stands for nothing, or for more than one side.
    """
    on_devices = [Side("device", info.name, device=info) for info in devices_named(word, devices)]
    found = [*_studies(word, studies), *on_devices]
    if len(found) == 1:
        return found[0]
    if found:
        sides = ", ".join(f"the {side.kind} {side}" for side in found)
        raise StoreError(f"{word!r} fits {sides}; give NAME@GENERATION of a study, or more of a device's name")
    raise StoreError(
        f"{word!r} is neither a study nor a device; there are the studies {_listed(_study_names(studies))}, "
        f"the devices {_listed([info.name for info in devices])}"
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
        return [_study(max(own or named, key=lambda study: study.generation))]
    return [_study(study) for study in studies if word == f"{study.name}@{study.generation}"]


def _study(study: StudyRow) -> Side:
    return Side("study", f"{study.name} generation {study.generation}", study=study.name, generation=study.generation)


def diff_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Cells]:
    """Yield the rows of `Store.results.diff`, with additional cells computed from the columns.

    `verdict` is `faster` or `slower` if the second side is faster or slower by more than the noise, and otherwise
    `same`. `only A` and `only B` mean that the other side has no kernel. `not comparable` means that one kernel was
    timed with launch gaps and the other in a CUDA graph.
    """
    for row in rows:
        noise, changes = None, None
        if row["a_us"] is not None and row["b_us"] is not None:
            noise = max(row["noise_floor"], _uncertainty(row, "a") + _uncertainty(row, "b"))
        before, after = (
            None if row[f"template_{side}"] is None else stored_config(row[f"template_{side}"], row[f"config_{side}"])
            for side in "ab"
        )
        if before is not None and after is not None:
            changes = _changes(before, after)
        yield {
            **row,
            "layer": row["layer_b"] or row["layer_a"],
            "device": row["device_b"] or row["device_a"],
            "problem": str(problem_of_row(row)),
            "deterministic": bool(row["deterministic"]),
            "noise_fraction": noise,
            "verdict": _verdict(row, noise),
            "config_changed": None if changes is None else before != after,
            "changes": changes or None,
            "config_a": before,
            "config_b": after,
        }


def _uncertainty(row: Mapping[str, Any], side: str) -> float:
    """Return the uncertainty of the samples' median, as a fraction of the median."""
    samples_us, median_us = json.loads(row[f"{side}_samples_us"]), row[f"{side}_us"]
    return float(median_half_width(samples_us) / median_us) if samples_us and median_us else 0.0


def _verdict(row: Mapping[str, Any], noise: float | None) -> str:
    if noise is None:
        return "only A" if row["b_us"] is None else "only B"
    ratio = row["b_over_a"]
    if ratio is None:
        return "not comparable"
    if abs(ratio - 1) <= noise:
        return "same"
    return "slower" if ratio > 1 else "faster"


def _changes(before: Config, after: Config) -> str:
    """List the changes between two configs, such as `bands=1->3`."""
    if before.template != after.template:
        return f"{before.template}->{after.template}"
    old = before.params
    return " ".join(f"{name}={old.get(name)}->{value}" for name, value in after.pairs if old.get(name) != value)
