"""Arrays' storage types: C++ and NumPy names, ranges of integers, and rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_EXACT = 2**53  # whole numbers up to this are exact in the references' float64
_F32_BITS = 23  # fraction bits


@dataclass(frozen=True, slots=True)
class StorageType:
    """A type of array elements."""

    name: str
    cuda: str
    """the type's name in kernels"""
    size_bytes: int
    whole: tuple[int, int]
    """the range of whole numbers in test data"""
    accuracy: str
    """the accuracy class of a study of this type"""
    fraction_bits: int = 0
    """0 for an integer type"""
    least_exponent: int = 0
    """exponent of the smallest normal number; 0 if outputs never come near it"""
    numpy: str = ""
    """the NumPy dtype; empty if NumPy has none"""
    header: str = ""
    """the CUDA header that declares the type"""

    @property
    def is_float(self) -> bool:
        """Whether the type is a floating-point type."""
        return self.fraction_bits > 0

    @property
    def rounding(self) -> float:
        """Unit roundoff of a stored output, or 0 for integers and for f32 and f64, where the accuracy class
        covers it.
        """
        return 2.0 ** -(self.fraction_bits + 1) if 0 < self.fraction_bits < _F32_BITS else 0.0

    @property
    def least_rounding(self) -> float:
        """Half of the smallest positive number, or 0 if outputs never come near it."""
        near = self.least_exponent or not self.is_float
        return 2.0 ** (self.least_exponent - self.fraction_bits - 1) if near else 0.0


TYPES: Mapping[str, StorageType] = {
    each.name: each
    for each in (
        StorageType("f32", "float", 4, (-(2**30), 2**30), "fp32", fraction_bits=23, numpy="<f4"),
        StorageType("f16", "__half", 2, (-65504, 65504), "fp16", 10, -14, "<f2", "cuda_fp16.h"),
        StorageType("bf16", "__nv_bfloat16", 2, (-(2**30), 2**30), "bf16", 7, header="cuda_bf16.h"),
        StorageType("i32", "int", 4, (-(2**31), 2**31 - 1), "fp32", numpy="<i4"),
        StorageType("f64", "double", 8, (-_EXACT, _EXACT), "fp64", fraction_bits=52, numpy="<f8"),
        StorageType("e4m3", "__nv_fp8_e4m3", 1, (-448, 448), "fp16", 3, -6, header="cuda_fp8.h"),
        StorageType("e5m2", "__nv_fp8_e5m2", 1, (-57344, 57344), "fp16", 2, -14, header="cuda_fp8.h"),
        StorageType("i8", "signed char", 1, (-128, 127), "fp32", numpy="|i1"),
        StorageType("u8", "unsigned char", 1, (0, 255), "fp32", numpy="|u1"),
        StorageType("i64", "long long", 8, (-_EXACT, _EXACT), "fp32", numpy="<i8"),
    )
}
"""Storage types by name. The C interface of exports numbers them in this order."""
SCALAR_TYPES = ("f32", "f64", "i32", "i64")
"""Storage types of the numbers that kernels take by value."""
FLOATS = tuple(name for name, each in TYPES.items() if each.is_float)
