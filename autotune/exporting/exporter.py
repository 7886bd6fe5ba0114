"""Write an export: kernels, a C interface, a self-test, a benchmark, and the kernels' provenance.

The files depend only on the recorded trials, so the same kernels give the same bytes. Templates for files other than
kernels are in `templates/export`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune import __version__
from autotune.dispatch.dispatcher import Dispatcher
from autotune.dispatch.header import render_dispatch
from autotune.errors import StoreError
from autotune.exporting.folder import write_folder
from autotune.exporting.kernel import NVCC_FLAGS, SelectedKernel, kernel_text, never_run, serving
from autotune.exporting.launch_plan import arch_refusal, check_recorded
from autotune.exporting.operation_context import operation_context
from autotune.exporting.python_package import named, package_texts, package_words
from autotune.exporting.template_context import c_string, golden_context, identifiers, in_table, shapes, view_of
from autotune.family.render import render_words
from autotune.measurement.numpy_reference import in_numpy
from autotune.measurement.reference import reference_text
from autotune.operation.operation import REFERENCE, Operation
from autotune.resources import shipped
from autotune.text_file import read_text

COPIED = (
    *("CMakeLists.txt", "conv2d.cpp", "conv2d.map", "loaded.h", "kernel.h", "expression.h"),
    *("driver.h", "selftest.cpp", "benchmark.cpp", "device.h", "stored.h"),
)
"""Files that are the same in all of an operation's exports. For operations other than conv2d, the operation's name
replaces `conv2d` in file names.
"""
RENDERED = ("autotune_runtime.h", "operation.h", "kernels.cpp", "dispatch.h", "golden.h", "kernels.cmake", "README.md")


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported folder."""

    folder: Path
    sources: tuple[Path, ...]
    """the files of all kernels, whether or not they are part of the library"""
    served: tuple[SelectedKernel, ...]
    """the kernels of the library"""
    archs: tuple[int, ...]

    @property
    def operation(self) -> Operation:
        """The operation that the kernels compute."""
        return self.served[0].problem.operation

    @property
    def never_run(self) -> str:
        """A line about kernels tuned on a device that doesn't run kernels, or "" if there are none."""
        found: dict[str, list[str]] = {}
        for kernel in self.served:
            device = kernel.origin.device
            if origin := never_run(device):
                found.setdefault(f"the {device.kind} device runs no kernels; its times are {origin}", []).append(
                    kernel.name
                )
        return "; ".join(f"{why}: {', '.join(names)}" for why, names in found.items())

    @property
    def untuned(self) -> tuple[str, ...]:
        """The kernels that were chosen without ever running, by name."""
        return tuple(kernel.name for kernel in self.served if kernel.origin.recorded is None)


def export_library(
    chosen: Sequence[SelectedKernel],
    folder: Path,
    archs: Sequence[int],
    *,
    dispatcher: Dispatcher | None = None,
    self_test: bool = True,
) -> Exported:
    """Write a device's kernels as a library that can be built without autotune.

    If `archs` is empty, the library is for the device's own architecture. If a dispatcher is given, the kernels are the
    dispatcher's choices, and its rule is written as well. Without `self_test`, the self-test gets no data, which would
    take a second per kernel to compute. Raises StoreError if a kernel doesn't support one of the architectures, if a
    header doesn't give the recorded launches, if the folder can't be written, or if unrelated files are in the way.
    """
    for kernel in chosen:
        _check_names(kernel)
    if len(names := {kernel.problem.operation.name for kernel in chosen}) > 1:
        raise StoreError(f"an export has kernels of one operation, not of {', '.join(sorted(names))}; name one by --op")
    served = serving(chosen)
    archs = tuple(archs) or (_tuned_arch(served),)
    for kernel in served:
        check_recorded(kernel.bound, kernel.source, kernel.name)
        for arch in archs:
            if why := arch_refusal(kernel.bound, kernel.source, arch):
                raise StoreError(f"{kernel.name}: cannot be exported for sm_{arch}: {why}")
    texts = {f"{kernel.stem}.cu": kernel_text(kernel.origin, kernel.source) for kernel in chosen}
    sources = tuple(folder / name for name in texts)
    texts |= library_texts(served, archs, self_test=self_test)
    if dispatcher is not None:
        texts["dispatcher.h"] = render_dispatch(dispatcher)
    write_folder(folder, texts, _provenance(served, archs))
    return Exported(folder, sources, served, archs)


