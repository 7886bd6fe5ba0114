// pixel_mean n 3 pixels 35 c 96 f16
// pixel_mean_blocks block=256 chunk_threads=2 thread_pixels=8 vector=8

// Mean over the pixels of each image and channel.
//
//   x  [n, PIXELS, C]  input
//   y  [n, C]          output
//
//   grid  x: image and block of chunks
//   block x: chunk of VECTOR channels;  y: pixel, of BLOCK_PIXELS at the same time
//
// Lanes of a warp that have the same channels add their sums, then the warps theirs, always in the same order.

#include "_dtype_f16.cuh"

// Problem
constexpr int C = 96, PIXELS = 35;

// Parameters
constexpr int BLOCK = 256, CHUNK_THREADS = 2, THREAD_PIXELS = 8, VECTOR = 8;

// Derived
constexpr int CHUNKS = 12, CHUNK_BLOCKS = 6, BLOCK_PIXELS = 128;
constexpr int WARPS = BLOCK / 32;
constexpr int CHANNELS = CHUNK_THREADS * VECTOR;  // of a block

using Chunk = AlignedArray<T, VECTOR>;

extern "C" __global__ void __launch_bounds__(BLOCK) average_pixels(const T* __restrict__ x, T* __restrict__ y) {
    __shared__ float of_warps[WARPS][CHANNELS];
    const long long image = blockIdx.x / CHUNK_BLOCKS;
    const int first_chunk = blockIdx.x % CHUNK_BLOCKS * CHUNK_THREADS, chunk = first_chunk + threadIdx.x;
    const T* column = x + image * PIXELS * C + chunk * VECTOR;
    float sums[VECTOR] = {};
    for (int first = threadIdx.y; first < PIXELS && chunk < CHUNKS; first += BLOCK_PIXELS * THREAD_PIXELS) {
        Chunk loaded[THREAD_PIXELS];
#pragma unroll
        for (int i = 0; i < THREAD_PIXELS; ++i) {
            const int pixel = first + i * BLOCK_PIXELS;
            if (pixel < PIXELS) loaded[i] = *reinterpret_cast<const Chunk*>(column + pixel * C);
        }
#pragma unroll
        for (int i = 0; i < THREAD_PIXELS; ++i) {
            if (first + i * BLOCK_PIXELS >= PIXELS) break;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) sums[j] += to_float(loaded[i].at[j]);
        }
    }

    const int thread = threadIdx.y * CHUNK_THREADS + threadIdx.x;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
#pragma unroll
        for (int lanes = 16; lanes >= CHUNK_THREADS; lanes /= 2) sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], lanes);
        if (thread % 32 < CHUNK_THREADS) of_warps[thread / 32][threadIdx.x * VECTOR + j] = sums[j];
    }
    __syncthreads();
    const int channel = first_chunk * VECTOR + thread;
    if (thread >= CHANNELS || channel >= C) return;
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) sum += of_warps[warp][thread];
    y[image * C + channel] = from_float<T>(sum / PIXELS);
}
