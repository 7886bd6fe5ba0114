"""What is exported: kernels, a C interface over them, a self-test, a benchmark, and where everything comes from.

Its text is a function of the recorded trials alone, so the same kernels give the same bytes. What depends on no kernel
lies in `templates/export` as it is written out.
"""

from __future__ import annotations

import dataclasses
import math
import re
import string
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotune import __version__
from autotune.compilation.compile import NVCC_FLAGS as TUNED_FLAGS
from autotune.compilation.compile import architecture, is_exact
from autotune.declarations import Array
from autotune.devices.device import DeviceInfo
from autotune.dispatch.dispatcher import Dispatcher
from autotune.dispatch.header import load_dispatch_template, render_dispatch
from autotune.errors import StoreError
from autotune.exporting.folder import Written, write_folder
from autotune.exporting.golden_view import golden_view
from autotune.exporting.kernel import kernel_text, stem
from autotune.exporting.launch_plan import Need, Plan, arch_refusal, check_recorded, plan_of
from autotune.exporting.operation_view import operation_view, word_constants
from autotune.exporting.python_package import named, package_texts, package_words, text_of
from autotune.family.comments import in_comment
from autotune.family.render import render_words
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.family.template_header import template_of_header
from autotune.measurement.exported import problem_numbers
from autotune.measurement.numpy_reference import in_numpy
from autotune.measurement.reference import reference_text
from autotune.operation import REFERENCE, Operation
from autotune.problem import Problem
from autotune.shipped import shipped
from autotune.store import BestRow
from autotune.trial import ACCURACY_CLASSES

COPIED = (
    *("CMakeLists.txt", "conv2d.cpp", "conv2d.map", "loaded.h", "kernel.h", "expression.h"),
    *("driver.h", "selftest.cpp", "benchmark.cpp", "device.h"),
)
"""Files that are the same in every export of an operation; those of another than conv2d have its name in that place."""
RENDERED = ("autotune_conv2d.h", "operation.h", "kernels.cpp", "dispatch.h", "golden.h", "kernels.cmake", "README.md")
NVCC_FLAGS = (*(flag for flag in TUNED_FLAGS if flag != "-Xptxas=-v"), "-DAUTOTUNE_DEPENDENT_LAUNCH")
"""What decides a kernel's machine code, besides the architecture."""
ARCHS = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
"""Compute capabilities times ten that nvcc 12 or 13 compiles for."""


@dataclass(frozen=True)
class Chosen:
    """A recorded kernel to be exported."""

    row: BestRow
    source: KernelSource
    header: str
    """its family's, as it was when the kernel was tuned"""
    admitted: tuple[str, ...]
    """accuracy classes that its study lets win"""
    floor_us: float | None

    @property
    def stem(self) -> str:
        """Name of its file without `.cu`."""
        return stem(self.row)

    @property
    def problem(self) -> Problem:
        """What it was tuned on."""
        return self.row.layer.problem

    @cached_property
    def bound(self) -> BoundTemplate:
        """The recorded header with problem and device filled in."""
        return BoundTemplate(
            template_of_header(self.source.config.template, self.header, self.problem.operation),
            self.problem,
            self.row.row.device,
        )


@dataclass(frozen=True, slots=True)
class Exported:
    """A folder that was written."""

    folder: Path
    sources: tuple[Path, ...]
    """the kernels' files, served by the library or not"""
    served: tuple[Chosen, ...]
    """the kernels of the library"""
    archs: tuple[int, ...]
    written: Written

    @property
    def operation(self) -> Operation:
        """What its kernels compute."""
        return self.served[0].problem.operation


Images = Callable[[Path, Sequence[Chosen], Sequence[int]], Mapping[str, bytes]]
"""Compiles kernels, whose files lie in a folder, for some architectures: name of a file to its content."""


