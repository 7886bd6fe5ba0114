#pragma once
#include "_element.cuh"

using T = float;  // x, w, bias and y in memory
