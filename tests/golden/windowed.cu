// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// windowed images=1 block_q=16 block_p=8 thread_q=1 thread_p=1 window_channels=1 channels_staged=window tile_k=1 unroll_k=1 filters=global restrict=True min_blocks=1

// y[n, k, p, q] = sum over c, r, s of w[k, c, r, s] * x[n, c, h, w]: no matrix product; a window of x in registers serves K output channels.
//
// Direct convolution from register windows: a block stages a tile of the input of each of IMAGES images in shared memory;
// a thread copies the window of its THREAD_P x THREAD_Q outputs, WINDOW_C channels deep, to registers.
// A window that holds all channels serves the block's output channels one after the other; else the windows of one block of channels after the
// other add to the accumulators of all the block's output channels.
//
//   x     [N, C, H, W]  input
//   w     [K, C, R, S]  filters
//   bias  [K]           read where EPILOGUE has one
//   y     [N, K, P, Q]  output
//   n     images N, any number
//
//   grid  x: (block of IMAGES images * TILES_P + tile row) * TILES_Q + tile column;  y: block of TILE_K output channels
//   block x, y: column and row of the patch in the tile;  z: image of the block

#include "_element.cuh"

#include "_epilogue.cuh"

// Problem
constexpr int C = 6, H = 23, W = 21;
constexpr int K = 7, R = 3, S = 5;
constexpr int P = 12, Q = 11;
constexpr int STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_H = 1, PAD_W = 2;
constexpr int DILATION_H = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int IMAGES = 1;  // images a block,
constexpr int THREADS_Q = 11, THREADS_P = 6;  // threads an image,
constexpr int THREAD_P = 1, THREAD_Q = 1;  // output rows and columns a thread
constexpr int TILE_K = 1;  // output channels a block
constexpr int WINDOW_C = 1;  // channels of a window
constexpr int STAGED_C = 1;  // channels in shared memory at a time
constexpr int UNROLL_K = 1;
constexpr bool SHARED_FILTERS = false;
using T = float;
using Input = const T* __restrict__;
using Output = T* __restrict__;
constexpr int MIN_BLOCKS = 1;  // blocks that fit a multiprocessor at once

// Derived
constexpr int TAPS = C * R * S;
constexpr int TILES_P = 2, TILES_Q = 1;
constexpr int LOAD_VEC = 2;  // inputs a load from shared memory,
constexpr int STORE_VEC = 1;  // outputs a store
constexpr int WINDOW_H = (THREAD_P - 1) * STRIDE_H + (R - 1) * DILATION_H + 1;
constexpr int WINDOW_W = ((THREAD_Q - 1) * STRIDE_W + (S - 1) * DILATION_W + LOAD_VEC) / LOAD_VEC * LOAD_VEC;  // in whole loads
constexpr int TILE_H = (THREADS_P * THREAD_P - 1) * STRIDE_H + (R - 1) * DILATION_H + 1;
constexpr int TILE_W = (THREADS_Q - 1) * THREAD_Q * STRIDE_W + WINDOW_W;
constexpr int PITCH = 26;  // a row of the tile, padded so that threads of a warp that read different rows read different banks
constexpr int TILE_BYTES = 1360;  // of all images' tiles, in whole 16 bytes

#include "_filters_global.cuh"

using Window = float[WINDOW_C][WINDOW_H][WINDOW_W];
using Patch = float[THREAD_P][THREAD_Q];

// The window of the channels whose tiles start at `tile`; `tile` points to the window's corner in the first of them.
__device__ __forceinline__ void load_window(Window& window, const float* tile) {
#pragma unroll
    for (int c = 0; c < WINDOW_C; ++c) {
#pragma unroll
        for (int i = 0; i < WINDOW_H; ++i) {
#pragma unroll
            for (int j = 0; j < WINDOW_W; j += LOAD_VEC) {
                const auto loaded = *reinterpret_cast<const AlignedArray<float, LOAD_VEC>*>(tile + (c * TILE_H + i) * PITCH + j);
#pragma unroll
                for (int v = 0; v < LOAD_VEC; ++v) window[c][i][j + v] = loaded.at[v];
            }
        }
    }
}

__device__ __forceinline__ void clear(Patch& accumulator) {
#pragma unroll
    for (int i = 0; i < THREAD_P; ++i) {
#pragma unroll
        for (int j = 0; j < THREAD_Q; ++j) accumulator[i][j] = 0.0f;
    }
}

// accumulator += one output channel's filters of the window's channels * the window.
__device__ __forceinline__ void add_window(Patch& accumulator, const Window& window, const float* filters) {
#pragma unroll
    for (int c = 0; c < WINDOW_C; ++c) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int s = 0; s < S; ++s) {
                const float filter = filters[(c * R + r) * S + s];
#pragma unroll
                for (int i = 0; i < THREAD_P; ++i) {
#pragma unroll
                    for (int j = 0; j < THREAD_Q; ++j) {
                        accumulator[i][j] = fmaf(filter, window[c][i * STRIDE_H + r * DILATION_H][j * STRIDE_W + s * DILATION_W], accumulator[i][j]);
                    }
                }
            }
        }
    }
}

