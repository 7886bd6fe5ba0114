// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// split_c reduction=atomic chunk=all channels=1 block=256 thread_k=1 filters=global unroll=none restrict=True

// y[n, k, p, q] = sum over c, r, s of w[k, c, r, s] * x[n, c, h, w]: no matrix product; blocks share the sum over c.
//
// Direct convolution, the input channels split over blocks: a thread computes what CHANNELS channels contribute to one
// pixel of THREAD_K output channels.
// Blocks add their parts to the output with atomics, in any order: the last bits differ between runs. Or they store their parts in the
// workspace (WORKSPACE), and another kernel adds them up in the order of the channels.
//
//   x        [N, C, H, W]  input
//   w        [K, C, R, S]  filters
//   bias     [K]           read where EPILOGUE has one
//   y        [N, K, P, Q]  output
//   partial  [SPLITS, images, K, P, Q]  accumulators over CHANNELS channels each, for the images of one chunk; or y
//   n        images N, any number
//   i        chunk, from 0
//
//   conv2d_split_c  grid x: image * PIXEL_TILES + tile of BLOCK pixels;  y: group of THREAD_K output channels;
//                        z: group of CHANNELS channels
//   others          go over all outputs, WIDTH neighbours a thread

#include "_element.cuh"

#include "_epilogue.cuh"

#include "_accumulate.cuh"

// Problem
using T = float;
constexpr int C = 6, H = 23, W = 21;
constexpr int K = 7, R = 3, S = 5;
constexpr int P = 12, Q = 11;
constexpr int STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_H = 1, PAD_W = 2;
constexpr int DILATION_H = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int CHANNELS = 1;  // input channels a block
constexpr int BLOCK = 256;  // threads a block, one pixel each
constexpr int THREAD_K = 1;  // output channels a thread
constexpr bool WORKSPACE = false;
constexpr bool SHARED_FILTERS = false;
using Input = const float* __restrict__;
using Output = float* __restrict__;
constexpr int UNROLL_R = 1, UNROLL_S = 1;

// Derived
constexpr int PIXELS = P * Q;  // an image
constexpr int PIXEL_TILES = (PIXELS + BLOCK - 1) / BLOCK;
constexpr int SWEEP_BLOCK = 256;  // threads a block that goes over the outputs, each
constexpr int WIDTH = 4;  // so many neighbours of one output channel
constexpr int TAPS = C * R * S;
constexpr int K_STRIDE = SHARED_FILTERS ? CHANNELS * R * S : TAPS;  // filters from an output channel to the next

#include "_im2col.cuh"

#include "_filters_global.cuh"

// The images that one launch takes.
struct Chunk {
    int first_image, images;
};

__device__ __forceinline__ Chunk chunk_at(int i, int n) {
    const int most = n;
    return {i * most, min(most, n - i * most)};
}

#include "_split_c_atomic.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
conv2d_split_c(Input x, Input w, Output partial, int n) {
    const Chunk chunk = chunk_at(0, n);
    const int image = static_cast<int>(blockIdx.x / PIXEL_TILES);
    const int pixel = static_cast<int>(blockIdx.x % PIXEL_TILES * BLOCK + threadIdx.x);
    const int k = static_cast<int>(blockIdx.y) * THREAD_K;
    const int first_channel = static_cast<int>(blockIdx.z) * CHANNELS;
    const int channels = min(CHANNELS, C - first_channel);

    extern __shared__ __align__(16) unsigned char smem[];
    float* const staged = reinterpret_cast<float*>(smem);  // [output channel][channel][r][s]
    if constexpr (SHARED_FILTERS) {
        for (int j = static_cast<int>(threadIdx.x); j < THREAD_K * K_STRIDE; j += BLOCK) {
            const int tap = j % K_STRIDE;
            if (tap < channels * (R * S)) staged[j] = w[((k + j / K_STRIDE) * C + first_channel) * (R * S) + tap];
        }
        __syncthreads();
    }
    const float* filters = filters_of(w) + (k * C + first_channel) * (R * S);
    if (image >= (WORKSPACE ? chunk.images : n) || pixel >= PIXELS) return;

    const long long input_image = WORKSPACE ? chunk.first_image + image : image;
    const float* plane = x + (input_image * C + first_channel) * (H * W);
    const Field field = field_at(pixel);
    float accumulator[THREAD_K];
#pragma unroll
    for (int j = 0; j < THREAD_K; ++j) accumulator[j] = 0.0f;

#pragma unroll 1
    for (int c = 0; c < channels; ++c) {
#pragma unroll UNROLL_R
        for (int r = 0; r < R; ++r) {
#pragma unroll UNROLL_S
            for (int s = 0; s < S; ++s) {
                const float input = input_at(plane, field, r, s);
#pragma unroll
                for (int j = 0; j < THREAD_K; ++j) accumulator[j] = fmaf(filters[j * K_STRIDE + r * S + s], input, accumulator[j]);
            }
        }
        plane += H * W;
        filters += R * S;
    }

    const long long part = WORKSPACE ? static_cast<long long>(blockIdx.z) * chunk.images + image : image;
    float* const output = partial + (part * K + k) * PIXELS + pixel;
#pragma unroll
    for (int j = 0; j < THREAD_K; ++j) {
        if constexpr (WORKSPACE) {
            output[j * PIXELS] = accumulator[j];
        } else {
            atomicAdd(output + j * PIXELS, accumulator[j]);
        }
    }
}
extern "C" __global__ void __launch_bounds__(SWEEP_BLOCK) conv2d_rectify(float* y, int n) {
    const long long first = (static_cast<long long>(blockIdx.x) * SWEEP_BLOCK + threadIdx.x) * WIDTH;
    if (first < static_cast<long long>(n) * (K * PIXELS)) activate_outputs<WIDTH, EPILOGUE>(y, first);
}
