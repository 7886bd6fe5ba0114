"""Kernels to export without tuning: rendered here, each with a hand-written trial."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from autotune.devices.device import DeviceInfo, Environment
from autotune.exporting import SelectedKernel
from autotune.exporting.kernel import recorded_origin
from autotune.family.render import render
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.problem import Conv2dProblem, Layer, Problem
from autotune.store import BestRow, TrialRow
from autotune.trial import Config, ErrorStats, Outcome, Timing, Trial, Value
from tests.templates.shipped_families import family

H200 = DeviceInfo("cuda", "NVIDIA H200", arch=90, sm_count=132, memory_bytes=150_109_880_320, l2_bytes=62_914_560)
TIMING = Timing((10.0, 11.0, 12.0), 11.0, 10.5, 11.5, "cold")
DATE = datetime(2026, 11, 20, 12, tzinfo=UTC)


def chosen(
    template: KernelTemplate, problem: Problem, config: Config, layer: str, device: DeviceInfo = H200
) -> SelectedKernel:
    """A config as a results database returns it: the winner of layer `tested.LAYER`, whose study admits fp32."""
    source = render(BoundTemplate(template, problem, device), config)
    trial = Trial(
        number=0,
        config=config,
        outcome=Outcome.CORRECT,
        source_hash=source.hash,
        accuracy=source.accuracy,
        deterministic=source.deterministic,
        timing=TIMING,
        error=ErrorStats(0.5, 1e-6),
    )
    row = TrialRow(
        id=1,
        study="tested",
        generation=1,
        layer=Layer(layer, problem),
        device=device,
        environment=Environment("580.0", "nvcc 13.0.88", "-std=c++17 -O3"),
        measurement_mode="cold",
        template_hash=template.hash,
        trial=trial,
        started_at=DATE,
        ended_at=DATE,
        reused=False,
        attempts=1,
    )
    origin = recorded_origin(BestRow("tested", row.layer, TIMING, "finals", row), None)
    return SelectedKernel(origin, source, template.header, ("fp32",))


def kernel(name: str, layer: str, problem: Problem, device: DeviceInfo = H200, **pinned: Value) -> SelectedKernel:
    """The first config of a family with these values."""
    bound = BoundTemplate(family(name), problem, device, Admission(prune=True))
    space = SearchSpace(bound, {param: [value] for param, value in pinned.items()}, most_rows=0, sampled_rows=1)
    assert space.default is not None
    return chosen(family(name), problem, space.default, layer, device)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by its relative path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


CONSTANT = kernel("direct", "constant", Conv2dProblem(40, 2, 9, 11, 4, 3, 3, epilogue="bias_relu"), filters="constant")
PACKED = kernel("mma_strip", "packed", Conv2dProblem(2, 3, 12, 13, 8, 3, 3, dtype="f16"), precision="stored")
CHUNKED = kernel(
    "im2col_gemm", "chunked", Conv2dProblem(30, 2, 8, 9, 4, 3, 3, pad_h=1), chunk="10", fusion="two_kernels"
)
LARGER = kernel("im2col_gemm", "larger", CHUNKED.problem.with_runtime(300), chunk="100")
MAPPED = kernel(
    "implicit_gemm_sm90",
    "mapped",
    Conv2dProblem(6, 24, 9, 7, 16, 3, 3, pad_h=1, pad_w=1, dtype="f16", layout="nhwc", epilogue="bias_add_relu"),
    tile_m=64,
    tile_n=64,
)
ROUNDED = kernel(
    "implicit_gemm_sm90",
    "rounded",
    Conv2dProblem(6, 36, 9, 7, 20, 3, 3, pad_h=1, pad_w=1, layout="nhwc", epilogue="bias_add"),
    tile_m=64,
    tile_n=64,
)
ADDED = kernel("direct", "added", Conv2dProblem(20, 3, 8, 9, 4, 3, 3, pad_h=1, epilogue="bias_add"))
KERNELS = (CONSTANT, PACKED, CHUNKED, LARGER, MAPPED, ROUNDED, ADDED)
"""Kernels with filters in constant memory, with packed filters, with a workspace and several rounds (also for more
images), with tensor maps, with maps that round floats, and with a residual."""