// One output channel's patch to the part of `output`, its plane, that lies at (row, column).
__device__ __forceinline__ void store(const Patch& accumulator, float* output, int row, int column, const float* bias, int k) {
#pragma unroll
    for (int i = 0; i < THREAD_P; ++i) {
#pragma unroll
        for (int j = 0; j < THREAD_Q; j += STORE_VEC) {
            if ((P % THREAD_P != 0 && row + i >= P) || (Q % THREAD_Q != 0 && column + j >= Q)) continue;
            AlignedArray<float, STORE_VEC> stored;
#pragma unroll
            for (int v = 0; v < STORE_VEC; ++v) stored.at[v] = finish<EPILOGUE>(accumulator[i][j + v], bias, k);
            *reinterpret_cast<AlignedArray<float, STORE_VEC>*>(output + (row + i) * Q + column + j) = stored;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS_Q * THREADS_P * IMAGES, MIN_BLOCKS)
conv2d_windowed(Input x, Input w, Input bias, Output y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    const int thread_q = static_cast<int>(threadIdx.x), thread_p = static_cast<int>(threadIdx.y);
    const int thread = thread_p * THREADS_Q + thread_q;  // of those of its image
    const int tile_index = static_cast<int>(blockIdx.x % (TILES_P * TILES_Q));
    const int tile_row = tile_index / TILES_Q * (THREADS_P * THREAD_P);
    const int tile_column = tile_index % TILES_Q * (THREADS_Q * THREAD_Q);
    const int row = tile_row + thread_p * THREAD_P;
    const int column = tile_column + thread_q * THREAD_Q;
    const int image = static_cast<int>(blockIdx.x / (TILES_P * TILES_Q)) * IMAGES + static_cast<int>(threadIdx.z);
    const bool exists = IMAGES == 1 || image < n;
    const bool computes = exists && row < P && column < Q;
    const int block_k = static_cast<int>(blockIdx.y) * TILE_K;

    float* const tile = reinterpret_cast<float*>(smem) + threadIdx.z * (STAGED_C * TILE_H * PITCH);  // [STAGED_C][TILE_H][PITCH]
    const float* const corner = tile + thread_p * THREAD_P * STRIDE_H * PITCH + thread_q * THREAD_Q * STRIDE_W;
    float* const staged_filters = reinterpret_cast<float*>(smem + TILE_BYTES);  // [TILE_K][TAPS]
    if constexpr (SHARED_FILTERS) {
        for (int i = static_cast<int>(threadIdx.z) * (THREADS_P * THREADS_Q) + thread; i < TILE_K * TAPS; i += THREADS_P * THREADS_Q * IMAGES) {
            staged_filters[i] = w[block_k * TAPS + i];
        }
    }
    const float* const filters = filters_of(w) + block_k * TAPS;

    // STAGED_C channels of an image's tile, zero in the padding and beyond the image.
    const auto stage = [&](int first_channel) {
        const float* const planes = x + (static_cast<long long>(image) * C + first_channel) * (H * W);
        for (int i = thread; i < STAGED_C * TILE_H * TILE_W; i += THREADS_P * THREADS_Q) {
            const int c = i / (TILE_H * TILE_W);
            const int staged_row = i / TILE_W % TILE_H;
            const int staged_column = i % TILE_W;
            const int input_row = tile_row * STRIDE_H - PAD_H + staged_row;
            const int input_column = tile_column * STRIDE_W - PAD_W + staged_column;
            const bool inside = static_cast<unsigned>(input_row) < static_cast<unsigned>(H) &&
                                static_cast<unsigned>(input_column) < static_cast<unsigned>(W);
            tile[(c * TILE_H + staged_row) * PITCH + staged_column] = inside ? planes[(c * H + input_row) * W + input_column] : 0.0f;
        }
    };

    float* const output = y + (static_cast<long long>(image) * K + block_k) * (P * Q);
    Window window;
    if constexpr (WINDOW_C == C) {
        if (exists) stage(0);
        __syncthreads();
        if (!computes) return;

        load_window(window, corner);
#pragma unroll UNROLL_K
        for (int m = 0; m < TILE_K; ++m) {
            Patch accumulator;
            clear(accumulator);
            add_window(accumulator, window, filters + m * TAPS);
            store(accumulator, output + m * (P * Q), row, column, bias, block_k + m);
        }
    } else {
        Patch accumulator[TILE_K];
#pragma unroll
        for (int m = 0; m < TILE_K; ++m) clear(accumulator[m]);

#pragma unroll 1
        for (int staged = 0; staged < C; staged += STAGED_C) {
            if (staged > 0) __syncthreads();  // every thread has read the tile before this one
            if (exists) stage(staged);
            __syncthreads();
            if (!computes) continue;
#pragma unroll 1
            for (int c = 0; c < STAGED_C; c += WINDOW_C) {
                load_window(window, corner + c * (TILE_H * PITCH));
#pragma unroll
                for (int m = 0; m < TILE_K; ++m) add_window(accumulator[m], window, filters + m * TAPS + (staged + c) * (R * S));
            }
        }
        if (!computes) return;

#pragma unroll
        for (int m = 0; m < TILE_K; ++m) store(accumulator[m], output + m * (P * Q), row, column, bias, block_k + m);
    }
}
