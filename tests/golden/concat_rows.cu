// concat n 35 c0 64 c1 32 c2 32 f16 weight_bias_relu
// concat_rows block=128 thread_rows=1 vector=8

// Concatenation along the channels: y = activation([x0, x1, ...] * weight + bias) of each row.
//
//   x0 ...  [n, C0] ...  inputs
//   weight  [C]          read if AFFINE, as the bias
//   bias    [C]
//   y       [n, C]       output
//   n       any number of rows
//
//   grid  x: block of BLOCK_ROWS * THREAD_ROWS rows;  y: block of chunks
//   block x: chunk of VECTOR channels, which are those of one tensor;  y: row, of BLOCK_ROWS at the same time

#include "_dtype_f16.cuh"
#include "_epilogue.cuh"

// Problem
constexpr int TENSORS = 3;
constexpr int C = 128;
constexpr bool AFFINE = true;

// Parameters
constexpr int THREAD_ROWS = 1, VECTOR = 8;

// Derived
constexpr int CHUNKS = C / VECTOR;
constexpr int CHUNK_THREADS = 16, BLOCK_ROWS = 8;

using Chunk = AlignedArray<T, VECTOR>;

// The weights or biases of a chunk.
__device__ __forceinline__ void load(float (&numbers)[VECTOR], const float* __restrict__ from) {
    constexpr int WIDTH = VECTOR < 4 ? VECTOR : 4;
#pragma unroll
    for (int first = 0; first < VECTOR; first += WIDTH) {
        const auto loaded = *reinterpret_cast<const AlignedArray<float, WIDTH>*>(from + first);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) numbers[first + i] = loaded.at[i];
    }
}

extern "C" __global__ void __launch_bounds__(CHUNK_THREADS * BLOCK_ROWS)
concat_rows(const T* __restrict__ x0, const T* __restrict__ x1, const T* __restrict__ x2, const float* __restrict__ weight,
            const float* __restrict__ bias, T* __restrict__ y, int n) {
    const int chunk = blockIdx.y * CHUNK_THREADS + threadIdx.x, channel = chunk * VECTOR;
    if (chunk >= CHUNKS) return;
    const T* const tensors[TENSORS] = {x0, x1, x2};
    constexpr int CHANNELS[8] = {64, 32, 32, 0, 0, 0, 0, 0};
    const T* x = tensors[0] + channel;
    int channels = CHANNELS[0];
#pragma unroll
    for (int i = 1, begin = CHANNELS[0]; i < TENSORS; begin += CHANNELS[i++]) {
        if (channel >= begin) x = tensors[i] + channel - begin, channels = CHANNELS[i];
    }

    const long long first = static_cast<long long>(blockIdx.x) * BLOCK_ROWS * THREAD_ROWS + threadIdx.y;
    Chunk loaded[THREAD_ROWS];
#pragma unroll
    for (int i = 0; i < THREAD_ROWS; ++i) {
        const long long row = first + i * BLOCK_ROWS;
        if (row < n) loaded[i] = *reinterpret_cast<const Chunk*>(x + row * channels);
    }
    float weights[VECTOR] = {}, biases[VECTOR] = {};
    if constexpr (AFFINE) load(weights, weight + channel), load(biases, bias + channel);
#pragma unroll
    for (int i = 0; i < THREAD_ROWS; ++i) {
        const long long row = first + i * BLOCK_ROWS;
        if (row < n) {
            Chunk result;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                const float value = to_float(loaded[i].at[j]);
                result.at[j] = from_float<T>(AFFINE ? relu(fmaf(value, weights[j], biases[j])) : value);
            }
            reinterpret_cast<Chunk*>(y)[row * CHUNKS + chunk] = result;
        }
    }
}
