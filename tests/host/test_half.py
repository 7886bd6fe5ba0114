"""binary16 and bfloat16: one rounding to nearest even after every operation, as on the GPU."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from tests.long_run import every

from .kernels import Bench

Bits = npt.NDArray[np.uint16]

TEXT = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
template <class T>
__device__ void operations(const T* a, const T* b, const T* c, T* y, int n) {
    for (int i = 0; i < n; ++i) {
        y[i] = a[i] + b[i];
        y[n + i] = a[i] - b[i];
        y[2 * n + i] = __hmul(a[i], b[i]);
        y[3 * n + i] = a[i] / b[i];
        y[4 * n + i] = hsqrt(__habs(a[i]));
        y[5 * n + i] = __hfma(a[i], b[i], c[i]);
    }
}
extern "C" __global__ void half_operations(const __half* a, const __half* b, const __half* c, __half* y, int n) {
    operations(a, b, c, y, n);
}
extern "C" __global__ void bfloat16_operations(const __nv_bfloat16* a, const __nv_bfloat16* b, const __nv_bfloat16* c,
                                               __nv_bfloat16* y, int n) {
    operations(a, b, c, y, n);
}
extern "C" __global__ void half_conversions(const float* f, const double* d, __half* y, float* back, int n) {
    for (int i = 0; i < n; ++i) {
        y[i] = __float2half_rn(f[i]);
        y[n + i] = __double2half(d[i]);
        back[i] = __half2float(y[i]);
    }
}
extern "C" __global__ void pairs(const __half2* a, const __half2* b, const __half2* c, __half2* y, float* f) {
    y[0] = __hfma2(a[0], b[0], c[0]);
    y[1] = __hadd2(a[0], b[0]) * c[0];
    y[2] = __halves2half2(__high2half(a[0]), __low2half(b[0]));
    y[3] = __half2half2(__float2half(f[0])) - __floats2half2_rn(f[0], f[1]);
    f[2] = __low2float(a[0]);
    f[3] = __high2float(a[0]);
}
"""
PORTABLE = "-U__FLT16_MANT_DIG__"  # without the compiler's own 16-bit type
COUNT = 4000


def operands(seed: int, *, small: bool) -> tuple[Bits, Bits, Bits]:
    """Bit patterns: all kinds of numbers, or numbers whose product a * b lies near half a step of c."""
    rng = np.random.default_rng(seed)
    if not small:
        a, b, c = rng.integers(0, 1 << 16, (3, COUNT), np.uint16)
        return a, b, c
    values = [np.ldexp(1 + rng.integers(0, 8, COUNT) / 1024, rng.integers(low, 1, COUNT)) for low in (-12, -12, -1)]
    a, b, c = (value.astype(np.float16).view(np.uint16) for value in values)
    return a, b, c


def rounded(exact: Fraction, *, bits: int, least: int, most: int) -> float:
    """An exact number rounded to nearest even in a binary format."""
    if exact == 0:
        return 0.0
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > magnitude
    step = Fraction(2) ** (max(exponent, least) - bits + 1)
    result = round(magnitude / step) * step
    value = float("inf") if result >= Fraction(2) ** (most + 1) else float(result)
    return value if exact > 0 else -value


@pytest.mark.parametrize("flags", [(), (PORTABLE,)], ids=["compiler", "portable"])
def test_half_operations_match_numpy(bench: Bench, flags: tuple[str, ...]) -> None:
    module = bench.load(TEXT, "half_operations", flags=flags)
    a, b, c = operands(0, small=False)
    arguments = (a, b, c, np.zeros((6, COUNT), np.uint16), np.int32(COUNT))
    y = bench.run(module, "half_operations", arguments)[3].view(np.float16)
    x, z = a.view(np.float16), b.view(np.float16)
    with np.errstate(all="ignore"):
        expected = (x + z, x - z, x * z, x / z, np.sqrt(np.abs(x)))
    for row, (name, right) in enumerate(zip(("+", "-", "*", "/", "sqrt"), expected, strict=True)):
        np.testing.assert_array_equal(y[row], right, err_msg=name)
    module.unload()


@pytest.mark.parametrize("flags", [(), (PORTABLE,)], ids=["compiler", "portable"])
@pytest.mark.parametrize("small", every(2, [True, False]), ids=["near_ties", "any"])
@pytest.mark.parametrize(("entry", "bits", "least", "most"), [("half", 11, -14, 15), ("bfloat16", 8, -126, 127)])
def test_fused_multiply_add_rounds_once(
    bench: Bench, entry: str, bits: int, least: int, most: int, small: bool, flags: tuple[str, ...]
) -> None:
    module = bench.load(TEXT, f"{entry}_operations", flags=flags)
    numbers = operands(1, small=small)
    arguments = (*numbers, np.zeros((6, COUNT), np.uint16), np.int32(COUNT))
    y = bench.run(module, f"{entry}_operations", arguments)[3][5]
    floats = [to_float(entry, value) for value in (*numbers, y)]
    checked = 0
    for a, b, c, got in zip(*floats, strict=True):
        if np.isfinite(a) and np.isfinite(b) and np.isfinite(c):
            exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
            assert got == rounded(exact, bits=bits, least=least, most=most), (a, b, c)
            checked += 1
    assert checked > COUNT / 2
    module.unload()


def to_float(entry: str, values: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Bit patterns of a format as floats."""
    if entry == "half":
        return values.view(np.float16).astype(np.float32)
    return (values.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("flags", [(), (PORTABLE,)], ids=["compiler", "portable"])
def test_conversions_match_numpy(bench: Bench, flags: tuple[str, ...]) -> None:
    module = bench.load(TEXT, "half_conversions", flags=flags)
    rng = np.random.default_rng(2)
    ties = 1 + (2 * np.arange(100) + 1) / 2048 + rng.integers(-1, 2, 100) * 1e-12
    special = [0.0, -0.0, np.inf, -np.inf, 65519.99, 65520.0, 1e-8, 2.0**-25, 3 * 2.0**-25, 6.1e-5, -(2.0**-24)]
    numbers = np.concatenate([special, ties, rng.standard_normal(500) * 10.0 ** rng.integers(-9, 6, 500)])
    count = len(numbers)
    arguments = (numbers.astype(np.float32), numbers, np.zeros((2, count), np.float16), np.zeros(count, np.float32))
    _, _, y, back = bench.run(module, "half_conversions", (*arguments, np.int32(count)))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y[0], numbers.astype(np.float32).astype(np.float16))
        np.testing.assert_array_equal(y[1], numbers.astype(np.float16))
    np.testing.assert_array_equal(back, y[0].astype(np.float32))
    module.unload()


def test_pairs(bench: Bench) -> None:
    a, b, c = (np.array(pair, np.float16) for pair in ([1.5, -2.25], [0.1, 3.0], [100.0, 0.001]))
    f = np.array([0.1, 0.2, 0, 0], np.float32)
    *_, y, floats = bench.run(TEXT, "pairs", (a, b, c, np.zeros((4, 2), np.float16), f))
    exact = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    np.testing.assert_array_equal(y[0], exact.astype(np.float16))
    np.testing.assert_array_equal(y[1], (a + b) * c)
    np.testing.assert_array_equal(y[2], [a[1], b[0]])
    np.testing.assert_array_equal(y[3], np.float16(f[0]) - f[:2].astype(np.float16))
    np.testing.assert_array_equal(floats[2:], [1.5, -2.25])
