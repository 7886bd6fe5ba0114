// conv2d n3 c1 30x30 k12 5x5 f32 nchw
// input_stationary thread_p=3 thread_q=3 warps=4 thread_k=1 staging=4 ahead=0 min_blocks=2 copies=last filters=shared window=registers stores=staged

// Direct convolution of one channel: a thread computes ROWS x COLUMNS outputs of one map after the other. Their inputs stay
// in registers, or in shared memory: then it reads them for each map, a row at a time, and there is room for more warps.
//
//   x     [N, 1, H, W]  input
//   w     [K, 1, R, S]  filters
//   bias  [K]           not read without WITH_BIAS
//   y     [N, K, P, Q]  output
//   n     images N, any number
//
// A tile row is ROWS output rows of an image. Those of all images form one list; a block takes TILE_ROWS of it at a
// time, a unit, and goes on to the unit gridDim.x further on. Outputs of a phase, MAPS maps, are stored by each thread, or staged
// in one of BUFFERS buffers and leave as one copy of contiguous bytes an image and map, so that y is written in order. Nobody waits for all others:
// whoever starts copies learns from a barrier that all warps have staged their part, or have read their inputs.
//
//   thread  column tile, then tile row; then, where copies are started apart, four warps that do that

// Elements in memory: conversion to and from float, and groups of N neighbours moved as one access.

__device__ __forceinline__ float to_float(float value) { return value; }

template <typename T>
__device__ __forceinline__ T from_float(float value);

template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}

template <typename T, int N>
struct alignas(N * sizeof(T)) Neighbours {
    T at[N];
};

// What happens to a finished sum before it is stored: the map's bias, then the rectifier. A NaN stays a NaN.
// Needs _element.cuh.

template <bool WITH_BIAS, bool WITH_RELU, typename T>
__device__ __forceinline__ float epilogue(float sum, const T* __restrict__ bias, int map) {
    if constexpr (WITH_BIAS) sum += to_float(bias[map]);
    if constexpr (WITH_RELU) sum = sum < 0.0f ? 0.0f : sum;
    return sum;
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
template <int BYTES>
__device__ __forceinline__ void copy_async_first(void* shared, const void* global, int read) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(read) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(BYTES), "r"(read)
                     : "memory");
    }
}

template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool inside = true) {
    copy_async_first<BYTES>(shared, global, inside ? BYTES : 0);
}

template <int THREADS>
__device__ __forceinline__ void sync_threads(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

template <int THREADS>
__device__ __forceinline__ void arrive_threads(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int GROUPS>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

__device__ __forceinline__ void fence_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void bulk_store(void* global, const void* shared, int bytes) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until the calling thread's bulk stores, but for the latest GROUPS, have read their shared memory.
template <int GROUPS>
__device__ __forceinline__ void bulk_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(GROUPS) : "memory");
}
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

__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

// An arrival where `arrives`, without a branch.
__device__ __forceinline__ void barrier_arrive_if(Barrier* barrier, bool arrives) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0]; }" ::"r"(at),
                 "r"(static_cast<unsigned>(arrives))
                 : "memory");
}

// An arrival; whether it completed the phase. What the others wrote before they arrived is visible to the last.
__device__ __forceinline__ bool barrier_arrive_last(Barrier* barrier) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    unsigned last;
    asm volatile(
        "{ .reg .b64 before; .reg .u32 awaited; .reg .pred p, passed; mbarrier.arrive.shared::cta.b64 before, [%1]; "
        "mbarrier.pending_count.b64 awaited, before; setp.eq.u32 p, awaited, 1; "
        "@p mbarrier.test_wait.shared::cta.b64 passed, [%1], before; selp.u32 %0, 1, 0, p; }"
        : "=r"(last)
        : "r"(at)
        : "memory");
    return last;
}

__device__ __forceinline__ void barrier_arrive_expect(Barrier* barrier, int bytes) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

// Whether the phase of this parity is complete.
__device__ __forceinline__ bool barrier_passed(Barrier* barrier, int parity) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    unsigned passed;
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(passed)
        : "r"(at), "r"(parity)
        : "memory");
    return passed;
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
constexpr int H = 30, W = 30;
constexpr int K = 12, R = 5, S = 5;
constexpr int P = 26, Q = 26;
constexpr bool WITH_BIAS = false, WITH_RELU = false;

// Parameters
constexpr int ROWS = 3, COLUMNS = 3;  // a thread's outputs of a map
constexpr int WARPS = 4;                           // that compute
constexpr int MAPS = 1;                         // of a phase
constexpr int BUFFERS = 4;                       // of staged outputs
constexpr int SLOTS = 1;                       // buffers of inputs
constexpr int MIN_BLOCKS = 2;                 // blocks resident on a multiprocessor

