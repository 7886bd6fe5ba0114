// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// mma_strip precision=tf32 columns=6 map_tiles=1 block_k=1 bands=1 images=1 rounds=1 cuts=1 stages=2 filters=shared store=bulk min_blocks=2

// Convolution as matrix products of 16 output pixels by 8 output maps, 8 pairs deep, on tensor cores. A pair is
// a channel and a filter row.
//
//   x         [N, C, H, W]  input
//   packed_w  filters as the lanes of a warp take them: [block of maps][cut][step][s][map tile][lane][2]
//   bias      [K]           not read without WITH_BIAS
//   y         [N, K, P, Q]  output
//   n         images N, any number
//
// A lane keeps strips of input: COLUMNS + S - 1 neighbours of a row (at stride 1), for two pairs and two strips of output
// columns. Output column j under tap s then needs register j + s: the registers are the fragments of all S taps.
// A block takes IMAGES images, or a band of rows of one, at a time, and goes on to the next such unit gridDim.x units away.
// CHANNELS channels are staged at once, asynchronously.
// Outputs are staged too, and leave as runs of rows, one for each map.
//
//   grid  x: units that run at once;  y: block of maps
//   warp  tile of 16 strips, then group of MAP_TILES tiles of 8 maps
//   lane  strips lane / 4 and lane / 4 + 8;  pairs lane % 4 and lane % 4 + 4;  of each tile maps 2 (lane % 4) and the next

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

// Asynchronous copies, as instructions on the GPU and as plain copies on the CPU.
//
// copy_async: BYTES (4, 8, 16) from global to shared memory; where `inside` is false nothing is read and zeros come.
// A thread's copies since its last commit are a group; copy_async_wait<N> waits until at most N groups are under way.
// bulk_store (sm_90): contiguous bytes from shared to global memory, by one thread; bytes and both addresses are
// multiples of 16. What threads wrote must be made visible to it: fence_bulk in each of them, a barrier, bulk_store.

#ifdef __CUDACC__
template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool inside = true) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const int read = inside ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(read) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(BYTES), "r"(read)
                     : "memory");
    }
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

// Matrix products of a warp, as instructions on the GPU and as plain C++ on the CPU.
//
// mma_m16n8k8_tf32: d = a * b + c by all 32 lanes of a warp; of a and b the last 13 bits are ignored, so round with to_tf32.
// Lane 4 g + t holds a (16 x 8) at (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4), b (8 x 8) at (t, g), (t + 4, g), and c
// and d (16 x 8) at (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1). Of m16n8k4 it is the first half of a and b.
// The 16-bit products have two neighbouring columns of a, or rows of b, in one word and are twice as deep for as many words.

#ifdef __CUDACC__
// To the nearest number of 10 fraction bits, ties away from zero.
__device__ __forceinline__ float to_tf32(float value) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return __uint_as_float(rounded);
}

