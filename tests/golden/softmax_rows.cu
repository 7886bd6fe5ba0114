// softmax rows 3 columns 100 f32
// softmax_rows row_threads=128 block_rows=1 vector=1 keep=nothing min_blocks=1

// Softmax of rows, y[i] = exp(x[i] - max) / sum(exp(x[i] - max)).
//
//   x     [rows, COLUMNS]  input
//   y     [rows, COLUMNS]  output
//   rows  any number
//
//   grid  x: block of BLOCK_ROWS rows
//   block x: thread of a row, which takes every ROW_THREADS-th chunk of VECTOR elements;  y: row of the block

#include "_dtype_f32.cuh"

// Problem
constexpr int COLUMNS = 100;

// Parameters
constexpr int ROW_THREADS = 128;  // of a row
constexpr int BLOCK_ROWS = 1;    // rows of a block
constexpr int VECTOR = 1;            // elements of an access
constexpr bool KEEP_INPUTS = false;  // in registers
constexpr bool KEEP_EXPONENTIALS = false;
constexpr bool KEEP_IN_SHARED = false;

// Derived
constexpr int CHUNKS = COLUMNS / VECTOR;
constexpr int PASSES = 1;  // chunks of a thread
constexpr int WARPS = ROW_THREADS / 32;
using Chunk = AlignedArray<T, VECTOR>;

struct Larger {
    __device__ float operator()(float one, float other) const { return fmaxf(one, other); }
};

struct Sum {
    __device__ float operator()(float one, float other) const { return one + other; }
};

// What the threads of a row have, combined: by the lanes of each warp, then by the warps through shared memory.
template <class Combine>
__device__ __forceinline__ float combined(float value, float (&of_warps)[BLOCK_ROWS][WARPS], Combine combine) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
    if constexpr (WARPS > 1) {
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.y][threadIdx.x / 32] = value;
        __syncthreads();
        value = of_warps[threadIdx.y][0];
#pragma unroll
        for (int warp = 1; warp < WARPS; ++warp) value = combine(value, of_warps[threadIdx.y][warp]);
    }
    return value;
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS * BLOCK_ROWS, 1)
softmax_rows(const T* __restrict__ x, T* __restrict__ y, int rows) {
    __shared__ float largest_of[BLOCK_ROWS][WARPS], sum_of[BLOCK_ROWS][WARPS];
    const long long row = static_cast<long long>(blockIdx.x) * BLOCK_ROWS + threadIdx.y;
    const bool inside = row < rows;  // threads of no row go on, for the barriers' sake
    const Chunk* from = reinterpret_cast<const Chunk*>(x + (inside ? row : 0) * COLUMNS);
    Chunk* to = reinterpret_cast<Chunk*>(y + (inside ? row : 0) * COLUMNS);

    // Of shared memory a thread reads what it wrote itself.
    extern __shared__ __align__(16) unsigned char smem[];
    Chunk* const shared = reinterpret_cast<Chunk*>(smem) + static_cast<int>(threadIdx.y) * CHUNKS;
    Chunk kept[KEEP_INPUTS ? PASSES : 1];
    const auto chunk_of = [&](int pass, int chunk) {
        if constexpr (KEEP_INPUTS) return kept[pass];
        if constexpr (KEEP_IN_SHARED) return shared[chunk];
        return from[chunk];
    };
    const auto for_each = [&](const auto& visit) {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int chunk = pass * ROW_THREADS + static_cast<int>(threadIdx.x);
            if (chunk < CHUNKS) visit(pass, chunk);
        }
    };

    if constexpr (KEEP_INPUTS) for_each([&](int pass, int chunk) { kept[pass] = from[chunk]; });
    if constexpr (KEEP_IN_SHARED) for_each([&](int, int chunk) { shared[chunk] = from[chunk]; });
    float largest = -3.402823466e38f;  // the least float
    for_each([&](int pass, int chunk) {
        const Chunk own = chunk_of(pass, chunk);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) largest = fmaxf(largest, to_float(own.at[i]));
    });
    largest = combined(largest, largest_of, Larger());

    // exp(x - largest) as a power of two. What the rounding of the second product costs, all elements have in common.
    constexpr float LOG2_E = 1.44269504f;
    const float scaled = largest * LOG2_E;
    const auto exponential = [&](T element) { return exp2f(fmaf(to_float(element), LOG2_E, -scaled)); };
    float exponentials[KEEP_EXPONENTIALS ? PASSES : 1][VECTOR];
    float sum = 0.0f;
    for_each([&](int pass, int chunk) {
        const Chunk own = chunk_of(pass, chunk);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            const float term = exponential(own.at[i]);
            sum += term;
            if constexpr (KEEP_EXPONENTIALS) exponentials[pass][i] = term;
        }
    });
    sum = combined(sum, sum_of, Sum());

    if (!inside) return;
    const float inverse = 1.0f / sum;
    for_each([&](int pass, int chunk) {
        Chunk result;
        if constexpr (KEEP_EXPONENTIALS) {
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) result.at[i] = from_float<T>(exponentials[pass][i] * inverse);
        } else {
            const Chunk own = chunk_of(pass, chunk);
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) result.at[i] = from_float<T>(exponential(own.at[i]) * inverse);
        }
        to[chunk] = result;
    });
}