// Derived
constexpr int THREADS = 128;
constexpr int TILES_P = 9, TILES_Q = 9;
constexpr int TILE_ROWS = 9;            // of a unit
constexpr int MORE_IMAGES = 0;        // that a unit may reach into beside its first
constexpr int SLOT_FLOATS = 932;
constexpr int MAP_FLOATS = 704, BUFFER_FLOATS = MAPS * MAP_FLOATS;
constexpr int FILTER_FLOATS = 28;    // filters of a map, in whole vectors
constexpr int LOAD = 1, STORE = 1;  // floats of one load of inputs, of one store
constexpr int WINDOW_ROWS = 7, ROW_INPUTS = 7;  // that a thread's outputs of a map follow from

using Outputs = Neighbours<float, STORE>;

template <int N>
__device__ __forceinline__ void load(float* to, const float* from) {
    const auto loaded = *reinterpret_cast<const Neighbours<float, N>*>(from);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = loaded.at[i];
}

// Filter i of those packed [map][r][s], in whole vectors.
__device__ __forceinline__ float packed(const float* __restrict__ w, int i) {
    const int tap = i % FILTER_FLOATS;
    return tap < R * S ? w[i / FILTER_FLOATS * (R * S) + tap] : 0.0f;
}

// Rows in front of a tile row of the list, counted over all images: of output, and of input.
__device__ __forceinline__ int output_row(int tile_row) { return tile_row / TILES_P * P + tile_row % TILES_P * ROWS; }
__device__ __forceinline__ int input_row(int tile_row) { return tile_row / TILES_P * H + tile_row % TILES_P * ROWS; }

// Starts copying a unit's inputs, by one thread.
__device__ __forceinline__ void copy_inputs(float* slot, Barrier* filled, const float* __restrict__ x, int unit,
                                            int n) {
    const int first = unit * TILE_ROWS, last = min(first + TILE_ROWS, n * TILES_P) - 1;
    if (first > last) return;
    const int begin = input_row(first), end = last / TILES_P * H + min(last % TILES_P * ROWS, P - ROWS) + ROWS + R - 1;
    barrier_arrive_expect(filled, 4 * W * (end - begin));
    bulk_load(slot, x + static_cast<long long>(begin) * W, 4 * W * (end - begin), filled);
}

// Starts copying out the outputs of a unit's phase that begins with `map`, by one thread. A barrier has shown it what all have
// staged, its fence shows that to the copies: a fence may stand anywhere between the stores and a copy by the same block
// (PTX ISA, causality order).
__device__ __forceinline__ void copy_outputs(float* __restrict__ y, const float* buffer, int unit, int map, int n) {
    fence_bulk();
    const int first = output_row(unit * TILE_ROWS), image = first / P, row = first - image * P;
    const int rows = min(output_row((unit + 1) * TILE_ROWS), n * P) - first;
    float* to = y + (static_cast<long long>(image) * K + map) * (P * Q) + row * Q;
    int copied = 0;
#pragma unroll
    for (int i = 0; i <= MORE_IMAGES; ++i) {  // what lies in each of the images
        const int left = i == 0 ? P - row : P, now = MORE_IMAGES ? min(rows - copied, left) : min(TILE_ROWS * ROWS, P);
        if (MORE_IMAGES == 0 || now > 0) {
#pragma unroll
            for (int m = 0; m < MAPS; ++m) {
                bulk_store(to + m * (P * Q), buffer + m * MAP_FLOATS + copied * Q, now * (4 * Q));
            }
        }
        to += (left + (K - 1) * P) * Q;
        copied += now;
    }
    bulk_store_commit();
}

// A thread's outputs of one map.
__device__ __forceinline__ void compute(float (&sum)[ROWS][COLUMNS], const float (&input)[WINDOW_ROWS][ROW_INPUTS],
                                        const float (&filter)[FILTER_FLOATS]) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int s = 0; s < S; ++s) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    const float value = input[i + r][j + s], factor = filter[r * S + s];
                    sum[i][j] = r == 0 && s == 0 ? factor * value : fmaf(factor, value, sum[i][j]);
                }
            }
        }
    }
}

// Stores them, but for rows and columns that the tile before has.
__device__ __forceinline__ void store(float* output, const float (&sum)[ROWS][COLUMNS], int first_row, int first_column,
                                      const float* __restrict__ bias, int map) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        if (P % ROWS != 0 && i < first_row) continue;
