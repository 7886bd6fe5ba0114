"""space -> search: an initial design of the configs with the smallest estimated times, from their launch geometry.

The estimate is crude: it gives an order, not a time. It is the largest of the time of the bytes at the copy rate, of
the arithmetic at the FFMA rate, and of bank conflicts. The time of arithmetic is increased for issue slots spent on
loads, a partial last wave, too few warps to hide latency, and registers above the limit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

import numpy as np

from autotune.devices.device import DeviceInfo
from autotune.errors import Rejected
from autotune.family.render import launches
from autotune.family.source import Stage
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.measurement.occupancy import residency
from autotune.measurement.traffic import minimal_bytes
from autotune.search.initial_design import PRIOR, ListedDesign
from autotune.trial import Config

JUDGED = 500
"""Number of random feasible configs of a family whose time is estimated."""
OF_FAMILY = 3
"""Maximum number of configs of one family in the design."""
LAUNCH_US = 2.0
"""Time of each launch, in a stream without gaps."""
HIDING = 8.0
"""Independent results that a scheduler needs in flight to issue without waiting: warps times outputs per thread, at
most 8.
"""
OWN_REGISTERS = 24
"""Registers of a thread in addition to its accumulators, as the headers estimate them."""
MOST_REGISTERS = 255
"""Limit of a thread, from compute capability 3.5 on."""
SCHEDULERS = 4
"""Registers of a multiprocessor, from compute capability 7.0 on."""
FLOP_A_SLOT = 64
"""FFMAs of a warp that take as long on a scheduler as one more shared-memory pass; docs/search.md explains why."""


def prior(
    spaces: Sequence[SearchSpace], device: DeviceInfo, rates: Mapping[str, float], *, most: int, seed: int
) -> ListedDesign:
    """The feasible configs with the smallest estimates from a random sample, a few of each family, best first."""
    estimates: list[tuple[float, str, Config]] = []
    for space in spaces:
        rows = np.random.default_rng([seed, len(space.rows)]).permutation(len(space.rows))[:JUDGED]
        judged = ((space.config(int(row)), row) for row in rows)
        estimated = [(estimate_us(space.bound, config, device, rates), str(config), config) for config, _ in judged]
        estimates += heapq.nsmallest(OF_FAMILY, estimated)
    chosen = [config for time_us, _, config in heapq.nsmallest(most, estimates) if time_us < math.inf]
    return ListedDesign(PRIOR, chosen)


def estimate_us(bound: BoundTemplate, config: Config, device: DeviceInfo, rates: Mapping[str, float]) -> float:
    """An estimate of a config's time; infinite if it is not feasible or if no block fits the device.

    `rates` are the device's calibrated ones: `copy` in bytes, `fp32` in FLOP per second.
    """
    try:
        names = bound.check(config)
    except Rejected:
        return math.inf
    problem = bound.problem
    stages = launches(bound, bound.template.stages, names)
    loop_count = bound.bind(bound.template.loop_count).integer(names)
    workspace_bytes = bound.bind(bound.template.workspace_bytes).integer(names)
    bytes_us = 1e6 * (minimal_bytes(problem) + 2 * workspace_bytes * loop_count) / rates["copy"]
    stage = _convolution(stages)
    threads = math.prod(stage.block)
    blocks = math.prod(stage.grid) * loop_count
    outputs = problem.output.elements / (threads * blocks)
    wanted, cap = names.get("registers"), names.get("register_cap")
    registers = wanted if isinstance(wanted, int) else OWN_REGISTERS + math.ceil(outputs)
    limit = cap if isinstance(cap, int) else MOST_REGISTERS
    held = residency(device, threads=threads, registers=min(registers, limit), smem_bytes=stage.smem_bytes)
    if not held.blocks:
        return math.inf
    at_once = held.blocks * device.sm_count
    waves = math.ceil(blocks / at_once) * at_once / blocks
    issue = 1 + 2 / math.sqrt(max(1.0, outputs))  # a square tile of outputs loads both of its sides for each product
    waiting = max(1.0, HIDING / (held.warps / SCHEDULERS * min(8.0, max(1.0, outputs))))
    spilling = 1 + max(0, registers - limit) / 32
    arithmetic_us = 1e6 * problem.flops / rates["fp32"] * issue * waves * waiting * spilling
    passes = sum(bound.bind(expression).integer(names) for _, expression in bound.template.bank_conflicts)
    conflicts_us = 1e6 * passes * blocks * FLOP_A_SLOT / rates["fp32"] * waves
    return math.hypot(bytes_us, arithmetic_us, conflicts_us) + LAUNCH_US * len(stages) * loop_count


def _convolution(stages: Sequence[Stage]) -> Stage:
    """The main stage: the largest of those that read the filters."""
    multiplying = [stage for stage in stages if {"w", "packed_w"} & set(stage.args)]
    return max(multiplying or stages, key=lambda stage: math.prod(stage.block) * math.prod(stage.grid))
