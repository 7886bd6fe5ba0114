// conv2d n2 c8 15x15 k8 3x3 stride 2 pad 1 groups 8 f32 nchw
// depthwise inputs=bulk stores=direct thread_p=4 thread_q=4 planes=4 row_tiles=1 block=64 unroll=window filters=global warps=16

// Depthwise convolution: each output plane is one input plane convolved with one filter. A thread computes ROWS x COLUMNS
// outputs of a plane, each row of its inputs passing by once.
//
//   x     [N, C, H, W]  input
//   w     [K, 1, R, S]  filters; K / C output planes to an input plane
//   bias  [K]           read where EPILOGUE has one
//   y     [N, K, P, Q]  output
//   n     images N, any number
//
// The planes of all images form one row of N * C planes, of which a block takes PLANES, or one of ROW_TILES row tiles of a plane's rows.
// Their inputs and outputs are contiguous.
// Inputs are copied to shared memory as they lie in x, filters to registers meanwhile; what is padding is told by where it lies.
//
//   grid    row tile, then block of PLANES planes
//   thread  column tile, then row tile, output plane

// Elements in memory: conversion to and from float, and groups of N neighbours moved as one access.

__device__ __forceinline__ float to_float(float value) { return value; }

template <typename T>
__device__ __forceinline__ T from_float(float value);

template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}

template <typename T, int N>
struct alignas(N * sizeof(T)) AlignedArray {
    T at[N];
};

// What happens to a finished accumulator before it is stored: the output channel's bias and the residual are added, then
// comes the activation. A NaN stays a NaN.
// Every family stores through it, so that a further epilogue is written here alone. Needs _element.cuh.

enum class Epilogue { none, bias, bias_relu, bias_add, bias_add_relu };

template <Epilogue EPILOGUE>
constexpr bool HAS_BIAS = EPILOGUE != Epilogue::none;

template <Epilogue EPILOGUE>
__device__ __forceinline__ float activate(float value) {
    if constexpr (EPILOGUE == Epilogue::bias_relu || EPILOGUE == Epilogue::bias_add_relu) value = value < 0.0f ? 0.0f : value;
    return value;
}

// With the output channel's bias in a register.
template <Epilogue EPILOGUE>
__device__ __forceinline__ float finish(float accumulator, float bias) {
    if constexpr (HAS_BIAS<EPILOGUE>) accumulator += bias;
    return activate<EPILOGUE>(accumulator);
}

// And a residual, which is added before the activation.
template <Epilogue EPILOGUE>
__device__ __forceinline__ float finish(float accumulator, float bias, float residual) {
    return activate<EPILOGUE>(accumulator + bias + residual);
}

template <Epilogue EPILOGUE, typename T>
__device__ __forceinline__ float finish(float accumulator, const T* __restrict__ bias, int k, float residual) {
    return finish<EPILOGUE>(accumulator, to_float(bias[k]), residual);
}

// With bias[k], which is read only where there is one.
template <Epilogue EPILOGUE, typename T>
__device__ __forceinline__ float finish(float accumulator, const T* __restrict__ bias, int k) {
    if constexpr (HAS_BIAS<EPILOGUE>) accumulator += to_float(bias[k]);
    return activate<EPILOGUE>(accumulator);
}

// Asynchronous copies, as instructions on the GPU and as plain copies on the CPU; a barrier of some warps of a block.
//
// copy_async: BYTES (4, 8, 16) from global to shared memory; where `inside` is false nothing is read and zeros come.
// copy_async_first: the first `read` of BYTES; zeros come for the rest.
// A thread's copies since its last commit are a group; copy_async_wait<N> waits until at most N groups are under way.
// bulk_store (sm_90): contiguous bytes from shared to global memory, by one thread; bytes and both addresses are
// multiples of 16. What threads wrote must be made visible to it: fence_bulk in each of them, a barrier, bulk_store.
// sync_threads: as __syncthreads for THREADS threads, whole warps; `id`, 1 to 15, tells barriers of a block apart.
// arrive_threads counts as well, and does not wait.

#ifdef __CUDACC__

#else
#include <autotune_host_ptx.h>
#endif

