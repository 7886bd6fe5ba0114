"""space -> search: compute the terms of a config's time, which a cost model weights.

A term is the time, in microseconds, that part of the work takes at the device's measured rate, or that consecutive
steps take at a nominal latency. Terms that a family declares in `[cost]` replace those derived from the geometry of its
launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autotune.devices.device import DeviceInfo
from autotune.expressions.expression import Expression
from autotune.expressions.vectorized import Columns, column_of
from autotune.family.space import BoundTemplate
from autotune.family.template import StageTemplate
from autotune.measurement.occupancy import WARP, residency
from autotune.measurement.roofline import ARITHMETIC_RATE
from autotune.measurement.traffic import minimal_bytes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.intp]

FIXED = ("launch", "start")
"""Terms that are added to the time of all others. The other terms overlap."""
TERMS = (
    *(*FIXED, "memory", "arithmetic", "l2", "steps", "waves", "stores", "latency"),
    *("imbalance", "operands", "waiting", "conflicts", "unpadded", "spills"),
)
NEEDED_RATES = ("copy", "fp32")
"""Rates that a device must have to count as calibrated."""
L2_BYTES_PER_S = 60e9
"""Nominal rate at which a multiprocessor loads from L2. A whole H200 has loaded 8 TB/s."""
STEP_US = 0.1
LATENCY_US = 0.5
"""Microseconds that a step takes on its own (STEP_US), and that filling a pipeline takes (LATENCY_US)."""
STORE_BYTES_PER_US = 1e5
"""Nominal rate at which a multiprocessor stores through shared memory."""
HIDING = 8.0
"""Number of independent results in flight with which a scheduler never waits: warps times outputs per thread, at most
8.
"""
OWN_REGISTERS = 24
"""Registers that a thread needs in addition to its accumulators, as estimated in headers."""
MOST_REGISTERS = 255
"""Maximum number of registers per thread, from compute capability 3.5 on."""
SCHEDULERS = 4
"""Schedulers of a multiprocessor, from compute capability 7.0 on."""
FLOP_A_SLOT = 64
"""FLOP of fp32 arithmetic that take as long as one additional shared-memory pass."""


def cost_terms(bound: BoundTemplate, columns: Columns, rates: Mapping[str, float]) -> Floats:
    """Compute the terms of configs in microseconds [configs, TERMS] from their parameters and derived values.

    `rates` are the device's rates: `copy` in bytes per second, arithmetic units in FLOP per second.
    """
    template, problem, device = bound.template, bound.problem, bound.device

    def numbers(expression: Expression) -> Floats:
        return bound.bind(expression).column(columns).astype(np.float64)

    loops = numbers(template.loop_count)
    geometry = [_Launch(bound, columns, stage) for stage in template.stages]
    main = np.argmax([launch.blocks * launch.threads for launch in geometry], axis=0)
    blocks, threads, smem_bytes = (
        np.take_along_axis(np.stack(found), main[None], axis=0)[0]
        for found in zip(*((each.blocks, each.threads, each.smem_bytes) for each in geometry), strict=True)
    )
    blocks = np.maximum(1.0, blocks * loops)
    flops = numbers(template.flops)
    rate = _arithmetic_rates(bound, columns, rates)
    padding = np.maximum(1.0, numbers(template.padded_work) / problem.output.elements)
    outputs = np.maximum(1.0, problem.output.elements / np.maximum(1.0, threads * blocks))
    registers = columns["registers"].astype(np.float64) if "registers" in columns else OWN_REGISTERS + np.ceil(outputs)
    cap = columns["register_cap"].astype(np.float64) if "register_cap" in columns else np.full(len(blocks), 255.0)
    cap = np.minimum(cap, MOST_REGISTERS)
    found = dict.fromkeys(TERMS, np.zeros(len(blocks)))
    found["launch"] = loops * sum(launch.runs for launch in geometry)
    found["start"] = np.ones(len(blocks))
    found["memory"] = 1e6 * (minimal_bytes(problem) + 2 * numbers(template.workspace_bytes) * loops) / rates["copy"]
    arithmetic_us = 1e6 * flops / rate
    found["arithmetic"] = arithmetic_us * padding
    found["spills"] = arithmetic_us * np.maximum(0.0, registers - cap) / 32
    cost = {key: numbers(expression) for key, expression in template.cost.items()}
    if cost:
        if "depth" in cost:
            found["arithmetic"] = 2e6 * numbers(template.padded_work) * cost["depth"] / rate
        if "issues" in cost:
            found["arithmetic"] = 1e6 * cost["issues"] * FLOP_A_SLOT * SCHEDULERS * device.sm_count / rates["fp32"]
        found["l2"] = 1e6 * cost["loaded_bytes"] / (device.sm_count * L2_BYTES_PER_S)
        found["steps"] = cost["steps"] * STEP_US
        waits = cost["waits"] if "waits" in cost else cost["steps"] / np.maximum(1.0, cost.get("stages", np.ones(1)))
        found["latency"] = waits * LATENCY_US
        found["waves"] = cost["waves"] * LATENCY_US
        found["stores"] = cost.get("stored_bytes", np.zeros(len(blocks))) / STORE_BYTES_PER_US
    else:
        resident = _resident(device, threads, np.minimum(registers, cap), smem_bytes)
        warps = resident * np.ceil(threads / WARP) / SCHEDULERS * np.minimum(8.0, outputs)
        found["waves"] = np.ceil(blocks / (resident * device.sm_count)) * LATENCY_US
        found["imbalance"] = arithmetic_us * (np.ceil(blocks / device.sm_count) * device.sm_count / blocks - 1)
        # A square tile of outputs loads the operands of both sides for each step of the reduction.
        found["operands"] = arithmetic_us * 2 / np.sqrt(outputs)
        found["waiting"] = arithmetic_us * np.maximum(0.0, HIDING / warps - 1)
        passes = sum((numbers(expression) for _, expression in template.bank_conflicts), np.zeros(len(blocks)))
        found["conflicts"] = 1e6 * passes * blocks * FLOP_A_SLOT / rates["fp32"]
        found["unpadded"] = arithmetic_us
    return np.stack([found[term] for term in TERMS], axis=1)


def config_columns(bound: BoundTemplate, positions: Positions) -> Columns:
    """Compute the parameters and derived values of configs from the positions of their values [configs, params]."""
    columns = Columns({}, len(positions))
    for column, param in enumerate(bound.template.params):
        columns[param.name] = column_of(param.values)[positions[:, column]]
    for name, value in bound.derived:
        columns[name] = value.column(columns)
    return columns


class _Launch:
    """A stage's geometry for each config, with zeros where the stage doesn't run."""

    def __init__(self, bound: BoundTemplate, columns: Columns, stage: StageTemplate) -> None:
        def numbers(expression: Expression) -> Floats:
            return bound.bind(expression).column(columns).astype(np.float64)

        def volume(extents: Sequence[Expression]) -> Floats:
            return np.asarray(np.prod([numbers(extent) for extent in extents], axis=0) * self.runs)

        self.runs: Floats = numbers(stage.when)
        self.blocks, self.threads = volume(stage.grid), volume(stage.block)
        self.smem_bytes = numbers(stage.smem_bytes) * self.runs


def _arithmetic_rates(bound: BoundTemplate, columns: Columns, rates: Mapping[str, float]) -> Floats:
    """Return the FLOP per second of each config's accuracy class, or the rate of `fp32` if its unit wasn't measured."""
    text, found = bound.template.accuracy.text, np.zeros(columns.size)
    for accuracy, (unit, share) in ARITHMETIC_RATE.items():
        is_it = bound.bind(Expression(f"({text}) == '{accuracy}'", "accuracy")).column(columns).astype(np.float64)
        found += is_it * (rates[unit] * share if unit in rates else rates["fp32"])
    return found


def _resident(device: DeviceInfo, threads: Floats, registers: Floats, smem_bytes: Floats) -> Floats:
    """Return the number of blocks that are resident on a multiprocessor, at least one."""
    different, which = np.unique(np.stack([threads, registers, smem_bytes], axis=1), axis=0, return_inverse=True)
    blocks = [
        residency(device, threads=int(own[0]), registers=int(own[1]), smem_bytes=int(own[2])).blocks
        for own in different
    ]
    return np.maximum(1.0, np.array(blocks, dtype=np.float64))[which.ravel()]
