"""Write compiled kernels as a library without C++, which Python loads: the programs, and a file with their plans."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from autotune import __version__
from autotune.atomic_write import write_whole
from autotune.autotune_runtime.interface import PLANNED
from autotune.compilation.compile import Binary
from autotune.exporting.kernel import SelectedKernel
from autotune.exporting.launch_plan import plan_of
from autotune.exporting.template_context import device_text, waits_itself
from autotune.operation.operation import Operation


def write_planned_library(kernels: Sequence[tuple[SelectedKernel, Mapping[str, object], Binary]], folder: Path) -> None:
    """Write a library of kernels and their `planned` fields, all for one operation and one device, to a folder."""
    declared = kernels[0][0].problem.operation
    for kernel, _, binary in kernels:
        write_whole(folder / kernel.stem, binary.image, "--out")
    read = {
        "version": f"autotune {__version__}",
        "operation": declared.name,
        "declaration": _declaration(declared),
        "kernels": [fields for _, fields, _ in kernels],
    }
    write_whole(folder / f"lib{declared.name}{PLANNED}", json.dumps(read, indent=1).encode(), "--out")


def _declaration(declared: Operation) -> dict[str, object]:
    """Return the fields of the runtime's `Declaration`."""
    return {
        "parts": {part.name: (part.word, dict(part.of)) for part in declared.parts},
        "derived": {name: bound.expression.text for name, bound in declared.derived},
        "rules": [
            *(f"{size.name} >= {size.least}" for size in declared.sizes),
            *(rule.holds.expression.text for rule in declared.rules),
        ],
        "arrays": {array.name: array.when.expression.text for array in declared.arrays},
    }


def planned(kernel: SelectedKernel) -> Mapping[str, object]:
    """Return the fields of the runtime's `PlannedKernel`."""
    source = kernel.source
    about = {
        "name": kernel.name,
        "problem": dict(kernel.problem.values),
        "accuracy": source.accuracy,
        "deterministic": source.deterministic,
        "device": device_text(kernel.origin.device),
        "median_us": kernel.origin.time_us,
        "constant_weights": bool(source.constants),
    }
    return {
        "about": about,
        "image": kernel.stem,
        "entries": source.program.entries,
        "constants": [(symbol.name, symbol.origin) for symbol in source.constants],
        "dependent": waits_itself(source),
        "overlaps": source.overlaps,
        "plan": asdict(plan_of(kernel.bound, source, cpp=False)),
    }
