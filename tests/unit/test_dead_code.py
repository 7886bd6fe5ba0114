"""Definitions in included files that a kernel does not use are left out of its text."""

from __future__ import annotations

import pytest

from autotune.family.text import inline, without_dead_code

INCLUDED = """#pragma once
#include <cuda_fp16.h>

// What this file is about: unused() and the rest.

struct alignas(8) Pair {
    int first;
};

// Twice.
template <typename T>
__device__ __forceinline__ T twice(T value) {
#pragma unroll
    for (int i = 0; i < 1; ++i) value += value;
    return value;
}

template <typename T>
__device__ T converted(float value);

template <>
__device__ __forceinline__ float converted<float>(float value) { return value; }  // as it is

// Four times, by twice.
__device__ __forceinline__ int four_times(int value) {
    return twice(twice(value));
}

__device__ void with_pair(const Pair& pair,
                          int second) {}

constexpr int KEPT = 1;
"""
KERNEL = '#include "_file.cuh"\n\nextern "C" __global__ void kernel(int* y) { %s }\n'


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("", set()),
        ("*y = twice(*y);", {"twice"}),
        ("*y = four_times(*y);", {"twice", "four_times"}),
        ("with_pair({}, 1);", {"Pair", "with_pair"}),
        ("*y = converted<float>(1.0f);", {"converted"}),
        ("// twice, four_times", set()),
    ],
)
def test_a_text_has_what_it_uses_and_what_that_uses(body: str, kept: set[str]) -> None:
    text = inline(KERNEL % body, [("_file.cuh", INCLUDED)])
    code = "\n".join(line.partition("//")[0] for line in text.split("\n"))
    assert {name for name in ("twice", "four_times", "Pair", "with_pair", "converted") if name in code} == kept
    assert ("// Twice." in text, "// Four times," in text) == ("twice" in kept, "four_times" in kept)
    assert code.count("converted") == (3 if "converted" in kept else 0)
    assert "constexpr int KEPT" in text
    assert "// What this file is about" in text
    assert "\n\n\n" not in text


def test_what_is_not_included_stays() -> None:
    own = "__device__ int mine() { return 1; }\n"
    assert without_dead_code(own, [INCLUDED]) == own
