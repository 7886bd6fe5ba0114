"""Build libraries for immediate use, without sources or a proof, from a study's recorded and predicted kernels."""

from __future__ import annotations

import functools
import json
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from autotune.api.device_names import binary_cache
from autotune.api.untuned import Results, opened_results, untuned_kernels
from autotune.atomic_write import write_whole
from autotune.autotune_runtime.untuned_build import ORIGINS, BuiltKernel
from autotune.compilation.compile import Binary
from autotune.devices.host_machine import usable_cores
from autotune.errors import AutotuneError, StoreError
from autotune.exporting import SelectedKernel
from autotune.exporting.build import compile_for, compile_kernel
from autotune.exporting.planned import planned, write_planned_library
from autotune.family.template_files import load_templates
from autotune.measurement.bounds import error_bound
from autotune.operation.registry import CONV2D
from autotune.study import Study, distinct_layers, informative_classes
from autotune.study_reader import parse_study


def main() -> None:
    """Build libraries on behalf of the process that runs `python -m autotune.api.built_library DEVICE DB`.

    Each line of standard input contains a study and a folder as JSON. The process fails if the last request fails.
    Everything else is read before the first request, including the families of conv2d, which most networks need.
    """
    device, db = sys.argv[1:]
    try:
        with opened_results(db, device) as results:
            load_templates(of={CONV2D})
            results.best()
            results.tuned(informative_classes(None, "f16"))
            failed: AutotuneError | None = None
            for line in sys.stdin:
                failed, request = None, json.loads(line)
                try:
                    build_untuned(parse_study(request["study"], "network"), results, Path(request["out"]))
                except AutotuneError as error:
                    failed = error
            if failed is not None:
                raise failed
    except AutotuneError as error:
        sys.exit(str(error))


def build_untuned(study: Study, results: Results, out: Path) -> None:
    """Choose kernels as in an untuned export and write the libraries to a folder, compiling on all cores in the
    meantime.

    The folder gets a `libOPERATION.json` for each operation, the compiled kernels, and the file ORIGINS. Kernels that
    have been compiled before come from the cache. Raises ToolchainError if there is no compiler, and StoreError if no
    layer gets a kernel.
    """
    compiler = functools.cache(functools.partial(compile_for, cache=binary_cache()))
    jobs = usable_cores()
    with ThreadPoolExecutor(jobs) as threads:
        started: dict[str, Future[Binary | str]] = {}

        def start(kernel: SelectedKernel) -> None:
            started[kernel.name] = threads.submit(compile_kernel, kernel, compiler(kernel.origin.device))

        layers = distinct_layers(study.layers)
        families = load_templates(of={layer.problem.operation.name for layer in layers})
        untuned = untuned_kernels(study, layers, families, results, jobs=jobs, found=start)
        results_of = [(kernel, planned(kernel), started[kernel.name].result()) for kernel in untuned.kernels]
    compiled = [(kernel, fields, result) for kernel, fields, result in results_of if isinstance(result, Binary)]
    if not compiled:
        failed = (result for *_, result in results_of if isinstance(result, str))
        raise StoreError(f"{study.name}: no kernel: {'; '.join((*untuned.left_out.values(), *failed))}")
    with suppress(FileExistsError):
        out.mkdir(parents=True)
    operations = {kernel.problem.operation.name for kernel, *_ in compiled}
    for name in operations:
        write_planned_library([each for each in compiled if each[0].problem.operation.name == name], out)
    kernels = {
        kernel.name: asdict(BuiltKernel(untuned.origins[kernel.name], *_bounds(kernel))) for kernel, *_ in compiled
    }
    write_whole(out / ORIGINS, json.dumps(kernels, indent=1).encode(), "--out")


def _bounds(kernel: SelectedKernel) -> tuple[float, float]:
    """Return the largest relative errors of a result and of a single product.

    The error of a sum of products is relative to the sum of their magnitudes. Any other error is relative to the
    tolerance.
    """
    source, problem = kernel.source, kernel.problem
    bound = error_bound(source.accuracy, problem).times(source.error_factor)
    return bound.factor(problem.reduction), bound.factor(1)


if __name__ == "__main__":
    main()
