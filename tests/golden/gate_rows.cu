// gate n 3 pixels 35 c 96 f16
// gate_rows block=256 thread_pixels=1 vector=8

// Product of images and a factor for each image and channel: y = x * gate.
//
//   x     [n, PIXELS, C]  input
//   gate  [n, C]          factors
//   y     [n, PIXELS, C]  output
//
//   grid  x: image and block of BLOCK_PIXELS * THREAD_PIXELS pixels;  y: block of chunks
//   block x: chunk of VECTOR channels;  y: pixel, of BLOCK_PIXELS at the same time

#include "_dtype_f16.cuh"

// Problem
constexpr int C = 96, PIXELS = 35;

// Parameters
constexpr int THREAD_PIXELS = 1, VECTOR = 8;

// Derived
constexpr int CHUNKS = 12, CHUNK_THREADS = 12;
constexpr int BLOCK_PIXELS = 21, PIXEL_BLOCKS = 2;

using Chunk = AlignedArray<T, VECTOR>;

extern "C" __global__ void __launch_bounds__(CHUNK_THREADS * BLOCK_PIXELS)
gate_rows(const T* __restrict__ x, const T* __restrict__ gate, T* __restrict__ y) {
    const int chunk = blockIdx.y * CHUNK_THREADS + threadIdx.x;
    if (chunk >= CHUNKS) return;
    const long long image = blockIdx.x / PIXEL_BLOCKS, begin = image * PIXELS * CHUNKS + chunk;
    const int first = blockIdx.x % PIXEL_BLOCKS * (BLOCK_PIXELS * THREAD_PIXELS) + threadIdx.y;
    const Chunk* from = reinterpret_cast<const Chunk*>(x) + begin;
    Chunk* to = reinterpret_cast<Chunk*>(y) + begin;
    Chunk loaded[THREAD_PIXELS];
#pragma unroll
    for (int i = 0; i < THREAD_PIXELS; ++i) {
        const int pixel = first + i * BLOCK_PIXELS;
        if (pixel < PIXELS) loaded[i] = from[pixel * CHUNKS];
    }
    const Chunk factors = reinterpret_cast<const Chunk*>(gate)[image * CHUNKS + chunk];
#pragma unroll
    for (int i = 0; i < THREAD_PIXELS; ++i) {
        const int pixel = first + i * BLOCK_PIXELS;
        if (pixel >= PIXELS) break;
        Chunk result;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) result.at[j] = from_float<T>(to_float(loaded[i].at[j]) * to_float(factors.at[j]));
        to[pixel * CHUNKS] = result;
    }
}
