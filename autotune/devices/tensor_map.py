"""Tensor maps: kernel parameters that describe boxes for the Tensor Memory Accelerator to copy.

The names come from CUDA's driver API, `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col`.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.autotune_runtime import driver
from autotune.operation.storage_types import TYPES

ELEMENT_BYTES = {**{name: each.size_bytes for name, each in TYPES.items()}, "tf32": 4}
"""Bytes per element for each data type of a tensor map."""
SWIZZLES = (0, 32, 64, 128)
"""Widths, in bytes, of the swizzle patterns for 16-byte chunks."""
_MOST_DIMS = 5
_MOST_BOX = 256
_MOST_PIXELS = 1024
_MOST_STRIDE = 8
_CORNERS = {3: range(-32768, 32768), 4: range(-128, 128), 5: range(-16, 16)}
"""Allowed corners of an im2col box, by the tensor's number of dimensions."""


@dataclass(frozen=True, slots=True)
class TensorMap(driver.TensorMap):
    """A tensor map that says whether the driver would encode it."""

    @property
    def global_strides_bytes(self) -> tuple[int, ...]:
        """The strides of all dimensions except for the innermost."""
        strides, size_bytes = [], ELEMENT_BYTES[self.dtype]
        for extent in self.global_dim[:-1]:
            size_bytes *= extent
            strides.append(size_bytes)
        return tuple(strides)

    def refusal(self) -> str:
        """Return the reason why the driver wouldn't encode this tensor map, or "" if it would."""
        inner_bytes = self.box_dim[0] * ELEMENT_BYTES[self.dtype]
        boxes = self.box_dim[:1] if self.im2col else self.box_dim
        rank, corners = len(self.global_dim), (*self.lower_corner, *self.upper_corner)
        allowed = _CORNERS.get(rank, range(0))
        wrong = [
            ("1 to 5 dimensions", 1 <= rank <= _MOST_DIMS),
            ("extents of 1 to 2^32", all(1 <= extent <= 2**32 for extent in self.global_dim)),
            ("strides that are multiples of 16 bytes", all(stride % 16 == 0 for stride in self.global_strides_bytes)),
            ("strides below 2^40 bytes", all(stride < 2**40 for stride in self.global_strides_bytes)),
            ("boxes of 1 to 256", all(1 <= extent <= _MOST_BOX for extent in boxes)),
            ("boxes whose rows are multiples of 16 bytes", inner_bytes % 16 == 0),
            ("boxes no wider than the swizzle", self.swizzle_bytes == 0 or inner_bytes <= self.swizzle_bytes),
            ("element strides of 1 to 8", all(1 <= stride <= _MOST_STRIDE for stride in self.element_strides)),
            ("3 to 5 dimensions of im2col", not self.im2col or rank in _CORNERS),
            ("1 to 1024 pixels of im2col", not self.im2col or 1 <= self.box_dim[1] <= _MOST_PIXELS),
            (f"corners of {allowed.start} to {allowed.stop - 1}", all(corner in allowed for corner in corners)),
        ]
        return "; ".join(f"a tensor map takes {what}" for what, holds in wrong if not holds)


@dataclass(frozen=True, slots=True)
class BoundTensorMap:
    """A kernel argument: a tensor map for the array at an address."""

    tensor: TensorMap
    address: int
