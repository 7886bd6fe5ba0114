"""Records to the values of rows and back."""

from __future__ import annotations

import json
import math
import statistics
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import TypeVar

from sqlalchemy import RowMapping

from autotune.compilation.compile import Program
from autotune.devices.device import DeviceInfo, Environment
from autotune.devices.tensor_map import TensorMap
from autotune.errors import StoreError
from autotune.family.source import ConstantSymbol, KernelSource, Stage, fields_of
from autotune.family.tensor_map_template import NamedTensorMap
from autotune.problem import Conv2dProblem, Layer
from autotune.store.columns import Values, date_of, finite
from autotune.store.records import KernelProfile, TrialRow
from autotune.store.tables import (
    COUNTERS,
    PROBLEM_COLUMNS,
    devices,
    environments,
    layers,
    measurements,
    profiles,
    runs,
    sources,
    spans,
    studies,
    study_layers,
    templates,
    trials,
)
from autotune.trial import Config, ErrorStats, Outcome, Phases, Resources, SpanParts, Timing, Trial

_Json = str | int | list[str] | list[int]
Key = TypeVar("Key")
Record = TypeVar("Record")

ZLIB_LEVEL = 1
"""a kernel's text takes half the time that it takes at the usual level, and a tenth more room"""
LARGEST_INTEGER = 2**63 - 1
"""SQLite's integers are signed and have 64 bits"""
DEVICE_COLUMNS = (
    *("kind", "name", "arch", "sm_count", "memory_bytes"),
    *("max_threads_per_block", "smem_per_block_bytes", "smem_per_sm_bytes", "registers_per_sm"),
    *("max_warps_per_sm", "max_blocks_per_sm", "constant_bytes", "l2_bytes"),
)
"""DeviceInfo's fields in its order, but for the two triples; the first five are the identity."""


def problem_values(problem: Conv2dProblem) -> Values:
    """The columns that identify a layer."""
    return {name: getattr(problem, name) for name in PROBLEM_COLUMNS}


def problem_extras(problem: Conv2dProblem) -> Values:
    """The columns computed from a problem. Raises StoreError when they do not fit SQLite's integers."""
    extras: Values = {"p": problem.p, "q": problem.q, "flops": problem.flops, "minimal_bytes": problem.tensor_bytes}
    if max(problem.flops, problem.tensor_bytes) > LARGEST_INTEGER:
        raise StoreError(f"layer {problem}: too large to store, over 2^63 operations or bytes; make n smaller")
    return extras


def problem_of(row: RowMapping) -> Conv2dProblem:
    """The problem of a row that has the columns of `layers`."""
    return Conv2dProblem(*(row[layers.c[name]] for name in PROBLEM_COLUMNS))


def layer_of(row: RowMapping) -> Layer:
    """The layer of a row that has the columns of `layers` and `study_layers`; the name is empty where unknown."""
    return Layer(row[study_layers.c.name] or "", problem_of(row), row[study_layers.c.count] or 1)


def device_identity(info: DeviceInfo) -> Values:
    """The columns that identify a device."""
    return {name: getattr(info, name) for name in DEVICE_COLUMNS[:5]}


def device_limits(info: DeviceInfo) -> Values:
    """The other columns of a device."""
    values: Values = {name: getattr(info, name) for name in DEVICE_COLUMNS[5:]}
    for axis, grid, block in zip("xyz", info.grid_limits, info.block_limits, strict=True):
        values[f"grid_limit_{axis}"] = grid
        values[f"block_limit_{axis}"] = block
    return values


def device_of(row: RowMapping) -> DeviceInfo:
    """The device of a row that has the columns of `devices`."""
    column = devices.c
    sizes = {name: row[column[name]] for name in DEVICE_COLUMNS}
    return DeviceInfo(
        **sizes,
        grid_limits=(row[column.grid_limit_x], row[column.grid_limit_y], row[column.grid_limit_z]),
        block_limits=(row[column.block_limit_x], row[column.block_limit_y], row[column.block_limit_z]),
    )


