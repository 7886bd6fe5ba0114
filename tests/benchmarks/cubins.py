"""Check whether recorded winners still compile to the same machine code. Needs nvcc and a C++ compiler, but no GPU.

    python -m tests.benchmarks.cubins [--db studies/recorded/networks.db ...] [--jobs 2] [--gflop 0.5]

Compiles each recorded winner's text, and the text that its family renders now, for the GPU that it won on. If the
cubins differ, both run on one core of the host device on the same normal data of a small problem: the recorded shape
with as many images (rows, ...) as make `--gflop`. Prints a line for each winner whose text changed: same cubin, same
bits, other bits, or why they cannot be compared; then the counts by family. Exits with 1 if bits differ or a kernel
does not compile.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from autotune.api.device_names import binary_cache
from autotune.compilation.compile import Binary, Program, Target
from autotune.compilation.toolchain import find_cxx
from autotune.devices.host import HostDevice, HostOptions
from autotune.devices.host_compile import compile_host
from autotune.devices.host_machine import usable_cores
from autotune.errors import Rejected
from autotune.family.render import relaunched
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.measurement.launcher import LoadedKernel, Tensors
from autotune.operation.declarations import Array
from autotune.problem import Problem
from autotune.store import Store
from autotune.trial import Outcome
from autotune.workers.compilers import CompilePool

from .winners import RECORDED, Winner, winners

GOOD = ("same text", "same cubin", "same bits")
POISON = 0xFF  # NaN in every type
MOST_UNITS = 3  # images of a small problem: enough that two share a tile
RENAMED = ("-Ddecrease_registers=warpgroup_reg_dealloc", "-Dincrease_registers=warpgroup_reg_alloc")
"""former names of the host device's functions that stored texts call"""
LAUNCH_LIMIT_S = 600.0
MOST_FLOPS = 40e9  # deadline of the host device: some minutes


@dataclass(frozen=True, slots=True)
class Small:
    """A winner whose cubin changed, with few images."""

    stored: KernelSource
    now: KernelSource

    @property
    def problem(self) -> Problem:
        """The problem that both kernels compute."""
        return self.now.problem


def small(winner: Winner, now: KernelSource, family: KernelTemplate, flops: float) -> Small:
    """The same programs with as many images as make this many FLOPs. Raises Rejected if they cannot be launched."""
    problem = winner.row.row.problem
    most = min(problem.runtime_size, MOST_UNITS) if problem.operation.independent else problem.runtime_size
    units = max(1, min(most, int(flops * problem.runtime_size / problem.flops)))
    if problem.with_runtime(units).flops > MOST_FLOPS:
        raise Rejected(Outcome.TIMEOUT, "too_slow", f"{problem.with_runtime(units).flops / 1e9:.0f} GFLOP at the least")
    again = relaunched(now, BoundTemplate(family, problem.with_runtime(units), winner.row.row.device))
    return Small(replace(again, program=replace(winner.stored.program, flags=RENAMED)), again)


def filled(array: Array, seed: int) -> bytes:
    """Normal data in an array's type."""
    if array.dtype == "i32":
        return np.random.default_rng(seed).integers(0, 2, array.elements, np.int32).tobytes()
    values = np.random.default_rng(seed).standard_normal(array.elements, np.float32)
    if array.dtype == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(np.float16 if array.dtype == "f16" else np.float32).tobytes()


@cache
def host() -> HostDevice:
    """Use one core, so that atomic additions have a fixed order."""
    return HostDevice(str(find_cxx()), HostOptions(cores=1, launch_limit_s=LAUNCH_LIMIT_S))


def outputs(source: KernelSource) -> dict[str, bytes]:
    """One kernel's outputs for the normal data."""
    device, problem = host(), source.problem
    binary = compile_host(source.program, Target("host"), cxx=str(find_cxx()))
    addresses = {array.name: device.allocate(array.size_bytes) for array in problem.arrays}
    for seed, array in enumerate(problem.arrays):
        device.fill(addresses[array.name], POISON, array.size_bytes)
        if array in problem.filled:
            device.write(addresses[array.name], filled(array, seed))
    own = [device.allocate(size_bytes) for size_bytes in (source.packed_w_bytes, source.workspace_bytes)]
    module = device.load(binary)
    try:
        kernel, tensors = LoadedKernel(device, module, source), Tensors(addresses, *own)
        kernel.prepare(tensors)
        kernel.run(kernel.forward(tensors))
        found = {array.name: device.read(addresses[array.name], array.size_bytes) for array in problem.outputs}
    finally:
        module.unload()
        for address in (*addresses.values(), *own):
            device.free(address)
    for array in problem.outputs:
        if bytes([POISON]) * (array.size_bytes // array.elements) in found[array.name]:
            raise Rejected(Outcome.WRONG_RESULT, "unwritten", f"not all of {array.name}")
    return found


def bits(winner: Winner, now: KernelSource, family: KernelTemplate, flops: float) -> str:
    """Whether both programs give bitwise equal outputs."""
    if replace(now, program=winner.stored.program).hash != winner.stored.hash:
        return "other launches"
    try:
        both = small(winner, now, family, flops)
        before, after = outputs(both.stored), outputs(both.now)
    except Rejected as rejected:
        return f"not run on the host: {rejected.reason}: {rejected.message.partition(chr(10))[0]}"
    at = both.problem.at_runtime
    return f"same bits ({at})" if before == after else f"other bits ({at})"


def compared(
    store: Store, study: str | None, families: Mapping[str, KernelTemplate], pool: CompilePool, flops: float
) -> Iterator[tuple[Winner, str]]:
    """Each winner, and how the current kernel compares with it."""
    started: list[tuple[Winner, tuple[Future[Binary], ...]]] = []
    for winner in winners(store, families, study):
        programs: list[Program] = []
        if not isinstance(winner.now, str) and winner.now.program.hash != winner.stored.program.hash:
            programs = [winner.stored.program, winner.now.program]
        target = Target("cuda", winner.row.row.device.arch)
        started.append((winner, tuple(pool.submit(program, target) for program in programs)))
    for winner, compiled in started:
        if isinstance(winner.now, str):
            yield winner, winner.now
        elif not compiled:
            yield winner, "same text"
        else:
            try:
                before, after = (binary.result().image for binary in compiled)
            except Rejected as rejected:
                yield winner, f"{rejected.reason}: {rejected.message.partition(chr(10))[0]}"
            else:
                same = before == after
                yield winner, "same cubin" if same else bits(winner, winner.now, families[winner.template], flops)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--db", type=Path, nargs="+", default=RECORDED)
    parser.add_argument("--study", help="no other's winners")
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("--gflop", type=float, default=0.5, help="of a small problem on the host device")
    asked = parser.parse_args(arguments)
    families = load_templates(())
    bad = 0
    with closing(CompilePool(asked.jobs, binary_cache(), deadline_s=LAUNCH_LIMIT_S)) as pool:
        for db in asked.db:
            counts: dict[str, Counter[str]] = {}
            with Store(db, create=False) as store:
                for winner, verdict in compared(store, asked.study, families, pool, 1e9 * asked.gflop):
                    word = re.split(r" \(|: ", verdict)[0]
                    counts.setdefault(winner.template, Counter())[word] += 1
                    bad += word not in GOOD
                    if verdict != "same text":
                        print(f"{winner.name:52} {winner.template:26} {verdict}", flush=True)
            for family, found in sorted(counts.items()):
                print(f"{db.name} {family}: {', '.join(f'{count} {word}' for word, count in found.most_common())}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
