#pragma once
#include "_element_f16.cuh"

using T = __half;  // x, w, bias and y in memory