def environment_identity(environment: Environment) -> Values:
    """The columns that are matched."""
    return {"driver": environment.driver, "toolkit": environment.toolkit, "flags": environment.flags}


def environment_of(row: RowMapping) -> Environment:
    """The environment of a row that has the columns of `environments` and `runs`."""
    column = environments.c
    attributes = json.loads(row[runs.c.attributes])
    return Environment(row[column.driver], row[column.toolkit], row[column.flags], attributes)


def source_values(source: KernelSource) -> Values:
    """The columns of a rendered kernel, but for its layer."""
    text = source.program.text.encode("utf-8", "backslashreplace")
    packed = zlib.compress(text, ZLIB_LEVEL)
    launches: dict[str, object] = {
        "prepare": [fields_of(stage) for stage in source.prepare],
        "stages": [fields_of(stage) for stage in source.stages],
        "loop_count": source.loop_count,
        "constants": [fields_of(symbol) for symbol in source.constants],
        "packed_w_bytes": source.packed_w_bytes,
        "workspace_bytes": source.workspace_bytes,
        **({} if source.error_factor == 1 else {"error_factor": source.error_factor}),
        **({} if source.flops is None else {"flops": source.flops}),
    }
    if source.tensor_maps:
        launches["tensor_maps"] = [asdict(each) for each in source.tensor_maps]
    return {
        "hash": source.hash,
        "text_zlib": packed if len(packed) < len(text) else text,  # as sqlar_uncompress expects
        "text_bytes": len(text),
        "entries": json.dumps(source.program.entries),
        "flags": json.dumps(source.program.flags),
        "launches": json.dumps(launches),
        "accuracy": source.accuracy,
        "deterministic": source.deterministic,
    }


def source_text(row: RowMapping) -> str:
    """The kernel's text of a row that has the columns of `sources`."""
    return unpacked(row[sources.c.text_zlib], row[sources.c.text_bytes])


def unpacked(text_zlib: bytes, text_bytes: int) -> str:
    """A kernel's text; one that zlib does not make smaller is stored as it is."""
    return (text_zlib if len(text_zlib) == text_bytes else zlib.decompress(text_zlib)).decode()


def source_of(row: RowMapping, config: Config) -> KernelSource:
    """The rendered kernel of a row that has the columns of `sources` and `layers`."""
    column = sources.c
    launches = json.loads(row[column.launches])
    return KernelSource(
        problem=problem_of(row),
        config=config,
        program=Program(source_text(row), tuple(json.loads(row[column.entries])), tuple(json.loads(row[column.flags]))),
        prepare=tuple(_stage_of(stage) for stage in launches["prepare"]),
        stages=tuple(_stage_of(stage) for stage in launches["stages"]),
        loop_count=launches["loop_count"],
        constants=tuple(ConstantSymbol(**symbol) for symbol in launches["constants"]),
        packed_w_bytes=launches["packed_w_bytes"],
        workspace_bytes=launches["workspace_bytes"],
        accuracy=row[column.accuracy],
        deterministic=row[column.deterministic],
        error_factor=launches.get("error_factor", 1),
        flops=launches.get("flops"),
        tensor_maps=tuple(_tensor_map_of(**each) for each in launches.get("tensor_maps", ())),
    )


def _tensor_map_of(name: str, array: str, tensor: Mapping[str, _Json]) -> NamedTensorMap:
    """A tensor map from its JSON."""
    return NamedTensorMap(name, array, TensorMap(**_with_tuples(tensor)))  # type: ignore[arg-type]  # as _stage_of


def _stage_of(stage: Mapping[str, _Json]) -> Stage:
    """A stage from its JSON."""
    return Stage(**_with_tuples(stage))  # type: ignore[arg-type]  # written by source_values from a Stage