// Barriers that are objects, as instructions on the GPU (sm_90) and as plain C++ on the CPU.
//
// Barrier: an object in shared memory that lets threads wait for others, and for copies, without stopping those
// they wait for. One thread calls barrier_init with the arrivals of a phase; barrier_init_fence and __syncthreads then show
// it to all. Phases are numbered from 0; barrier_wait(b, i & 1) returns once phase i is complete, and must be called before
// phase i + 1 is. bulk_load copies contiguous bytes from global to shared memory, as bulk_store aligned; the phase of its
// barrier completes when the bytes that an arrival by barrier_arrive_expect announced are there, too. Threads that have read
// what a later copy overwrites call fence_bulk before they say so: a load that still waits for its turn reads the new bytes.

#ifdef __CUDACC__
struct alignas(8) Barrier {
    unsigned long long state;
};

__device__ __forceinline__ void barrier_init(Barrier* barrier, int arrivals) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive_expect(Barrier* barrier, int bytes) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(Barrier* barrier, int parity) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    unsigned passed;
    do {  // a loop in C++: ptxas needs far more registers around one in PTX
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(passed)
                     : "r"(at), "r"(parity)
                     : "memory");
    } while (!passed);
}

__device__ __forceinline__ void bulk_load(void* shared, const void* global, int bytes, Barrier* barrier) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(global), "r"(bytes), "r"(at)
                 : "memory");
}
#else
#include <autotune_host_ptx.h>
#endif

// Problem
using T = float;  // x, w, bias and y in memory
constexpr int C = 8, H = 15, W = 15;
constexpr int K = 8, R = 3, S = 3;
constexpr int P = 8, Q = 8;
constexpr int STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_H = 1, PAD_W = 1;
constexpr int DILATION_H = 1, DILATION_W = 1;
constexpr auto EPILOGUE = Epilogue::none;

// Parameters
constexpr int ROWS = 4, COLUMNS = 4;  // a thread's outputs
constexpr int PLANES = 4;  // of x, a block
constexpr int ROW_TILES = 1;
constexpr int MIN_BLOCKS = 16;  // blocks that fit a multiprocessor at once: about 16 warps

// Derived
constexpr int THREADS = 32;
constexpr int MULTIPLIER = K / C;  // output planes to an input plane
constexpr int TILE_P = 8;
constexpr int TILES_P = 2, TILES_Q = 2;
constexpr int VECTOR = 4;  // elements of 16 bytes
constexpr int LOAD = 1, STORE = 4;  // elements of one load of inputs, of one store of outputs
constexpr int LEAD = 0;  // elements loaded before the first that a thread needs of a row
constexpr int ROW_LOADS = 9;  // loads of a row

using Inputs = AlignedArray<T, LOAD>;
using Outputs = AlignedArray<T, STORE>;

// Of a row of a plane, the inputs from `column` on, a multiple of LOAD; zeros outside the plane. A load lies inside or outside as a whole.
__device__ __forceinline__ void load_row(float (&inputs)[ROW_LOADS * LOAD], const T* plane, int row, int column) {
    constexpr int FIRST = -PAD_W - LEAD, LAST = (Q - COLUMNS) * STRIDE_W - PAD_W - LEAD;  // columns that tiles begin with
    bool row_inside = true;
    if constexpr (PAD_H > 0) row_inside = static_cast<unsigned>(row) < static_cast<unsigned>(H);
#pragma unroll
    for (int i = 0; i < ROW_LOADS * LOAD; i += LOAD) {
        bool inside = row_inside;
        if (FIRST + i < 0 || LAST + i >= W) inside = inside && static_cast<unsigned>(column + i) < static_cast<unsigned>(W);
        if (inside) {
            const Inputs loaded = *reinterpret_cast<const Inputs*>(plane + (row * W + column + i));
#pragma unroll
            for (int j = 0; j < LOAD; ++j) inputs[i + j] = to_float(loaded.at[j]);
        } else {
#pragma unroll
            for (int j = 0; j < LOAD; ++j) inputs[i + j] = 0.0f;
        }
    }
}

// accumulator += what one filter row adds to an output row.
__device__ __forceinline__ void add_row(float (&accumulator)[COLUMNS], const float (&inputs)[ROW_LOADS * LOAD], const float* filter) {
#pragma unroll
    for (int s = 0; s < S; ++s) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            accumulator[j] = fmaf(filter[s], inputs[LEAD + j * STRIDE_W + s * DILATION_W], accumulator[j]);
        }
    }
}

constexpr int FILTER = R * S;  // taps that a thread has loaded