#pragma unroll
        for (int j = 0; j < COLUMNS; j += STORE) {
            if (Q % COLUMNS != 0 && j < first_column) continue;
            Outputs stored;
#pragma unroll
            for (int l = 0; l < STORE; ++l) stored.at[l] = epilogue<WITH_BIAS, WITH_RELU>(sum[i][j + l], bias, map);
            *reinterpret_cast<Outputs*>(output + i * Q + j) = stored;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_input_stationary(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
                        float* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    Barrier* const filled = reinterpret_cast<Barrier*>(smem);  // [slot] its inputs are there
    Barrier* const taken = filled + SLOTS;                     // [slot] all warps have read them
    Barrier* const staged = taken + SLOTS;                     // [buffer] all warps have staged their outputs
    Barrier* const written = staged + BUFFERS;                 // [buffer] they have been copied out
    float* const filters = reinterpret_cast<float*>(written + BUFFERS);  // [map][r][s]
    float* const slots = filters + K * FILTER_FLOATS;                    // [slot][row][column]
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    const int units = (n * TILES_P + TILE_ROWS - 1) / TILE_ROWS, step = static_cast<int>(gridDim.x);
    const auto copy_unit = [&](int unit, int slot) {
        copy_inputs(slots + slot * SLOT_FLOATS, filled + slot, x, unit, n);
    };
    float* const buffers = slots + SLOTS * SLOT_FLOATS;  // [buffer][map][row][column]
    const auto copy_phase = [&](int unit, int phase, int buffer) {
        copy_outputs(y, buffers + buffer * BUFFER_FLOATS, unit, phase * MAPS, n);
    };
    if (thread == 0) {
        for (int i = 0; i < SLOTS; ++i) {
            barrier_init(filled + i, 1);
            barrier_init(taken + i, WARPS);
        }
        for (int i = 0; i < BUFFERS; ++i) {
            barrier_init(staged + i, WARPS);
            barrier_init(written + i, 1);
        }
        barrier_init_fence();
        for (int i = 0; i < SLOTS; ++i) copy_unit(static_cast<int>(blockIdx.x) + i * step, i);
    }
    for (int i = thread; i < K * FILTER_FLOATS; i += THREADS) filters[i] = packed(w, i);
    __syncthreads();

    int slot = 0, slot_parity = 0;
    int buffer = 0, buffer_parity = 0;
    // The last tiles of an image's rows and columns move up to end with it, and begin with outputs of the tile before.
    const int tile_row = thread / TILES_Q;
    const int first_row = P % ROWS == 0 ? 0 : max(tile_row % TILES_P * ROWS - (P - ROWS), 0);
    const int tile_column = thread % TILES_Q * COLUMNS, column = min(tile_column, Q - COLUMNS);
    const int loaded_tile_row = min(tile_row, TILE_ROWS - 1);  // lanes without a tile compute, too
    const int staged_at = (output_row(tile_row) - first_row) * Q + column;

    buffer_parity = 1;  // nobody has to free a buffer before its first use
    int writing = -1;  // the buffer that this lane is copying out
    const auto wait_for_buffer = [&] {
        if constexpr (WARPS == 1) {
            if (lane == 0) bulk_store_wait_read<BUFFERS - 1>();
            __syncwarp();
        } else {
            if (writing >= 0) {
                bulk_store_wait_read<0>();
                barrier_arrive(written + writing);
                writing = -1;
            }
            barrier_wait(written + buffer, buffer_parity);
        }
    };
    const auto free_slot = [&](int unit) {
        fence_bulk();  // the next copy into the slot comes after these loads
        __syncwarp();
        if (lane == 0 && (WARPS == 1 || barrier_arrive_last(taken + slot))) copy_unit(unit + SLOTS * step, slot);
        if (++slot == SLOTS) slot = 0, slot_parity ^= 1;
    };
    for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += step) {
        barrier_wait(filled + slot, slot_parity);
        // The tile row, counted from the image in which the unit begins: it matters where a unit reaches into others.
        const int listed = (MORE_IMAGES ? unit * TILE_ROWS % TILES_P : 0) + loaded_tile_row;
        const int row = input_row(listed) - first_row - (listed - loaded_tile_row) * ROWS;
        const float* const window = slots + slot * SLOT_FLOATS + row * W + column;
        float input[WINDOW_ROWS][ROW_INPUTS];
#pragma unroll
        for (int i = 0; i < WINDOW_ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < ROW_INPUTS; j += LOAD) load<LOAD>(input[i] + j, window + i * W + j);
        }
        free_slot(unit);
        const float* phase_filters = filters;
#pragma unroll 1
        for (int phase = 0; phase < K / MAPS; ++phase) {
            float* const output = buffers + buffer * BUFFER_FLOATS + staged_at;
#pragma unroll
            for (int m = 0; m < MAPS; ++m) {
                float filter[FILTER_FLOATS], sum[ROWS][COLUMNS];
#pragma unroll
                for (int i = 0; i < FILTER_FLOATS; i += 4) load<4>(filter + i, phase_filters + m * FILTER_FLOATS + i);
                compute(sum, input, filter);
                if (m == 0) wait_for_buffer();
                if (32 * WARPS != TILE_ROWS * TILES_Q && tile_row >= TILE_ROWS) continue;
                store(output + m * MAP_FLOATS, sum, first_row, tile_column - column, bias, phase * MAPS + m);
            }
            phase_filters += MAPS * FILTER_FLOATS;
            __syncwarp();
            if (lane == 0 && (WARPS == 1 || barrier_arrive_last(staged + buffer))) {
                copy_phase(unit, phase, buffer);
                writing = buffer;
            }
            if (++buffer == BUFFERS) buffer = 0, buffer_parity ^= 1;
        }
    }
    bulk_store_wait_read<0>();
}