def _with_tuples(fields: Mapping[str, _Json]) -> dict[str, object]:
    """A record's fields, whose tuples became lists in JSON."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def outcome_values(trial: Trial) -> Values:
    """The columns that the end of a trial fills. Raises StoreError for a correct trial's time that is no number."""
    error = trial.error or ErrorStats(math.nan, math.nan)
    resources = trial.resources
    reported = resources != Resources()
    values: Values = {
        "outcome": str(trial.outcome),
        "reason": trial.reason,
        "message": trial.message,
        "accuracy": trial.accuracy,
        "deterministic": trial.deterministic,
        "registers": resources.registers if reported else None,
        "spill_bytes": resources.spill_bytes if reported else None,
        "static_smem_bytes": resources.static_smem_bytes if reported else None,
        "constant_bytes": resources.constant_bytes if reported else None,
        "smem_bytes": trial.smem_bytes,
        "occupancy": finite(trial.occupancy),
        "error_over_bound": finite(error.over_bound),
        "error_max_abs": finite(error.max_abs),
        "median_us": trial.median_us,
        "ranked_us": trial.median_us,
    }
    for phase in fields(Phases):  # asdict would copy deeply
        values[phase.name] = finite(getattr(trial.phases, phase.name)) or 0.0
    return values


def timing_values(timing: Timing, what: str) -> Values:
    """The columns of a measurement. Raises StoreError when a time is not a finite number."""
    for value in (*timing.samples_us, timing.median_us, timing.q1_us, timing.q3_us, *timing.sm_clocks_mhz):
        if not math.isfinite(value):
            raise StoreError(f"{what}: a time of {value} us was measured; only finite times are stored")
    return {
        "cache": timing.cache,
        "sample_count": len(timing.samples_us),
        "samples_us": json.dumps(timing.samples_us, separators=(",", ":")),
        "median_us": timing.median_us,
        "q1_us": timing.q1_us,
        "q3_us": timing.q3_us,
        "sm_clock_mhz": statistics.median(timing.sm_clocks_mhz) if timing.sm_clocks_mhz else None,
        "sm_clocks_mhz": json.dumps(timing.sm_clocks_mhz, separators=(",", ":")) if timing.sm_clocks_mhz else None,
        "discarded_count": timing.discarded,
        "throttled_count": timing.throttled,
        "pass_count": timing.passes,
        "launch": timing.launch,
        "power_w": finite(timing.power_w),
        "temperature_c": finite(timing.temperature_c),
    }


def timing_of(row: RowMapping) -> Timing:
    """The timing of a row that has the columns of `measurements`."""
    column = measurements.c
    clocks: str | None = row[column.sm_clocks_mhz]
    return Timing(
        samples_us=tuple(json.loads(row[column.samples_us])),
        median_us=row[column.median_us],
        q1_us=row[column.q1_us],
        q3_us=row[column.q3_us],
        cache=row[column.cache],
        sm_clocks_mhz=() if clocks is None else tuple(json.loads(clocks)),
        discarded=row[column.discarded_count] or 0,
        throttled=row[column.throttled_count] or 0,
        passes=row[column.pass_count] or 1,
        launch="graph" if row[column.launch] == "graph" else "stream",
        power_w=row[column.power_w],
        temperature_c=row[column.temperature_c],
    )


def config_of(row: RowMapping) -> Config:
    """The config of a row that has the columns of `trials` and `templates`."""
    return Config.of(row[templates.c.family], json.loads(row[trials.c.config]))


def trial_of(row: RowMapping) -> Trial:
    """The trial of a row that has the columns of `trials`, `templates`, `sources` and `measurements`."""
    column = trials.c
    over_bound, max_abs = row[column.error_over_bound], row[column.error_max_abs]
    error = None
    if over_bound is not None or max_abs is not None:
        error = ErrorStats(math.nan if over_bound is None else over_bound, math.nan if max_abs is None else max_abs)
    return Trial(
        number=row[column.number],
        config=config_of(row),
        outcome=Outcome(row[column.outcome]),
        reason=row[column.reason],
        message=row[column.message],
        source_hash=row[sources.c.hash],
        accuracy=row[column.accuracy],
        deterministic=row[column.deterministic],
        resources=Resources(
            registers=row[column.registers] or 0,
            spill_bytes=row[column.spill_bytes] or 0,
            static_smem_bytes=row[column.static_smem_bytes] or 0,
            constant_bytes=row[column.constant_bytes] or 0,
        ),
        smem_bytes=row[column.smem_bytes],
        occupancy=row[column.occupancy],
        timing=None if row[measurements.c.id] is None else timing_of(row),
        error=error,
        phases=Phases(
            render_us=row[column.render_us],
            compile_us=row[column.compile_us],
            load_us=row[column.load_us],
            verify_us=row[column.verify_us],
            measure_us=row[column.measure_us],
        ),
    )


