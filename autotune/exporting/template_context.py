"""Convert kernels to the values that the templates in `templates/export` need, and order kernels for one shape."""

from __future__ import annotations

import math
import re
import string
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.autotune_runtime.planned_launches import Plan
from autotune.compilation.compile import is_exact
from autotune.devices.device import DeviceInfo
from autotune.escape import in_comment
from autotune.exporting.golden import Samples, golden
from autotune.exporting.kernel import ARCHS, SelectedKernel, gencode, never_run
from autotune.exporting.launch_plan import arch_refusal, plan_of
from autotune.exporting.operation_context import word_constants
from autotune.family.source import KernelSource
from autotune.measurement.bounds import ErrorBound, error_bound, most_error_on_integers
from autotune.measurement.exported import problem_numbers
from autotune.problem import Problem


@dataclass(frozen=True, slots=True)
class KernelContext:
    """A kernel, and what the templates print about it."""

    kernel: SelectedKernel
    identifier: str
    initialisers: tuple[str, ...]
    """lines of C that initialise the kernel's problem"""
    config: str
    problem_numbers: tuple[int, ...]
    device: str
    """the device's name or, if it isn't a GPU, what it is"""
    device_numbers: str
    plan: Plan
    least_arch: int
    exact: bool
    """whether the kernel runs only on the architecture that it was tuned on"""
    codes: str
    """nvcc's options for the architectures"""
    dependent: bool
    """whether the kernel may start before preceding kernels have ended"""
    is_larger: str
    """C++ condition: whether `layer` has a run-time size larger than the tuned one"""


def view_of(kernel: SelectedKernel, identifier: str, archs: Sequence[int]) -> KernelContext:
    device, source, problem = kernel.origin.device, kernel.source, kernel.problem
    sizes = zip(problem.operation.runtime, problem.runtime_sizes, strict=True)
    return KernelContext(
        kernel=kernel,
        identifier=identifier,
        initialisers=_initialisers(problem),
        config=in_comment(str(source.config)),
        problem_numbers=problem_numbers(problem),
        device=device_text(device),
        device_numbers=_device_numbers(device),
        plan=plan_of(kernel.bound, source),
        least_arch=_least_arch(kernel),
        exact=is_exact(source.program.text),
        codes=" ".join(gencode(archs, source.program.text)),
        dependent=waits_itself(source),
        is_larger=" || ".join(f"layer.{name} > {size}" for name, size in sizes),
    )


def waits_itself(source: KernelSource) -> bool:
    """Return whether a pass is a single kernel that may start before preceding ones have ended (see
    `_ptx_dependent.cuh`).
    """
    return "begin_dependent();" in source.program.text and len(source.stages) == 1


def _initialisers(problem: Problem) -> tuple[str, ...]:
    """Return the designated initialisers of a problem in C, as lines."""
    declared, constants = problem.operation, word_constants(problem.operation)
    words = [f".{size.name} = {problem.values[size.name]}," for size in declared.sizes]
    words += [f".{kind} = {constants[kind][str(problem.values[kind])]}," for kind in declared.words]
    return tuple(textwrap.wrap(" ".join(words), 100))


def _least_arch(kernel: SelectedKernel) -> int:
    """Return the oldest architecture supported by the kernel's family."""
    admitted = (arch for arch in ARCHS if not arch_refusal(kernel.bound, kernel.source, arch))
    return next(admitted, kernel.origin.device.arch)


def device_text(device: DeviceInfo) -> str:
    """Return a device's name and, if it is no GPU, what it is."""
    if device.can.gpu:
        return device.name
    origin = never_run(device)
    return f"{device.kind} {device.name}, not a GPU{f', the time is {origin}' if origin else ''}"


def _device_numbers(device: DeviceInfo) -> str:
    """Return initialisers for the fields of Device in C++."""
    numbers = (device.arch, device.sm_count, device.smem_per_block_bytes, device.l2_bytes, device.max_threads_per_block)
    limits = (", ".join(map(str, limits)) for limits in (device.grid_limits, device.block_limits))
    return ", ".join((*map(str, numbers), *(f"{{{limit}}}" for limit in limits)))