def export_library(
    chosen: Sequence[Chosen],
    folder: Path,
    archs: Sequence[int],
    *,
    dispatcher: Dispatcher | None = None,
    images: Images | None = None,
) -> Exported:
    """Write the kernels of one device as a library that is built without autotune; `archs` empty: the device's own.

    The kernels are a dispatcher's choices where one is given; its rule is written beside them. So are the images.

    Raises StoreError when a kernel is not for one of the architectures, when a header does not give the recorded
    launches, or when the folder cannot be written or has files of someone else's in their place.
    """
    for kernel in chosen:
        _check_names(kernel)
    if len(names := {kernel.problem.operation.name for kernel in chosen}) > 1:
        raise StoreError(f"expected kernels of one operation, not of {', '.join(sorted(names))}")
    served = serving(chosen)
    archs = tuple(archs) or (_tuned_arch(served),)
    for kernel in served:
        check_recorded(kernel.bound, kernel.source, kernel.row.name)
        for arch in archs:
            if why := arch_refusal(kernel.bound, kernel.source, arch):
                raise StoreError(f"{kernel.row.name}: cannot be exported for sm_{arch}: {why}")
    texts = {f"{kernel.stem}.cu": kernel_text(kernel.row, kernel.source, kernel.floor_us) for kernel in chosen}
    sources = tuple(folder / name for name in texts)
    texts |= library_texts(served, archs)
    if dispatcher is not None:
        texts["dispatcher.h"] = render_dispatch(load_dispatch_template(), dispatcher)
    more = (lambda new: images(new, served, archs)) if images else (lambda _: {})
    written = write_folder(folder, texts, _provenance(served, archs), more)
    return Exported(folder, sources, served, archs, written)


_NAME = re.compile(r"[\w-]+")
"""of a study or a layer, which files are named after"""
_SYMBOL = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""of C++"""


def _check_names(kernel: Chosen) -> None:
    """Raise StoreError for a row's names that stand in files' names, C++ and CMake as they are, and are none."""
    source, row = kernel.source, kernel.row
    for words in (row.study, row.layer.name, source.config.template):
        if not _NAME.fullmatch(words):
            raise StoreError(f"{words!r}: cannot be exported: expected a name of letters, digits, - and _")
    symbols = (*source.program.entries, *(word for each in source.constants for word in (each.name, each.origin)))
    for words in (*symbols, *(name for name, _ in source.config.items)):
        if not _SYMBOL.fullmatch(words):
            raise StoreError(f"{row.name}: cannot be exported: {words!r} is no name of C++")


def _tuned_arch(served: Sequence[Chosen]) -> int:
    """The architecture of the GPU that the kernels were tuned on; where there is none, of what stood in for one."""
    devices = [kernel.row.row.device for kernel in served]
    return next((device.arch for device in devices if device.kind == "cuda"), devices[0].arch)


def serving(chosen: Iterable[Chosen]) -> tuple[Chosen, ...]:
    """One kernel for each problem: the fastest that its study admits, in the order given.

    What is deterministic comes before what is not, and what was tuned for a cold cache before what was for a hot one,
    whose times are not comparable. Where the study admits none, the strictest accuracy class serves.
    """
    best: dict[Problem, Chosen] = {}
    for kernel in chosen:
        if kernel.problem not in best or _rank(kernel) < _rank(best[kernel.problem]):
            best[kernel.problem] = kernel
    return tuple(best.values())


def _rank(kernel: Chosen) -> tuple[int, bool, bool, float]:
    trial, hot = kernel.row.row.trial, kernel.row.row.policy != "cold"
    strictness = -1 if trial.accuracy in kernel.admitted else ACCURACY_CLASSES.index(trial.accuracy)
    return (strictness, not trial.deterministic, hot, kernel.row.median_us)


def library_texts(served: Sequence[Chosen], archs: Sequence[int]) -> dict[str, str]:
    """Name to content of every file of the library but the kernels and `provenance.json`."""
    templates = shipped("templates") / "export"
    declared = served[0].problem.operation
    view = operation_view(declared)
    texts = {named(name, declared): named(text_of(templates / name), declared) for name in COPIED}
    if not in_numpy(declared):
        texts[REFERENCE] = f"#pragma once\n{reference_text(declared)}"
    texts |= package_texts(declared, view)
    identifiers = _identifiers([kernel.row.name for kernel in served])
    views = [_view(kernel, identifier, archs) for kernel, identifier in zip(served, identifiers, strict=True)]
    values = {
        "version": __version__,
        "operation": view,
        "python": package_words(declared),
        "kernels": views,
        "kernel_list": ", ".join(f"&{view.identifier}" for view in views),
        "shapes": _shapes(views),
        "goldens": [
            golden_view(kernel.problem, kernel.source, view.identifier, view.name)
            for kernel, view in zip(served, views, strict=True)
        ],
        "archs": ";".join(map(str, archs)),
        "nvcc_flags": " ".join(NVCC_FLAGS),
    }
    return texts | {
        named(name, declared): render_words(named(text_of(templates / f"{name}.j2"), declared), values, f"{name}.j2")
        for name in RENDERED
    }


def gencode(archs: Iterable[int], text: str) -> list[str]:
    """nvcc's options for machine code of these architectures."""
    numbers = [architecture(arch, text) for arch in archs]
    return [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]


