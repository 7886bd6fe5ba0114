"""A study -> libraries that are built at once, without sources and proof, from kernels that were never run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.api.device_names import Say, binary_cache
from autotune.api.exports import ExportRequest, untuned_export
from autotune.atomic_write import write_whole
from autotune.compilation.compile import Binary
from autotune.errors import StoreError
from autotune.exporting import SelectedKernel
from autotune.exporting.build import compile_for, compile_kernels, link_library
from autotune.study import Study
from autotune.tempdirs import temporary_folder

ORIGINS = "origins.json"
"""The last file written: `study.layer` to where its kernel comes from"""


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
    """Choose kernels as an untuned export does, compile them on all cores, and write `libOPERATION.so` into a folder.

    Kernels that were compiled before come from the cache. Raises as `export`, and BuildError.
    """
    untuned, _ = untuned_export(what, db, request, templates, say)
    compiled, failed = compile_kernels(untuned.kernels, compile_for(untuned.kernels[0].row.row.device, binary_cache()))
    if not compiled:
        raise StoreError(f"{what}: no kernel to export: {'; '.join(failed.values())}")
    with suppress(FileExistsError):
        out.mkdir(parents=True)
    libraries = tuple(_written(compiled, out))
    origins = {name: origin for name, origin in untuned.origins.items() if name not in failed}
    write_whole(out / ORIGINS, json.dumps(origins, indent=1).encode(), "--out")
    return BuiltLibraries(libraries, origins, {**untuned.left_out, **failed})


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