@dataclass(frozen=True, slots=True)
class Side:
    """One of the kernels for a shape, ordered by the product of their tuned run-time sizes."""

    view: KernelContext
    threshold: str
    """name of the constant in C++ that holds `most_units`"""
    most_units: int
    """largest product of run-time sizes that uses the kernel; 0: any"""
    next: KernelContext | None


@dataclass(frozen=True, slots=True)
class Shape:
    """The choice among the kernels for one layer shape."""

    sides: tuple[Side, ...]
    others: str
    """the order of kernels if the threshold's kernel does not support the problem: largest sizes first"""


def shapes(views: Sequence[KernelContext]) -> list[Shape]:
    by_shape: dict[object, list[KernelContext]] = {}
    for view in views:
        by_shape.setdefault(view.kernel.problem.shape, []).append(view)
    found = []
    for group in by_shape.values():
        group.sort(key=_units)
        sides = tuple(_side(view, after) for view, after in zip(group, (*group[1:], None), strict=True))
        found.append(Shape(sides, ", ".join(f"&{view.identifier}" for view in reversed(group))))
    return found


def _side(view: KernelContext, after: KernelContext | None) -> Side:
    most_units = math.isqrt(_units(view) * _units(after)) if after else 0
    return Side(view, f"most_{'_'.join(view.kernel.problem.operation.runtime)}_of_{view.identifier}", most_units, after)


def _units(view: KernelContext) -> int:
    return math.prod(view.kernel.problem.runtime_sizes)


def identifiers(names: Sequence[str]) -> list[str]:
    """Return C++ names for these names that are distinct from each other and from the language's and the library's."""
    found: list[str] = []
    for name in names:
        base = "tuned_" + re.sub(r"\W", "_", name, flags=re.ASCII)
        identifier, number = base, 2
        while identifier in found:
            identifier, number = f"{base}_{number}", number + 1
        found.append(identifier)
    return found


def in_table(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    return re.sub(r"[\\`*<>\[\]|&]", lambda found: f"&#{ord(found[0])};", in_comment(text))


def c_string(text: str) -> str:
    """Return a C++ string literal of a text, in UTF-8."""
    plain = (string.ascii_letters + string.digits + " !#$%&'()*+,-./:;<=>@[]^_`{|}~").encode()
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'


def golden_context(kernel: SelectedKernel, identifier: str) -> dict[str, object]:
    """Return the golden values of a kernel's problem for the template. Raises TemplateError if a reference fails."""
    problem, source = kernel.problem, kernel.source
    values = golden(problem, int(source.hash, 16))  # so that kernels are tested at different sizes
    bound = error_bound(source.accuracy, problem).times(source.error_factor)
    return {
        "identifier": identifier,
        "name": c_string(kernel.name),
        "sizes": _array(values.sizes),
        "least": _array(values.least),
        "more_sizes": tuple(map(_array, values.more_sizes)),
        "bound": tuple(number.hex() for number in bound.numbers),
        "reduction": float(problem.reduction).hex(),
        "most_error_on_integers": most_error_on_integers(source).hex(),
        "most_outputs": values.most_outputs,
        "sets": tuple(
            {
                "output": problem.operation.seed(each.output),
                "sizes": _array(each.sizes),
                "whole": each.integers,
                "lines": _samples(each, bound),
                "count": len(each.indices),
            }
            for each in values.sets
        ),
    }


def _array(sizes: Sequence[int]) -> str:
    """Write the initialiser of a std::array in C++."""
    return f"{{{{{', '.join(map(str, sizes))}}}}}"


def _samples(golden: Samples, bound: ErrorBound) -> tuple[str, ...]:
    """Write the initialisers of samples, four per line."""
    columns = zip(golden.indices, golden.values, golden.units, golden.products, strict=True)
    words = [
        f"{{{index}, {value.hex()}, {bound.of(unit, products).hex()}}}," for index, value, unit, products in columns
    ]
    return tuple(" ".join(words[at : at + 4]) for at in range(0, len(words), 4))