__device__ __forceinline__ void load_filter(float (&filter)[FILTER], const T* __restrict__ w) {
#pragma unroll
    for (int i = 0; i < FILTER; ++i) filter[i] = to_float(w[i]);
}

// Where a thread's tile of outputs lies.
struct Tile {
    int plane, row, column;  // output plane of the block; first output row in the row tile, first column

    // The last tiles of rows and columns move up to end with the row tile: outputs of two threads are the same.
    __device__ __forceinline__ explicit Tile(int tile)
        : plane(PLANES * MULTIPLIER == 1 ? 0 : tile / (TILES_P * TILES_Q)),
          row(min(tile / TILES_Q % TILES_P * ROWS, TILE_P - ROWS)),
          column(min(tile % TILES_Q * COLUMNS, Q - COLUMNS)) {}
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_depthwise(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    const int thread = static_cast<int>(threadIdx.x);
    const int first_plane = static_cast<int>(blockIdx.x) / ROW_TILES * PLANES;
    const int planes = PLANES == 1 ? 1 : min(PLANES, n * C - first_plane);
    // The last row tile moves up to end with the plane.
    const int tile_row = ROW_TILES == 1 ? 0 : min(static_cast<int>(blockIdx.x) % ROW_TILES * TILE_P, P - TILE_P);
    const int tiles = planes * (MULTIPLIER * TILES_P * TILES_Q);

    // The run of inputs that the block needs: whole planes, or rows of one.
    const long long begin = static_cast<long long>(first_plane) * (H * W);
    const int count = planes * (H * W);
    Barrier* const copied = reinterpret_cast<Barrier*>(smem);
    T* const staged = reinterpret_cast<T*>(smem + 16);
    if (thread == 0) {
        barrier_init(copied, 1);
        barrier_init_fence();
        barrier_arrive_expect(copied, count * static_cast<int>(sizeof(T)));
        if (count > 0) bulk_load(staged, x + begin, count * static_cast<int>(sizeof(T)), copied);
    }
    const T* const block_inputs = staged;

    const long long output_begin = static_cast<long long>(first_plane) * (MULTIPLIER * P * Q) + tile_row * Q;
    T* const block_outputs = y + output_begin;
    constexpr int OUTPUT_PLANE = P * Q;
    const int first_k = first_plane % C * MULTIPLIER;
    const auto k_of = [&](int plane) { return PLANES * MULTIPLIER == 1 ? first_k : (first_k + plane) % K; };

    float filter[FILTER];
    load_filter(filter, w + k_of(min(thread, tiles - 1) / (TILES_P * TILES_Q)) * (R * S));
    __syncthreads();  // the barrier is there
    barrier_wait(copied, 0);
#pragma unroll 1
    for (int i = thread; i < tiles; i += THREADS) {
        const Tile tile(i);
        const int k = k_of(tile.plane);
        const T* const plane = block_inputs + tile.plane / MULTIPLIER * (H * W);
        const int row = (tile_row + tile.row) * STRIDE_H - PAD_H, column = tile.column * STRIDE_W - PAD_W - LEAD;

        float accumulator[ROWS][COLUMNS];
#pragma unroll
        for (int p = 0; p < ROWS; ++p) {
#pragma unroll
            for (int q = 0; q < COLUMNS; ++q) accumulator[p][q] = 0.0f;
        }

#pragma unroll
        for (int h = 0; h < (ROWS - 1) * STRIDE_H + (R - 1) * DILATION_H + 1; ++h) {
            float inputs[ROW_LOADS * LOAD];
            load_row(inputs, plane, row + h, column);
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const int p = (h - r * DILATION_H) / STRIDE_H;  // the output row that filter row r sends it to
                if (h < r * DILATION_H || p >= ROWS || (h - r * DILATION_H) % STRIDE_H) continue;
                add_row(accumulator[p], inputs, filter + r * S);
            }
        }

        T* const output = block_outputs + tile.plane * OUTPUT_PLANE + tile.row * Q + tile.column;
#pragma unroll
        for (int p = 0; p < ROWS; ++p) {
#pragma unroll
            for (int q = 0; q < COLUMNS; q += STORE) {
                Outputs stored;
#pragma unroll
                for (int j = 0; j < STORE; ++j) {
                    stored.at[j] = from_float<T>(finish<EPILOGUE>(accumulator[p][q + j], bias, k));
                }
                *reinterpret_cast<Outputs*>(output + p * Q + q) = stored;
            }
        }
    }
}