__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2],
                                                 const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
          "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k4_tf32(float (&d)[4], const float (&a)[2], float b, const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(b)), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
}
__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                                 const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k8_f16(float (&d)[4], const unsigned (&a)[2], unsigned b, const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %8, %9, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                                  const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k8_bf16(float (&d)[4], const unsigned (&a)[2], unsigned b, const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %8, %9, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
#else
#include <autotune_host_ptx.h>
#endif

using T = float;  // x, w, bias and y in memory
using Bits = float;  // of an element of x or w
using Word = float;  // of staged input, and of filters
// Problem
constexpr int C = 6, H = 23, W = 21;
constexpr int K = 7, R = 3, S = 5;
constexpr int P = 12, Q = 11;
constexpr int STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_H = 1, PAD_W = 2;
constexpr int DILATION_H = 1, DILATION_W = 1;
constexpr bool WITH_BIAS = true, WITH_RELU = true;

// Parameters
constexpr int COLUMNS = 6;  // of a strip
constexpr int MAP_TILES = 1, GROUPS_K = 1;
constexpr int BANDS = 1, IMAGES = 1;
constexpr int ROUNDS = 1;  // tiles of strips a warp computes one after the other
constexpr int CUTS = 1, STAGES = 2;
constexpr int MIN_BLOCKS = 2;  // blocks resident on a multiprocessor

// Derived
constexpr int THREADS = 64, WARPS_P = 2;
constexpr int BAND_P = 12;
constexpr int STRIPS_Q = 2;  // of a row
constexpr int STRIPS = IMAGES * BAND_P * STRIPS_Q, STRIP_TILES = (STRIPS + 15) / 16;
constexpr int BLOCK_TILES = MAP_TILES * GROUPS_K;
constexpr int CHANNELS = 6;  // staged at once
constexpr int WORD_CHANNELS = 1, PLANES = CHANNELS / WORD_CHANNELS;
constexpr int PAIRS = PLANES * R;
constexpr int STEPS = 3;
constexpr bool LAST_IS_HALF = true;  // four pairs or fewer
constexpr int WINDOW_H = 25, WINDOW_W = 25;  // input of a band, padding too
constexpr int PITCH = 25;  // words of a staged row: odd, so that neighbouring rows begin in different banks
constexpr int PLANE = 656;  // words of a staged plane: 16 banks on, so that the next one's rows begin elsewhere
constexpr int INPUT_WORDS = 3936;  // staged at once
constexpr int STRIP_INPUTS = (COLUMNS - 1) * STRIDE_W + (S - 1) * DILATION_W + 1;
constexpr int BLOCK_MAPS = 7;
constexpr int RUN = BAND_P * Q, RUN_PITCH = 140;  // elements of a map's staged outputs
using Filters = Neighbours<Word, 2>;  // a lane's, for one product
constexpr int PARTS = 1;  // of a filter: rounded to the nearest TF32
constexpr int STEP_FILTERS = S * BLOCK_TILES * PARTS * 32;
constexpr int BLOCK_FILTERS = CUTS * STEPS * STEP_FILTERS;
extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Word* __restrict__ packed_w) {
    constexpr int PACKED = 1 * CUTS * STEPS * STEP_FILTERS * 2;
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= PACKED) return;
    const int lane = i / 2 % 32, tile = i / (64 * PARTS) % BLOCK_TILES, s = i / (64 * PARTS * BLOCK_TILES) % S;
    const int step = i / (2 * STEP_FILTERS);
    const int pair = step % STEPS * 8 + lane % 4 + i % 2 * 4;
    const int channel = step / STEPS % CUTS * CHANNELS + pair / R * WORD_CHANNELS;
    const int map = (step / (STEPS * CUTS) * BLOCK_TILES + tile) * 8 + lane / 4;
    const bool padding = pair >= PAIRS || channel >= C || map >= K;
    const int at = ((map * C + channel) * R + pair % R) * S + s;
    packed_w[i] = padding ? 0.0f : to_tf32(w[at]);
}

// What a thread copies: every ROW_STEP-th row of COPY_COLUMNS columns, THREADS apart.
constexpr int COPY_COLUMNS = (WINDOW_W + THREADS - 1) / THREADS;
constexpr int ROW_STEP = COPY_COLUMNS > 1 ? 1 : THREADS / WINDOW_W;

// Starts copying the input of a cut of the channels of a unit's images.
__device__ __forceinline__ void copy_inputs(Word* staged, const Bits* __restrict__ x, int unit, int cut, int n) {
    const int thread = static_cast<int>(threadIdx.x);
    const int first = unit / BANDS * IMAGES;
    const int first_row = COPY_COLUMNS > 1 ? 0 : thread / WINDOW_W;
    if (first_row >= ROW_STEP) return;
    const int row = min(unit % BANDS * BAND_P, P - BAND_P) * STRIDE_H - PAD_H + first_row;
#pragma unroll
    for (int j = 0; j < COPY_COLUMNS; ++j) {
        const int window_column = COPY_COLUMNS > 1 ? thread + j * THREADS : thread % WINDOW_W;
        if (COPY_COLUMNS > 1 && window_column >= WINDOW_W) continue;
        const int column = window_column - PAD_W;
        const bool in_row = PAD_W == 0 || static_cast<unsigned>(column) < static_cast<unsigned>(W);
        Word* to = staged + first_row * PITCH + window_column;
        const Bits* from = x + (static_cast<long long>(first) * C + cut * CHANNELS) * (H * W) + row * W + column;
#pragma unroll 1
        for (int i = 0; i < IMAGES * PLANES; ++i) {
            const int image = i / PLANES;
            bool there = in_row && (IMAGES == 1 || first + image < n);
            if constexpr (C % CHANNELS > 0) there = there && cut * CHANNELS + i % PLANES * WORD_CHANNELS < C;
            const auto copy_row = [&](int step) {
                const bool copied = there && (PAD_H == 0 || static_cast<unsigned>(row + step) < static_cast<unsigned>(H));
                copy_async<4>(to + step * PITCH, from + step * W, copied);
            };
#pragma unroll 16
            for (int step = 0; step <= WINDOW_H - ROW_STEP; step += ROW_STEP) copy_row(step);
            constexpr int REST = WINDOW_H % ROW_STEP;
            if (first_row < REST) copy_row(WINDOW_H - REST);
            to += PLANE;
            from += WORD_CHANNELS * (H * W);
            if constexpr (IMAGES > 1 && C != CHANNELS) {
                if ((i + 1) % PLANES == 0) from += (C - CHANNELS) * (H * W);
            }
        }
    }
}

