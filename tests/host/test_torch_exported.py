"""torch.export with sizes of norms that are computed directly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from torch import Tensor  # noqa: E402
from torch._decomp import decomposition_table  # noqa: E402
from torch._dispatch.python import enable_python_dispatcher  # noqa: E402
from torch._dynamo.source import ConstantSource  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from autotune.autotune_runtime.torch_exported import direct_norms  # noqa: E402

N, H, W = 3, 5, 7
GROUP_NORM = torch.ops.aten.native_group_norm.default
BATCH_NORM = torch.ops.aten._native_batch_norm_legit_no_training.default
LAYOUTS: dict[str, Callable[..., Tensor]] = {
    "contiguous": lambda n, h, w, **how: torch.empty((n, 8, h, w), **how),
    "channels-last": lambda n, h, w, **how: torch.empty((n, h, w, 8), **how).permute(0, 3, 1, 2),
    "channels of channels-last": lambda n, h, w, **how: torch.empty((n, h, w, 16), **how).permute(0, 3, 1, 2)[:, :8],
    "every second channel": lambda n, h, w, **how: torch.empty((n, 16, h, w), **how)[:, ::2],
    "permuted": lambda n, h, w, **how: torch.empty((8, n, h, w), **how).transpose(0, 1),
    "reversed": lambda n, h, w, **how: torch.empty((w, h, 8, n), **how).permute(3, 2, 1, 0),
    "rows": lambda n, h, w, **how: torch.empty((n, h * w, 8), **how).transpose(1, 2),
    "broadcast": lambda n, h, w, **how: torch.empty((n, 8, 1, 1), **how).expand(n, 8, h, w),
}


def norms(layout: str, device: str, dtype: str) -> list[tuple[str, str, str]]:
    """Return the symbolic sizes and strides and the dtypes of norms' outputs for images of 8 channels."""
    env = ShapeEnv()
    sizes = [
        env.create_symintnode(env.create_symbol(size, source=ConstantSource(f"s{size}")), hint=size)
        for size in (N, H, W)
    ]
    n, h, w = sizes
    with torch.no_grad(), FakeTensorMode(shape_env=env), enable_python_dispatcher():
        x = LAYOUTS[layout](*sizes, device=device, dtype=getattr(torch, dtype))
        weight = torch.empty(8, device=device, dtype=x.dtype)
        made = [
            *GROUP_NORM(x, weight, weight, n, 8, h * w, 4, 1e-5),
            *BATCH_NORM(x, weight, weight, weight, weight, 0.1, 1e-5),
        ]
    return [(str(each.shape), str(each.stride()), str(each.dtype)) for each in made]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_sizes_and_layouts_are_those_of_pytorchs_decompositions(layout: str, device: str, dtype: str) -> None:
    with direct_norms():
        direct = norms(layout, device, dtype)
    assert direct == norms(layout, device, dtype)


@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_decompositions_run_only_outside_an_export(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise NotImplementedError

    for norm in (GROUP_NORM, BATCH_NORM):
        monkeypatch.setitem(decomposition_table, norm, fails)
    with direct_norms():
        norms(layout, "cuda", "float32")
    with pytest.raises(NotImplementedError):
        norms(layout, "cuda", "float32")
