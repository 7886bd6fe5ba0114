// norm n 5 c 600 f32
// norm_rows row_threads=32 block_rows=1 thread_rows=1 vector=4 keep=registers

// Layer norm or RMS norm: y = activation((x - mean) / sqrt(variance + EPS) * weight + bias) of each row.
//
//   x       [n, C]  input
//   weight  [C]     read if WEIGHT
//   bias    [C]     read if BIAS
//   y       [n, C]  output
//   n       any number of rows
//
//   grid  x: block of BLOCK_ROWS * THREAD_ROWS rows
//   block x: thread of a row, which takes every ROW_THREADS-th chunk of VECTOR elements;  y: row of the block
//
// The variance is the mean of the squared deviations from the mean, in a second step over the registers. Means are those of x - shift,
// where shift is the row's first element: a mean far from zero would be rounded too much.

#include "_dtype_f32.cuh"
#include "_epilogue.cuh"

// Problem
constexpr int C = 600;
constexpr float EPS = 10000000 * 1e-12;
constexpr bool CENTERED = true;  // whether the mean is subtracted
constexpr bool WEIGHT = true, BIAS = true;

// Parameters
constexpr int ROW_THREADS = 32, BLOCK_ROWS = 1, THREAD_ROWS = 1, VECTOR = 4;
constexpr bool KEEP = true;

// Derived
constexpr int CHUNKS = C / VECTOR;
constexpr int STEPS = 5;  // chunks of a thread and row
constexpr int UNROLL = KEEP || STEPS < 4 ? STEPS : 4;
constexpr int LANES = ROW_THREADS < 32 ? ROW_THREADS : 32;  // of a warp, for one row
constexpr int WARPS = ROW_THREADS / LANES;                  // of a row

#include "_norm.cuh"

using Rows = float[THREAD_ROWS];  // a number for each row of the thread

// The sums of a row's threads: first of the lanes of each warp, then of the warps, through shared memory.
__device__ __forceinline__ void sum_rows(Rows& values, Rows (&of_warps)[BLOCK_ROWS][WARPS]) {
#pragma unroll
    for (int i = 0; i < THREAD_ROWS; ++i) {
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) values[i] += __shfl_xor_sync(0xffffffffu, values[i], lanes);
        if (WARPS > 1 && threadIdx.x % 32 == 0) of_warps[threadIdx.y][threadIdx.x / 32][i] = values[i];
    }
    if constexpr (WARPS > 1) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < THREAD_ROWS; ++i) {
            values[i] = 0.0f;
#pragma unroll
            for (int warp = 0; warp < WARPS; ++warp) values[i] += of_warps[threadIdx.y][warp][i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS * BLOCK_ROWS)
norm_rows(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias, T* __restrict__ y, int n) {
    __shared__ Rows sums_of[BLOCK_ROWS][WARPS], squares_of[BLOCK_ROWS][WARPS];
    const long long first = static_cast<long long>(blockIdx.x) * BLOCK_ROWS * THREAD_ROWS + threadIdx.y;
    const auto row_of = [&](int i) { return first + i * BLOCK_ROWS; };

    Chunk kept[THREAD_ROWS][KEEP ? STEPS : 1];
    const auto load = [&](int i, int chunk) { return reinterpret_cast<const Chunk*>(x + row_of(i) * C)[chunk]; };
    // Threads of no row take part in the sums. visit(step, chunk, row of the thread)
    const auto for_each = [&](const auto& visit) {
#pragma unroll UNROLL
        for (int step = 0; step < STEPS; ++step) {
            const int chunk = step * ROW_THREADS + static_cast<int>(threadIdx.x);
            if (chunk < CHUNKS) visit(step, chunk);
        }
    };
    const auto chunk_of = [&](int i, int step, int chunk) {
        if constexpr (KEEP) return kept[i][step];
        return load(i, chunk);
    };
    const auto for_each_row = [&](const auto& visit) {
#pragma unroll
        for (int i = 0; i < THREAD_ROWS; ++i) {
            if (row_of(i) < n) visit(i);
        }
    };

    if constexpr (KEEP) {
        for_each_row([&](int i) { for_each([&](int step, int chunk) { kept[i][step] = load(i, chunk); }); });
    }

    Rows shifts = {}, means = {};
    if constexpr (CENTERED) {
        for_each_row([&](int i) {
            shifts[i] = to_float(x[row_of(i) * C]);
            for_each([&](int step, int chunk) {
                const Chunk own = chunk_of(i, step, chunk);
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) means[i] += to_float(own.at[j]) - shifts[i];
            });
        });
        sum_rows(means, sums_of);
#pragma unroll
        for (int i = 0; i < THREAD_ROWS; ++i) means[i] /= C;
    }

    Rows scales = {};
    for_each_row([&](int i) {
        for_each([&](int step, int chunk) {
            const Chunk own = chunk_of(i, step, chunk);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                const float deviation = to_float(own.at[j]) - shifts[i] - means[i];
                scales[i] = fmaf(deviation, deviation, scales[i]);
            }
        });
    });
    sum_rows(scales, squares_of);
#pragma unroll
    for (int i = 0; i < THREAD_ROWS; ++i) scales[i] = inverse_deviation(scales[i] / C);

    for_each([&](int step, int chunk) {
        const Affine<WEIGHT, BIAS> affine(weight, bias, chunk * VECTOR);
        for_each_row([&](int i) {
            const Chunk own = chunk_of(i, step, chunk);
            Chunk result;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                const float normalised = (to_float(own.at[j]) - shifts[i] - means[i]) * scales[i];
                result.at[j] = from_float<T>(identity(fmaf(normalised, affine.weight[j], affine.bias[j])));
            }
            reinterpret_cast<Chunk*>(y + row_of(i) * C)[chunk] = result;
        });
    });
}