// Where a pair's rows begin in the staged input. Pairs that pad the last step meet filters that are zero.
__device__ __forceinline__ int pair_at(int pair) {
    const int there = PAIRS % 8 == 0 || pair < PAIRS ? pair : 0;
    return there / R * PLANE + there % R * (DILATION_H * PITCH);
}

using Sums = float[COLUMNS][MAP_TILES][4];

// d = pixels * filters + c, DEPTH pairs deep, 8 or 4.
template <int DEPTH>
__device__ __forceinline__ void multiply(float (&d)[4], const Word (&pixels)[DEPTH / 2], const Filters& filters,
                                         const float (&c)[4]) {
    if constexpr (DEPTH == 8) {
        mma_m16n8k8_tf32(d, pixels, filters.at, c);
    } else {
        mma_m16n8k4_tf32(d, pixels, filters.at[0], c);
    }
}

// sums += the products of one step, DEPTH pairs from `first` on: `rows` are where this lane's two strips begin, `filters` its
// first fragment.
template <int DEPTH>
__device__ __forceinline__ void add_step(Sums& sums, const Word* const (&rows)[2], int first,
                                         const Filters* __restrict__ filters) {
    constexpr int FRAGMENT = DEPTH / 2;  // inputs of a lane for one product
    const int pair = first + static_cast<int>(threadIdx.x) % 4;
    Word inputs[FRAGMENT][STRIP_INPUTS];
#pragma unroll
    for (int l = 0; l < FRAGMENT; ++l) {
        const Word* const row = rows[l % 2] + pair_at(pair + l / 2 * 4);
#pragma unroll
        for (int i = 0; i < STRIP_INPUTS; ++i) {
            inputs[l][i] = to_tf32(row[i]);
        }
    }
#pragma unroll
    for (int s = 0; s < S; ++s) {
        Filters filter[MAP_TILES];
#pragma unroll
        for (int tile = 0; tile < MAP_TILES; ++tile) filter[tile] = filters[(s * BLOCK_TILES + tile) * 32];
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            const int at = j * STRIDE_W + s * DILATION_W;
            Word pixels[FRAGMENT];
#pragma unroll
            for (int l = 0; l < FRAGMENT; ++l) pixels[l] = inputs[l][at];
#pragma unroll
            for (int tile = 0; tile < MAP_TILES; ++tile) {
                multiply<DEPTH>(sums[j][tile], pixels, filter[tile], sums[j][tile]);
            }
        }
    }
}

// Elements between an address and the 16-byte boundary before it. A staged run lies like its place in y.
__device__ __forceinline__ int behind_vector(const T* at) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(at) % 16 / sizeof(T));
}

// Where a strip of a unit lies: rows neighbour each other first, so that lanes read neighbouring rows.
struct Strip {
    int image, row, column;

    __device__ __forceinline__ explicit Strip(int strip)
        : image(strip / (BAND_P * STRIPS_Q)),
          row(strip % BAND_P),
          column(min(strip / BAND_P % STRIPS_Q * COLUMNS, Q - COLUMNS)) {}