class TrialRows:
    """Makes trials of rows that have the columns of every table joined in `answers`.

    What many of them share, such as their device, is made once: it takes longer than all the rest of a trial.
    """

    def __init__(self) -> None:
        self._layers: dict[tuple[int, str | None, int | None], Layer] = {}
        self._devices: dict[int, DeviceInfo] = {}
        self._environments: dict[int, Environment] = {}
        self._stages: dict[str | None, tuple[Stage, ...]] = {}
        self._flops: dict[str | None, int | None] = {}

    def of(self, row: RowMapping) -> TrialRow:
        """The trial of a row."""
        column = trials.c
        ended_at: str | None = row[column.ended_at]
        layer = row[layers.c.id], row[study_layers.c.name], row[study_layers.c.count]
        launches = row[sources.c.launches]
        return TrialRow(
            id=row[column.id],
            study=row[studies.c.name],
            generation=row[studies.c.generation],
            layer=_once(self._layers, layer, lambda: layer_of(row)),
            device=_once(self._devices, row[column.device_id], lambda: device_of(row)),
            environment=_once(self._environments, row[column.run_id], lambda: environment_of(row)),
            policy=row[column.policy],
            template_hash=row[templates.c.hash],
            trial=trial_of(row),
            started_at=date_of(row[column.started_at]),
            ended_at=None if ended_at is None else date_of(ended_at),
            reused=row[column.reused_trial_id] is not None,
            attempts=row[column.attempts],
            stages=_once(self._stages, launches, lambda: _stages_of(launches)),
            flops=_once(self._flops, launches, lambda: None if launches is None else json.loads(launches).get("flops")),
            origin=row[column.origin],
            proposed_by=row[column.proposed_by],
            ranked_us=row[column.ranked_us],
        )


def _once(made: dict[Key, Record], key: Key, make: Callable[[], Record]) -> Record:
    if key not in made:
        made[key] = make()
    return made[key]


def _stages_of(launches: str | None) -> tuple[Stage, ...]:
    return () if launches is None else tuple(_stage_of(stage) for stage in json.loads(launches).get("stages", ()))


def span_values(parts: SpanParts, what: str) -> Values:
    """The columns of an end-to-end trial's parts. Raises StoreError when a time is not a finite number."""
    for value in (parts.copy_in_us, parts.kernel_us, parts.copy_out_us, parts.allocate_us):
        if not math.isfinite(value):
            raise StoreError(f"{what}: a time of {value} us was measured; only finite times are stored")
    return {**asdict(parts), "hidden_fraction": finite(parts.hidden_fraction)}


def span_of(row: RowMapping) -> SpanParts:
    """The parts of a row that has the columns of `spans`."""
    return SpanParts(*(row[spans.c[field.name]] for field in fields(SpanParts)))


def profile_values(profile: KernelProfile) -> Values:
    """The columns of a profile, but for its trial, run and date."""
    values: Values = {name: finite(getattr(profile, name)) for name in COUNTERS}
    stalls = {reason: warps for reason, warps in profile.stalls if math.isfinite(warps)}
    return {
        "tool": profile.tool,
        "position": profile.position,
        "entry": profile.entry,
        **values,
        "stalls": json.dumps(stalls),
    }


def profile_of(row: RowMapping) -> KernelProfile:
    """The profile of a row that has the columns of `profiles`."""
    column = profiles.c
    return KernelProfile(
        row[column.tool],
        row[column.position],
        row[column.entry],
        **{name: row[column[name]] for name in COUNTERS},
        stalls=tuple(json.loads(row[column.stalls]).items()),
    )