@dataclass(frozen=True, slots=True)
class _View:
    """A kernel as the templates print it."""

    identifier: str
    name: str
    """a string of C++"""
    stem: str
    label: str
    """the name as it is"""
    problem: Problem
    arrays: tuple[Array, ...]
    initialisers: tuple[str, ...]
    """of its problem, lines of C"""
    config: str
    problem_numbers: str
    accuracy: str
    deterministic: bool
    device: str
    device_name: str
    device_numbers: str
    median_us: str
    entry_names: tuple[str, ...]
    entries: str
    entry_count: int
    constants: str
    constant_count: int
    plan: Plan
    least_arch: int
    exact: bool
    """for no other architecture than the one it was tuned for"""
    codes: str
    """nvcc's options"""
    dependent: bool
    """may be launched before the kernels before it have ended"""


def _view(kernel: Chosen, identifier: str, archs: Sequence[int]) -> _View:
    trial, device, source = kernel.row.row.trial, kernel.row.row.device, kernel.source
    return _View(
        identifier=identifier,
        name=c_string(kernel.row.name),
        stem=kernel.stem,
        label=kernel.row.name,
        problem=kernel.problem,
        arrays=kernel.problem.arrays,
        initialisers=_initialisers(kernel.problem),
        config=in_comment(str(source.config)),
        problem_numbers=", ".join(map(str, problem_numbers(kernel.problem))),
        accuracy=trial.accuracy,
        deterministic=trial.deterministic,
        device=_in_table(_device(device)),
        device_name=c_string(_device(device)),
        device_numbers=_device_numbers(device),
        median_us=f"{kernel.row.timing.median_us:.3f}",
        entry_names=source.program.entries,
        entries=", ".join(f'"{entry}"' for entry in source.program.entries),
        entry_count=len(source.program.entries),
        constants=", ".join(f'{{"{symbol.name}", A::{symbol.origin}}}' for symbol in source.constants),
        constant_count=len(source.constants),
        plan=_printed(plan_of(kernel.bound, source)),
        least_arch=_least_arch(kernel),
        exact=is_exact(source.program.text),
        codes=" ".join(gencode(archs, source.program.text)),
        dependent=waits_itself(source),
    )


def waits_itself(source: KernelSource) -> bool:
    """Whether a pass is one kernel, which may be launched before those before it end: `_ptx_dependent.cuh`."""
    return "begin_dependent();" in source.program.text and len(source.stages) == 1


def _initialisers(problem: Problem) -> tuple[str, ...]:
    """Designated initialisers of a problem in C."""
    declared, constants = problem.operation, word_constants(problem.operation)
    words = [f".{size.name} = {problem.values[size.name]}," for size in declared.sizes]
    words += [f".{kind} = {constants[kind][str(problem.values[kind])]}," for kind in declared.words]
    return tuple(textwrap.wrap(" ".join(words), 100))


def _least_arch(kernel: Chosen) -> int:
    """The oldest architecture that the kernel's family admits."""
    admitted = (arch for arch in ARCHS if not arch_refusal(kernel.bound, kernel.source, arch))
    return next(admitted, kernel.row.row.device.arch)