    __device__ __forceinline__ int input() const {
        return image * (PLANES * PLANE) + row * (STRIDE_H * PITCH) + column * STRIDE_W;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_mma(const Bits* __restrict__ x, const Filters* __restrict__ packed_w, const T* __restrict__ bias,
           T* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    Word* const staged = reinterpret_cast<Word*>(smem);  // [stage][image][plane][row][column]
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    const int group = thread / 32 / WARPS_P, warp_p = thread / 32 % WARPS_P;
    packed_w += static_cast<int>(blockIdx.y) * BLOCK_FILTERS;
    Filters* const block_filters = reinterpret_cast<Filters*>(staged + STAGES * INPUT_WORDS);
    for (int i = thread; i < BLOCK_FILTERS; i += THREADS) block_filters[i] = packed_w[i];
    const Filters* const filters = block_filters + group * (MAP_TILES * PARTS * 32) + lane;
    T* const staged_outputs =  // [image][map][row][column]
        reinterpret_cast<T*>(block_filters + BLOCK_FILTERS);
    const int block_map = static_cast<int>(blockIdx.y) * (8 * BLOCK_TILES);

    const int units = (n + IMAGES - 1) / IMAGES * BANDS;
    const int step = static_cast<int>(gridDim.x);

    int copied_unit = static_cast<int>(blockIdx.x), copied_cut = 0;
    const auto copy_next = [&](int stage) {
        if (copied_unit < units) {
            copy_inputs(staged + stage * INPUT_WORDS, x, copied_unit, copied_cut, n);
            if (++copied_cut == CUTS) {
                copied_cut = 0;
                copied_unit += step;
            }
        }
        copy_async_commit();
    };
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) copy_next(stage);

    int stage = 0;
    for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += step) {
        const int first = unit / BANDS * IMAGES;  // image
        const int images = IMAGES == 1 ? 1 : min(IMAGES, n - first);
        const int first_row = min(unit % BANDS * BAND_P, P - BAND_P);
        T* const unit_outputs = y + (static_cast<long long>(first) * K + block_map) * (P * Q) + first_row * Q;
#pragma unroll 1
        for (int round = 0; round < ROUNDS; ++round) {
            const int strip_tile = round * WARPS_P + warp_p;
            const bool computes = STRIP_TILES == ROUNDS * WARPS_P || strip_tile < STRIP_TILES;
            const int strip = strip_tile * 16 + lane / 4;
            const Strip strips[2] = {Strip(min(strip, STRIPS - 1)), Strip(min(strip + 8, STRIPS - 1))};
            Sums sums;
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
                for (int tile = 0; tile < MAP_TILES; ++tile) {
#pragma unroll
                    for (int l = 0; l < 4; ++l) sums[j][tile][l] = 0.0f;
                }
            }
#pragma unroll 1
            for (int cut = 0; cut < CUTS; ++cut) {
                if (round == 0) {
                    if constexpr (STAGES == 1) {
                        __syncthreads();
                        copy_next(0);
                        copy_async_wait<0>();
                        __syncthreads();
                    } else {
                        copy_async_wait<STAGES - 2>();
                        __syncthreads();
                        copy_next(stage == 0 ? STAGES - 1 : stage - 1);
                    }
                }
                if (computes) {
                    const Word* const inputs = staged + stage * INPUT_WORDS;
                    const Word* const rows[2] = {inputs + strips[0].input(), inputs + strips[1].input()};
                    const Filters* step_filters = filters + cut * (STEPS * STEP_FILTERS);
#pragma unroll 1
                    for (int i = 0; i < STEPS - LAST_IS_HALF; ++i) {
                        add_step<8>(sums, rows, i * 8, step_filters);
                        step_filters += STEP_FILTERS;
                    }
                    if constexpr (LAST_IS_HALF) add_step<4>(sums, rows, (STEPS - 1) * 8, step_filters);
                }
                if (round == ROUNDS - 1) stage = stage + 1 == STAGES ? 0 : stage + 1;
            }
            if (round == 0) {  // the last unit's outputs have been read
                bulk_store_wait_read<0>();
                __syncthreads();
            }
            if (computes) {
#pragma unroll
                for (int tile = 0; tile < MAP_TILES; ++tile) {
#pragma unroll
                    for (int l = 0; l < 4; ++l) {
                        const Strip& at = strips[l / 2];
                        const int map = (group * MAP_TILES + tile) * 8 + lane % 4 * 2 + l % 2;
                        if (block_map + map >= K) continue;
                        T* const run = unit_outputs + (at.image * K + map) * (P * Q);
                        T* const output = staged_outputs + (at.image * BLOCK_MAPS + map) * RUN_PITCH +
                                              behind_vector(run) + at.row * Q + at.column;
#pragma unroll
                        for (int j = 0; j < COLUMNS; ++j) {
                            const float sum = epilogue<WITH_BIAS, WITH_RELU>(sums[j][tile][l], bias, block_map + map);
                            output[j] = from_float<T>(sum);
                        }
                    }
                }
            }
        }
        // A run of rows for each map: what is left of its first 16 bytes, whole ones, what is left of its last.
        fence_bulk();
        __syncthreads();
        const int maps = min(BLOCK_MAPS, K - block_map);
        for (int i = thread; i < images * maps; i += THREADS) {
            T* __restrict__ run = unit_outputs + (i / maps * K + i % maps) * (P * Q);
            const T* const from = staged_outputs + (i / maps * BLOCK_MAPS + i % maps) * RUN_PITCH + behind_vector(run);
            constexpr int VECTOR = 16 / sizeof(T);
            const int head = min((VECTOR - behind_vector(run)) % VECTOR, RUN), vectors = (RUN - head) / VECTOR;
            const int rest = head + vectors * VECTOR;
            for (int j = 0; j < head; ++j) run[j] = from[j];
            if (vectors > 0) bulk_store(run + head, from + head, 16 * vectors);
            for (int j = rest; j < RUN; ++j) run[j] = from[j];
        }
        bulk_store_commit();
    }
    bulk_store_wait_read<0>();
}
