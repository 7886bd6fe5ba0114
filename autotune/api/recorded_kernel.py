"""A best row of a results database -> the kernel that an export needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autotune.analysis.rerender import located
from autotune.analysis.rooflines import with_roofline
from autotune.errors import StoreError
from autotune.exporting import SelectedKernel
from autotune.exporting.kernel import recorded_origin
from autotune.family.template import KernelTemplate
from autotune.store import BestRow, Store
from autotune.study import Study


def selected_kernel(
    store: Store, row: BestRow, study: Study, db: str, families: Mapping[str, KernelTemplate]
) -> SelectedKernel:
    """A recorded kernel with everything that its export needs; `families` may have the folder of its operation.

    Raises StoreError if the database has no source of the kernel, or no header of its family.
    """
    problem = located(row.layer.problem, families)
    row = replace(row, layer=replace(row.layer, problem=problem))
    source = store.sources.get(row.row.trial.source_hash or "")
    if source is None:
        raise StoreError(f"{db}: the source of {row.name} is not in the database; tune it again")
    header = store.templates.header(source.config.template, row.row.template_hash)
    if not header:
        raise StoreError(f"{db}: the header of {source.config.template} is not in the database; tune {row.name} again")
    origin = recorded_origin(row, with_roofline(store, row).floor_us)
    return SelectedKernel(origin, replace(source, problem=problem), header, study.admitted(problem))
