#pragma once

// Registers go from warpgroups that copy to those that multiply, on sm_90 alone.
#include "_ptx_wgmma.cuh"
