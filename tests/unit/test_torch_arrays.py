"""PyTorch's tensors have the right type: both of its 16-bit floats have one typestr."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", exc_type=ImportError)

import torch

from autotune.autotune_runtime.arrays import check, dtype_of, view


class Described(torch.Tensor):  # type: ignore[misc]
    """A tensor that describes itself like those on a GPU (`torch.Tensor.__cuda_array_interface__`)."""

    __module__ = "torch"
    device = torch.device("cuda", 0)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        typestr = {torch.float32: "<f4", torch.float16: "<f2", torch.bfloat16: "<f2"}[self.dtype]
        return {"shape": tuple(self.shape), "typestr": typestr, "strides": None, "data": (self.data_ptr(), False)}


OF = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize("given", OF)
@pytest.mark.parametrize("wanted", OF)
def test_a_tensor_of_another_dtype_is_refused(given: str, wanted: str) -> None:
    tensor = torch.zeros(2, 3, dtype=OF[given]).as_subclass(Described)
    found = view(tensor, "x")
    assert dtype_of(found, "x") == given
    if given == wanted:
        check(found, "x", wanted, (2, 3))
        return
    with pytest.raises(ValueError, match=rf"x: its elements are {given}, the problem's \S+ \({wanted}\)"):
        check(found, "x", wanted, (2, 3))
