#pragma once

// Outputs to which all blocks then add their parts. Needs _accumulate.cuh and the family's constants.
extern "C" __global__ void __launch_bounds__(SWEEP_BLOCK)
conv2d_begin(Input bias, Output y, int n) {
    const long long first = (static_cast<long long>(blockIdx.x) * SWEEP_BLOCK + threadIdx.x) * WIDTH;
    if (first < static_cast<long long>(n) * (K * PIXELS)) init_outputs<K, PIXELS, WIDTH, EPILOGUE>(y, bias, first);
}
