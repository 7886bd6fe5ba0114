// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// input_scatter thread_c=1 thread_k=all block=256 filters=global unroll=none restrict=True adds=sums

// y[n, k, p, q] += w[k, c, r, s] * x[n, c, h, w], for each input and tap: no matrix product; additions are atomic.
//
// Direct convolution turned around: a thread takes CHANNELS inputs of one position and adds their products to every
// output that they reach. Additions are atomic and come in any order: the last bits differ between runs.
//
//   x     [N, C, H, W]  input
//   w     [K, C, R, S]  filters
//   bias  [K]           read where EPILOGUE has one
//   y     [N, K, P, Q]  output
//   n     images N, any number
//
//   conv2d_scatter  grid x: image * PIXEL_TILES + tile of BLOCK input pixels;  y: group of THREAD_K output channels;
//                        z: group of CHANNELS channels
//   others          go over all outputs, WIDTH neighbours a thread

#include "_element.cuh"

#include "_epilogue.cuh"

#include "_accumulate.cuh"

// Problem
constexpr int C = 6, H = 23, W = 21;
constexpr int K = 7, R = 3, S = 5;
constexpr int P = 12, Q = 11;
constexpr int STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_H = 1, PAD_W = 2;
constexpr int DILATION_H = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int CHANNELS = 1;  // input channels a thread
constexpr int THREAD_K = 7;  // output channels a thread
constexpr int BLOCK = 256;  // threads a block, one input position each
constexpr bool SHARED_FILTERS = false;
constexpr bool PRODUCTS = false;  // are added one by one, not the sums over CHANNELS
using T = float;
using Input = const float* __restrict__;
using Output = float* __restrict__;
constexpr int UNROLL_R = 1, UNROLL_S = 1;

// Derived
constexpr int PIXEL_TILES = (H * W + BLOCK - 1) / BLOCK;
constexpr int SWEEP_BLOCK = 256;  // threads a block that goes over the outputs, each
constexpr int WIDTH = 4;  // so many neighbours of one output channel
constexpr int TAPS = C * R * S;
constexpr int K_STRIDE = SHARED_FILTERS ? CHANNELS * R * S : TAPS;  // filters from an output channel to the next

#include "_filters_global.cuh"

// The output row or column that an input row or column reaches through filter row or column `tap`; false if none.
template <int STRIDE, int PAD, int DILATION, int EXTENT>
__device__ __forceinline__ bool reached(int input, int tap, int& output) {
    const int offset = input + PAD - tap * DILATION;
    output = offset / STRIDE;
    return offset >= 0 && offset % STRIDE == 0 && output < EXTENT;
}

extern "C" __global__ void __launch_bounds__(SWEEP_BLOCK)
conv2d_begin(Input bias, Output y, int n) {
    const long long first = (static_cast<long long>(blockIdx.x) * SWEEP_BLOCK + threadIdx.x) * WIDTH;
    if (first < static_cast<long long>(n) * (K * P * Q)) init_outputs<K, P * Q, WIDTH, EPILOGUE>(y, bias, first);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
conv2d_scatter(Input x, Input w, Output y, int n) {
    const int image = static_cast<int>(blockIdx.x / PIXEL_TILES);
    const int position = static_cast<int>(blockIdx.x % PIXEL_TILES * BLOCK + threadIdx.x);
    const int first_k = static_cast<int>(blockIdx.y) * THREAD_K;
    const int first_channel = static_cast<int>(blockIdx.z) * CHANNELS;

    extern __shared__ __align__(16) unsigned char smem[];
    float* const staged = reinterpret_cast<float*>(smem);  // [output channel][channel][r][s]
    if constexpr (SHARED_FILTERS) {
        for (int j = static_cast<int>(threadIdx.x); j < THREAD_K * K_STRIDE; j += BLOCK) {
            staged[j] = w[((first_k + j / K_STRIDE) * C + first_channel) * (R * S) + j % K_STRIDE];
        }
        __syncthreads();
    }
    const float* filters = filters_of(w) + (first_k * C + first_channel) * (R * S);
    if (image >= n || position >= H * W) return;

    const int row = position / W, column = position % W;
    float input[CHANNELS];
#pragma unroll
    for (int j = 0; j < CHANNELS; ++j) {
        input[j] = x[(static_cast<long long>(image) * C + first_channel + j) * (H * W) + position];
    }

    float* plane = y + (static_cast<long long>(image) * K + first_k) * (P * Q);
#pragma unroll 1
    for (int k = 0; k < THREAD_K; ++k) {
#pragma unroll UNROLL_R
        for (int r = 0; r < R; ++r) {
            int p;
            if (!reached<STRIDE_H, PAD_H, DILATION_H, P>(row, r, p)) continue;
#pragma unroll UNROLL_S
            for (int s = 0; s < S; ++s) {
                int q;
                if (!reached<STRIDE_W, PAD_W, DILATION_W, Q>(column, s, q)) continue;
                float accumulator = 0.0f;
#pragma unroll
                for (int j = 0; j < CHANNELS; ++j) {
                    accumulator = fmaf(filters[(j * R + r) * S + s], input[j], PRODUCTS ? 0.0f : accumulator);
                    if (PRODUCTS || j == CHANNELS - 1) atomicAdd(plane + p * Q + q, accumulator);
                }
            }
        }
        plane += P * Q;
        filters += K_STRIDE;
    }
}
extern "C" __global__ void __launch_bounds__(SWEEP_BLOCK) conv2d_rectify(float* y, int n) {
    const long long first = (static_cast<long long>(blockIdx.x) * SWEEP_BLOCK + threadIdx.x) * WIDTH;
    if (first < static_cast<long long>(n) * (K * P * Q)) activate_outputs<WIDTH, EPILOGUE>(y, first);
}
