"""The columns of a list of trials, and what is said of the kernels that are faster than their floors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from autotune.analysis.facts import Facts
from autotune.analysis.rooflines import TrialWithRoofline
from autotune.columns import Column, Items
from autotune.trial import Config

if TYPE_CHECKING:
    from autotune.store import SpaceTrial, TrialRow


class Beaten:
    """Which kernels are faster than their floors, noted as rows are shown, and told afterwards."""

    def __init__(self) -> None:
        self.rows = 0
        """that were shown"""
        self._devices: dict[str, dict[str, float]] = {}

    def seen(self, found: Iterable[TrialWithRoofline]) -> Iterator[TrialWithRoofline]:
        """The rows, each noted."""
        for trial in found:
            self.note(trial.row.device.name, trial.row.name, trial.facts.floor_fraction)
            yield trial

    def note(self, device: str, layer: str, floor_fraction: float | None) -> None:
        """Note a row."""
        self.rows += 1
        if (fraction := floor_fraction or 0.0) > 1.0:
            of_device = self._devices.setdefault(device, {})
            of_device[layer] = max(fraction, of_device.get(layer, 0.0))

    def add(self, more: Beaten) -> None:
        """Have noted what another has."""
        self.rows += more.rows
        for device, fractions in more._devices.items():
            of_device = self._devices.setdefault(device, {})
            for layer, fraction in fractions.items():
                of_device[layer] = max(fraction, of_device.get(layer, 0.0))

    def tell(self) -> None:
        """Say which on standard error, a line for each device."""
        for device, fractions in self._devices.items():
            most = max(fractions, key=fractions.__getitem__)
            others = f" (and {len(fractions) - 1} more)" if len(fractions) > 1 else ""
            click.echo(
                f"{device}: {most}{others} is {fractions[most] - 1:.1%} faster than its floor, so the floor is wrong: "
                f"the device's stored rates are too low; run `autotune devices --calibrate` there",
                err=True,
            )


def tell_beaten(found: Iterable[tuple[TrialRow | SpaceTrial, Facts]]) -> None:
    """Say on standard error which kernels are faster than their floors."""
    beaten = Beaten()
    for row, facts_of_it in found:
        beaten.note(row.device.name, row.name, facts_of_it.floor_fraction)
    beaten.tell()


def config_words(row: TrialRow | SpaceTrial) -> str:
    """The parameters of a row's config as `name=value` words."""
    return parameter_words(row.trial.config)


def parameter_words(config: Config) -> str:
    """A config's parameters as `name=value` words."""
    return " ".join(f"{name}={value}" for name, value in config.items)


def registers(row: TrialRow | SpaceTrial) -> int | None:
    """None where no compiler reported them, as on the host."""
    return row.trial.resources.registers or None


def spill_bytes(row: TrialRow | SpaceTrial) -> int | None:
    return row.trial.resources.spill_bytes if row.trial.resources.registers else None


def blocks(found: Facts) -> int | None:
    return found.residency.blocks if found.residency else None


def warps(found: Facts) -> int | None:
    return found.residency.warps if found.residency else None


def limits(found: Facts) -> Items | None:
    """What allows no further block on a multiprocessor, such as `registers and warps`."""
    return Items(tuple(found.residency.limits), " and ") if found.residency else None


TRIAL_COLUMNS = (
    Column[TrialWithRoofline]("layer", lambda trial: trial.row.name),
    Column[TrialWithRoofline]("number", lambda trial: trial.row.trial.number),
    Column[TrialWithRoofline]("device", lambda trial: trial.row.device.name, terminal=False),
    Column[TrialWithRoofline]("template", lambda trial: trial.row.trial.config.template, terminal=False),
    Column[TrialWithRoofline]("config", lambda trial: trial.row.trial.config, below=True),
    Column[TrialWithRoofline]("accuracy", lambda trial: trial.row.trial.accuracy, terminal=False),
    Column[TrialWithRoofline]("outcome", lambda trial: trial.row.trial.outcome.value),
    Column[TrialWithRoofline]("reason", lambda trial: trial.row.trial.reason),
    Column[TrialWithRoofline]("median_us", lambda trial: trial.row.median_us),
    Column[TrialWithRoofline]("gflops", lambda trial: trial.row.gflops),
    Column[TrialWithRoofline]("gb_per_s", lambda trial: trial.facts.gb_per_s, terminal=False),
    Column[TrialWithRoofline]("floor_fraction", lambda trial: trial.facts.floor_fraction, terminal=False),
    Column[TrialWithRoofline]("limiter", lambda trial: trial.facts.limiter, terminal=False),
    Column[TrialWithRoofline]("registers", lambda trial: registers(trial.row)),
    Column[TrialWithRoofline]("spill_bytes", lambda trial: spill_bytes(trial.row), terminal=False),
    Column[TrialWithRoofline](
        "smem_bytes", lambda trial: trial.row.trial.smem_bytes if trial.row.trial.compiled else None, terminal=False
    ),
    Column[TrialWithRoofline]("blocks_per_sm", lambda trial: blocks(trial.facts), terminal=False),
    Column[TrialWithRoofline]("warps_per_sm", lambda trial: warps(trial.facts), terminal=False),
    Column[TrialWithRoofline]("occupancy", lambda trial: trial.row.trial.occupancy, terminal=False),
    Column[TrialWithRoofline]("occupancy_limits", lambda trial: limits(trial.facts), terminal=False),
    Column[TrialWithRoofline]("error_over_bound", lambda trial: trial.row.trial.over_bound, terminal=False),
    Column[TrialWithRoofline]("compile_us", lambda trial: trial.row.trial.phases.compile_us, terminal=False),
    Column[TrialWithRoofline]("verify_us", lambda trial: trial.row.trial.phases.verify_us, terminal=False),
    Column[TrialWithRoofline]("measure_us", lambda trial: trial.row.trial.phases.measure_us, terminal=False),
    Column[TrialWithRoofline]("message", lambda trial: trial.row.trial.message, below=True),
    Column[TrialWithRoofline]("source_hash", lambda trial: trial.row.trial.source_hash, terminal=False),
    Column[TrialWithRoofline]("generation", lambda trial: trial.row.generation, terminal=False),
    Column[TrialWithRoofline](
        "problem", lambda trial: None if trial.row.problem is None else str(trial.row.problem), terminal=False
    ),
    Column[TrialWithRoofline]("date", lambda trial: trial.row.ended_at, terminal=False),
    Column[TrialWithRoofline]("proposed_by", lambda trial: trial.row.proposed_by, terminal=False),
    Column[TrialWithRoofline](
        "origin",
        lambda trial: trial.row.origin,
        text=lambda trial: None if trial.row.origin == "measured" else trial.row.origin,
    ),
)
