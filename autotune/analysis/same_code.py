"""Whether two texts are one kernel: identifiers and comments may differ, the machine code may not."""

from __future__ import annotations

from dataclasses import replace

from autotune.compilation.compile import Target
from autotune.errors import Rejected, ToolchainError
from autotune.family.source import KernelSource
from autotune.store import BestRow, Store
from autotune.workers.compilers import CompilePool


def same_machine_code(store: Store, pool: CompilePool, best: BestRow, now: KernelSource) -> bool:
    """Whether a best kernel and what its family renders today are launched alike and compile to the same cubin.

    False where that cannot be told: for what no GPU runs, without nvcc, or where the kernel's text is not kept.
    """
    device = best.row.device
    stored = store.sources.get(best.row.trial.source_hash or "")
    if stored is None or not device.can.gpu or replace(now, program=stored.program).hash != stored.hash:
        return False
    target = Target(device.kind, device.arch)
    compiled = [pool.submit(source.program, target) for source in (stored, now)]
    try:
        old_cubin, new_cubin = (binary.result().image for binary in compiled)
    except (Rejected, ToolchainError):
        return False
    return old_cubin == new_cubin