_NAME = re.compile(r"[\w-]+")
"""Matches a study's or layer's name, which becomes part of file names."""
_SYMBOL = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""Matches a C++ identifier."""


def _check_names(kernel: SelectedKernel) -> None:
    """Raise StoreError if a kernel's names can't be used in file names, C++ and CMake."""
    source, origin = kernel.source, kernel.origin
    for words in (origin.study, origin.layer, source.config.template):
        if not _NAME.fullmatch(words):
            raise StoreError(f"{words!r}: cannot be exported: expected a name of letters, digits, - and _")
    symbols = (*source.program.entries, *(word for each in source.constants for word in (each.name, each.origin)))
    for words in (*symbols, *(name for name, _ in source.config.pairs)):
        if not _SYMBOL.fullmatch(words):
            raise StoreError(f"{origin.name}: cannot be exported: {words!r} is not a valid C++ name")


def _tuned_arch(served: Sequence[SelectedKernel]) -> int:
    """Return the architecture of the GPU that the kernels were tuned on, or of the device used instead."""
    devices = [kernel.origin.device for kernel in served]
    return next((device.arch for device in devices if device.can.gpu), devices[0].arch)


def library_texts(served: Sequence[SelectedKernel], archs: Sequence[int], *, self_test: bool) -> dict[str, str]:
    """Return the name and contents of each of the library's files except for the kernels and `provenance.json`."""
    templates = shipped("templates") / "export"
    declared = served[0].problem.operation
    view = operation_context(declared)
    texts = {named(name, declared): named(read_text(templates / name, StoreError), declared) for name in COPIED}
    if not in_numpy(declared):
        texts[REFERENCE] = f"#pragma once\n{reference_text(declared)}"
    texts |= package_texts(declared)
    names = identifiers([kernel.name for kernel in served])
    views = [view_of(kernel, identifier, archs) for kernel, identifier in zip(served, names, strict=True)]
    values = {
        "version": __version__,
        "operation": view,
        "python": package_words(declared),
        "kernels": views,
        "c_string": c_string,
        "in_table": in_table,
        "kernel_list": ", ".join(f"&{view.identifier}" for view in views),
        "shapes": shapes(views),
        "goldens": [
            golden_context(kernel, view.identifier) for kernel, view in zip(served, views, strict=True) if self_test
        ],
        "archs": ";".join(map(str, archs)),
        "nvcc_flags": " ".join(NVCC_FLAGS),
    }
    for name in RENDERED:
        text = named(read_text(templates / f"{name}.j2", StoreError), declared)
        texts[named(name, declared)] = render_words(text, values, f"{name}.j2")
    return texts


def _provenance(served: Sequence[SelectedKernel], archs: Sequence[int]) -> Mapping[str, object]:
    """Return the contents of `provenance.json`, which says where each kernel comes from."""
    kernels = []
    for kernel in served:
        source, origin = kernel.source, kernel.origin
        best = origin.recorded
        row = best.row if best else None
        kernels.append(
            {
                "name": kernel.name,
                "file": f"{kernel.stem}.cu",
                "problem": kernel.problem.names(),
                "template": source.config.template,
                "config": source.config.params,
                "accuracy": source.accuracy,
                "deterministic": source.deterministic,
                "entries": source.program.entries,
                "device": {"kind": origin.device.kind, "name": origin.device.name, "arch": origin.device.arch},
                "driver": row and row.environment.driver,
                "compiler": row and row.environment.toolkit,
                "flags": row and row.environment.flags,
                "decided_by": best.decided_by if best else "prediction",
                "median_us": best and best.median_us,
                "cache": origin.cache,
                "trial": row and row.trial.number,
                "measured_at": None if row is None or row.ended_at is None else f"{row.ended_at:%Y-%m-%dT%H:%M:%SZ}",
                "source_hash": source.hash,
                "template_hash": origin.template_hash,
            }
        )
    return {"autotune": __version__, "archs": list(archs), "kernels": kernels}
