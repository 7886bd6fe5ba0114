"""Whether two texts compile to the same machine code, although identifiers and comments may differ."""

from __future__ import annotations

from dataclasses import replace

from autotune.compilation.compile import Target
from autotune.errors import Rejected, ToolchainError
from autotune.family.source import KernelSource
from autotune.store import BestRow, Store
from autotune.workers.compilers import CompilePool


def same_machine_code(store: Store, pool: CompilePool, best: BestRow, now: KernelSource) -> bool:
    """Whether a best kernel and the one that its family renders now have the same launches and compile to the same
    cubin.

    False if that is unknown: for a device that is not a GPU, without nvcc, or if the kernel's text is not stored.
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