def _printed(plan: Plan) -> Plan:
    """The plan with its reasons as strings of C++."""
    of_device, of_n = (
        tuple(Need(need.holds, c_string(need.reason)) for need in needs) for needs in (plan.device_needs, plan.n_needs)
    )
    return dataclasses.replace(plan, device_needs=of_device, n_needs=of_n)


def _device(device: DeviceInfo) -> str:
    return device.name if device.kind == "cuda" else f"{device.kind} {device.name}, not a GPU"


def _device_numbers(device: DeviceInfo) -> str:
    """The fields of the C interface's Device."""
    numbers = (device.arch, device.sm_count, device.smem_per_block_bytes, device.l2_bytes, device.max_threads_per_block)
    limits = (", ".join(map(str, limits)) for limits in (device.grid_limits, device.block_limits))
    return ", ".join((*map(str, numbers), *(f"{{{limit}}}" for limit in limits)))


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the kernels of a shape, in the order of the n that they were tuned at."""

    kernel: _View
    threshold: str
    """name of the constant"""
    most_n: int
    """images up to which it serves; 0: any number"""
    next: _View | None


@dataclass(frozen=True, slots=True)
class _Shape:
    """What is dispatched for one shape of layer."""

    sides: tuple[_Side, ...]
    others: str
    """what is asked where the threshold's kernel does not serve: the kernels of the most images first"""


def _shapes(views: Sequence[_View]) -> list[_Shape]:
    by_shape: dict[Problem, list[_View]] = {}
    for view in views:
        by_shape.setdefault(view.problem.with_runtime(1), []).append(view)
    shapes = []
    for group in by_shape.values():
        group.sort(key=lambda view: view.problem.runtime_size)
        sides = tuple(_side(view, after) for view, after in zip(group, (*group[1:], None), strict=True))
        shapes.append(_Shape(sides, ", ".join(f"&{view.identifier}" for view in reversed(group))))
    return shapes


def _side(view: _View, after: _View | None) -> _Side:
    most_n = math.isqrt(view.problem.runtime_size * after.problem.runtime_size) if after else 0
    return _Side(view, f"most_n_of_{view.identifier}", most_n, after)


def _identifiers(names: Sequence[str]) -> list[str]:
    """Names of C++ for these names, each its own and none of the language's or the library's."""
    found: list[str] = []
    for name in names:
        base = "tuned_" + re.sub(r"\W", "_", name, flags=re.ASCII)
        identifier, number = base, 2
        while identifier in found:
            identifier, number = f"{base}_{number}", number + 1
        found.append(identifier)
    return found


def _in_table(text: str) -> str:
    """The text in a cell of Markdown, where nothing of it is markup."""
    return re.sub(r"[\\`*<>\[\]|&]", lambda found: f"&#{ord(found[0])};", in_comment(text))


def c_string(text: str) -> str:
    """A string literal of C++ with these characters, in UTF-8."""
    plain = (string.ascii_letters + string.digits + " !#$%&'()*+,-./:;<=>@[]^_`{|}~").encode()
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'


def _provenance(served: Sequence[Chosen], archs: Sequence[int]) -> Mapping[str, object]:
    """Where each kernel comes from."""
    kernels = []
    for kernel in served:
        trial, row = kernel.row.row.trial, kernel.row.row
        kernels.append(
            {
                "name": kernel.row.name,
                "file": f"{kernel.stem}.cu",
                "problem": kernel.problem.names(),
                "template": trial.config.template,
                "config": trial.config.values(),
                "accuracy": trial.accuracy,
                "deterministic": trial.deterministic,
                "entries": kernel.source.program.entries,
                "device": {"kind": row.device.kind, "name": row.device.name, "arch": row.device.arch},
                "driver": row.environment.driver,
                "compiler": row.environment.toolkit,
                "flags": row.environment.flags,
                "median_us": kernel.row.timing.median_us,
                "cache": kernel.row.timing.cache,
                "trial": trial.number,
                "measured_at": None if row.ended_at is None else f"{row.ended_at:%Y-%m-%dT%H:%M:%SZ}",
                "source_hash": kernel.source.hash,
                "template_hash": row.template_hash,
            }
        )
    return {"autotune": __version__, "archs": list(archs), "kernels": kernels}
