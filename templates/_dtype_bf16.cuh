#pragma once
#include "_element_bf16.cuh"

using T = __nv_bfloat16;  // x, w, bias and y in memory
