"""A study -> libraries that are built at once, without sources and proof, from kernels that were never run."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.api.device_names import Say, binary_cache, jobs_default
from autotune.api.exports import ExportRequest, untuned_export
from autotune.atomic_write import write_whole
from autotune.autotune_runtime.untuned_build import ORIGINS, BuiltKernel
from autotune.compilation.compile import Binary
from autotune.errors import StoreError
from autotune.exporting import SelectedKernel
from autotune.exporting.build import compile_for, compile_kernel, link_library
from autotune.measurement.bounds import error_bound
from autotune.study import Study
from autotune.tempdirs import temporary_folder


@dataclass(frozen=True, slots=True)
class BuiltLibraries:
    """The libraries of a study, one for each operation."""

    libraries: tuple[Path, ...]
    origins: Mapping[str, str]
    left_out: Mapping[str, str]


def build_untuned(
    what: Study | str | Path,
    out: Path,
    db: str,
    *,
    request: ExportRequest,
    templates: Sequence[Path] = (),
    say: Say = lambda *_: None,
) -> BuiltLibraries:
    """Choose kernels as an untuned export does, compile them on all cores meanwhile, and write `libOPERATION.so` into a
    folder.

    Kernels that were compiled before come from the cache. Raises as `export`, and BuildError.
    """
    compiler = functools.cache(functools.partial(compile_for, cache=binary_cache()))
    with ThreadPoolExecutor(jobs_default()) as threads:
        started: dict[str, Future[Binary | str]] = {}

        def start(kernel: SelectedKernel) -> None:
            started[kernel.name] = threads.submit(compile_kernel, kernel, compiler(kernel.origin.device))

        untuned, _ = untuned_export(what, db, request, templates, say, jobs=jobs_default(), found=start)
        results = [(kernel, started[kernel.name].result()) for kernel in untuned.kernels]
    compiled = [(kernel, result) for kernel, result in results if isinstance(result, Binary)]
    failed = {kernel.name: result for kernel, result in results if isinstance(result, str)}
    if not compiled:
        raise StoreError(f"{what}: no kernel to export: {'; '.join(failed.values())}")
    with suppress(FileExistsError):
        out.mkdir(parents=True)
    libraries = tuple(_written(compiled, out))
    origins = {name: origin for name, origin in untuned.origins.items() if name not in failed}
    kernels = {kernel.name: asdict(BuiltKernel(origins[kernel.name], _bound(kernel))) for kernel, _ in compiled}
    write_whole(out / ORIGINS, json.dumps(kernels, indent=1).encode(), "--out")
    return BuiltLibraries(libraries, origins, {**untuned.left_out, **failed})


def _bound(kernel: SelectedKernel) -> float:
    """The largest error of a sum of products, relative to the sum of their magnitudes."""
    source, problem = kernel.source, kernel.problem
    return error_bound(source.accuracy, problem).times(source.error_factor).factor(problem.reduction)


def _written(compiled: Sequence[tuple[SelectedKernel, Binary]], out: Path) -> Iterator[Path]:
    operations: dict[str, list[tuple[SelectedKernel, Binary]]] = {}
    for kernel, binary in compiled:
        operations.setdefault(kernel.problem.operation.name, []).append((kernel, binary))
    for kernels in operations.values():
        with temporary_folder() as folder:
            library = link_library(kernels, Path(folder))
            path = out / library.name
            write_whole(path, library.read_bytes(), "--out")
        yield path
