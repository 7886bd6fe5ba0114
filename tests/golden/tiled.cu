// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// tiled tiling=output_block tile_q=16 tile_p=16 thread_p=1 thread_k=1 block_k=1 channels_staged=1 filters=global unroll=none images=1 restrict=True arithmetic=f32 thread_n=1 sums=registers

// y[n, k, p, q] = sum over c, r, s of w[k, c, r, s] * x[n, c, h, w]: no matrix product; a tile of x in shared memory serves a tile of y.
//
// Direct convolution of tiles: a block computes TILE_P x TILE_Q outputs of THREAD_K * THREADS_K output channels from a tile of the input
// in shared memory, STAGED_C channels at a time. The block is as large as the output tile, and its threads loop to load the input tile with
// its halo; or as large as the input tile (INPUT_BLOCK), where every thread loads one position, and those beyond the output tile do no
// more; or only the interior of the input tile is staged (INTERIOR), and the halo read from x.
//
//   x     [N, C, H, W]  input
//   w     [K, C, R, S]  filters
//   bias  [K]           read where EPILOGUE has one
//   y     [N, K, P, Q]  output
//   n     images N, any number
//
//   grid  x: (block of images * TILES_P + tile row) * TILES_Q + tile column;  y: block of THREAD_K * THREADS_K output channels
//   block x, y: column and row in the tile;  z: group of THREAD_K output channels

#include "_dtype_f32.cuh"

#include "_arithmetic_f32.cuh"

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
constexpr int TILE_P = 16, TILE_Q = 16;  // output rows and columns a block
constexpr int ROWS = 1;  // a thread's output rows, THREADS_P apart,
constexpr int THREAD_K = 1;  // and its output channels, neighbours
constexpr int THREADS_Q = 16, THREADS_P = 16, THREADS_K = 1;
constexpr int STAGED_C = 1;  // channels in shared memory at a time
constexpr int THREAD_N = 1;  // a thread's images, which share its filters
constexpr int IMAGES = 1;  // steps of THREAD_N images that a block works through; 0: all
constexpr bool BLOCK_CHANNELS = false;  // staged once, those with the numbers of the block's output channels
constexpr bool GLOBAL_SUMS = false;  // products are added up in y
constexpr bool INPUT_BLOCK = false, INTERIOR = false;
constexpr bool SHARED_FILTERS = false;
constexpr bool ROWS_IN_FLOAT = false;  // a filter row is added up in half precision, the rows in single
using Input = const T* __restrict__;
using Output = T* __restrict__;
constexpr int UNROLL_C = 1, UNROLL_R = 1, UNROLL_S = 1;
using Arithmetic = FloatArithmetic;

// Derived
using Scalar = Arithmetic::Scalar;  // an input in shared memory
using Value = Arithmetic::Value;
constexpr int LANES = Arithmetic::LANES;
constexpr int TAPS = C * R * S;
constexpr int TILES_P = 1, TILES_Q = 1;
constexpr int THREADS = THREADS_Q * THREADS_P * THREADS_K;
constexpr int INPUT_H = 33, INPUT_W = 35;  // inputs that a tile of outputs needs
constexpr int STAGED_H = 33, STAGED_W = 35;  // those that are staged: all, or the middle ones
constexpr int SKIPPED_H = (INPUT_H - STAGED_H) / 2, SKIPPED_W = (INPUT_W - STAGED_W) / 2;  // those before them
constexpr int PITCH = 35;  // a row of the tile, padded so that threads of a warp that read different rows read different banks
constexpr int TILE_BYTES = 4624;  // of the input tile, in whole 16 bytes
constexpr bool EXACT = PAD_H == 0 && PAD_W == 0 && P % TILE_P == 0 && Q % TILE_Q == 0;  // a tile has no input outside x
constexpr int STEP_C = BLOCK_CHANNELS ? C : STAGED_C;  // channels between one staging and the next
constexpr bool STAGED_ONCE = STEP_C == C && IMAGES == 1;
constexpr int TILE = STAGED_C * STAGED_H * PITCH;  // an image's
constexpr int PLACES = THREAD_N * ROWS;  // a thread's outputs of an output channel, image by image
constexpr int STAGED_TAPS = STAGED_C * R * S;

// Filters as they lie in w, [output channel][tap], or in shared memory, [tap of the staged channels][output channel of the block].
#include "_filters_global.cuh"
using Filter = T;
constexpr int K_STRIDE = SHARED_FILTERS ? 1 : TAPS, TAP_STRIDE = SHARED_FILTERS ? THREAD_K * THREADS_K : 1;

// The input at (row, column) of a plane, zero in the padding and beyond the image.
__device__ __forceinline__ Scalar input_at(const T* plane, int row, int column) {
    bool inside = true;
    if constexpr (!EXACT) {
        inside = static_cast<unsigned>(row) < static_cast<unsigned>(H) && static_cast<unsigned>(column) < static_cast<unsigned>(W);
    }
    return inside ? Arithmetic::scalar(plane[row * W + column]) : Arithmetic::scalar(0.0f);
}

// The plane in x, from the image's first one on, of plane c of the tiles, whose images follow each other.
__device__ __forceinline__ int plane_of(int c) { return THREAD_N == 1 ? c : c / STAGED_C * C + c % STAGED_C; }

__device__ __forceinline__ void clear(Value (&accumulator)[THREAD_K / LANES][PLACES]) {
#pragma unroll
    for (int m = 0; m < THREAD_K / LANES; ++m) {
#pragma unroll
        for (int i = 0; i < PLACES; ++i) accumulator[m][i] = Arithmetic::zero();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS_Q * THREADS_P * THREADS_K)
conv2d_tiled(Input x, Input w, Input bias, Output y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    Scalar* const tile = reinterpret_cast<Scalar*>(smem);  // [THREAD_N][STAGED_C][STAGED_H][PITCH]
    Scalar* const staged_filters = reinterpret_cast<Scalar*>(smem + TILE_BYTES);  // [STAGED_TAPS][THREAD_K * THREADS_K]

    const int thread_q = static_cast<int>(threadIdx.x), thread_p = static_cast<int>(threadIdx.y), thread_k = static_cast<int>(threadIdx.z);
    const int thread = (thread_k * THREADS_P + thread_p) * THREADS_Q + thread_q;
    const int tile_index = static_cast<int>(blockIdx.x % (TILES_P * TILES_Q));
    const int image_block = static_cast<int>(blockIdx.x / (TILES_P * TILES_Q));
    const int tile_row = tile_index / TILES_Q * TILE_P;
    const int tile_column = tile_index % TILES_Q * TILE_Q;
    const int input_row = tile_row * STRIDE_H - PAD_H;
    const int input_column = tile_column * STRIDE_W - PAD_W;
    const int block_k = static_cast<int>(blockIdx.y) * (THREAD_K * THREADS_K);
    const int k = block_k + thread_k * THREAD_K;
    const int row = tile_row + thread_p;
    const int column = tile_column + thread_q;
    const bool computes = (!INPUT_BLOCK || (thread_p < TILE_P && thread_q < TILE_Q)) && row < P && column < Q && (K % (THREAD_K * THREADS_K) == 0 || k < K);
    const int first_staged = BLOCK_CHANNELS ? block_k : 0;  // of a step's channels
    const Filter* const filters = filters_of(w) + k * TAPS;
    const int first = IMAGES == 0 ? image_block : image_block * (IMAGES * THREAD_N);
    const int last = IMAGES == 0 ? n : IMAGES * THREAD_N == 1 ? first + 1 : min(first + IMAGES * THREAD_N, n);

    for (int image = first; image < last; image += THREAD_N) {
        const int images = THREAD_N == 1 ? 1 : min(THREAD_N, last - image);  // fewer in the last step of all
        T* const output = y + (static_cast<long long>(image) * K + k) * (P * Q) + row * Q + column;
        float sum[THREAD_K][PLACES];                  // with ROWS_IN_FLOAT of filter rows
        Value accumulator[THREAD_K / LANES][PLACES];  // and these of the products of one row
#pragma unroll
        for (int m = 0; m < THREAD_K; ++m) {
#pragma unroll
            for (int i = 0; i < PLACES; ++i) sum[m][i] = 0.0f;
        }
        if constexpr (!ROWS_IN_FLOAT) clear(accumulator);
        if (GLOBAL_SUMS && computes) *output = from_float<T>(0.0f);

#pragma unroll 1
        for (int first_channel = 0; first_channel < C; first_channel += STEP_C) {
            const T* const planes = x + (static_cast<long long>(image) * C + first_channel) * (H * W);
            if constexpr (INPUT_BLOCK) {
                for (int c = thread_k; c < images * STAGED_C; c += THREADS_K) {
                    tile[(c * STAGED_H + thread_p) * PITCH + thread_q] =
                        input_at(planes + plane_of(c) * (H * W), input_row + thread_p, input_column + thread_q);
                }
            } else {
                const int staged_planes = BLOCK_CHANNELS ? min(STAGED_C, C - first_staged) : images * STAGED_C;
                for (int i = thread; i < staged_planes * (STAGED_H * STAGED_W); i += THREADS) {
                    const int c = i / (STAGED_H * STAGED_W);
                    const int staged_row = i / STAGED_W % STAGED_H;
                    const int staged_column = i % STAGED_W;
                    tile[(c * STAGED_H + staged_row) * PITCH + staged_column] =
                        input_at(planes + (first_staged + plane_of(c)) * (H * W), input_row + SKIPPED_H + staged_row, input_column + SKIPPED_W + staged_column);
                }
            }
            if (SHARED_FILTERS && (STAGED_ONCE || STAGED_C < C || image == first)) {
                for (int i = thread; i < STAGED_TAPS * THREAD_K * THREADS_K; i += THREADS) {
                    const int m = i / STAGED_TAPS, tap = i % STAGED_TAPS;
                    const int from = (block_k + m) * TAPS + (STAGED_ONCE ? 0 : first_channel * (R * S)) + tap;
                    staged_filters[tap * TAP_STRIDE + m] = Arithmetic::scalar(w[from]);
                }
            }
            __syncthreads();

            if (computes) {
#pragma unroll UNROLL_C
                for (int c = 0; c < STEP_C; ++c) {
#pragma unroll UNROLL_R
                    for (int r = 0; r < R; ++r) {
                        if constexpr (ROWS_IN_FLOAT) clear(accumulator);
                        const Filter* const row_filters = filters + ((SHARED_FILTERS ? c : first_channel + c) * R + r) * S * TAP_STRIDE;
#pragma unroll UNROLL_S
                        for (int s = 0; s < S; ++s) {
                            Value inputs[PLACES];
#pragma unroll
                            for (int i = 0; i < PLACES; ++i) {
                                const int at_row = (thread_p + i % ROWS * THREADS_P) * STRIDE_H + r * DILATION_H;  // in the input tile
                                const int at_column = thread_q * STRIDE_W + s * DILATION_W;
                                const bool staged_channel = !BLOCK_CHANNELS || static_cast<unsigned>(c - first_staged) < static_cast<unsigned>(STAGED_C);
                                const bool staged = !INTERIOR || (staged_channel &&
                                                                  static_cast<unsigned>(at_row - SKIPPED_H) < static_cast<unsigned>(STAGED_H) &&
                                                                  static_cast<unsigned>(at_column - SKIPPED_W) < static_cast<unsigned>(STAGED_W));
                                inputs[i] = Arithmetic::splat(
                                    staged ? tile[i / ROWS * TILE + ((c - first_staged) * STAGED_H + at_row - SKIPPED_H) * PITCH + at_column - SKIPPED_W]
                                           : input_at(planes + c * (H * W), input_row + at_row, input_column + at_column));
                            }
#pragma unroll
                            for (int m = 0; m < THREAD_K / LANES; ++m) {
                                const Value filter = Arithmetic::filters<K_STRIDE>(row_filters + s * TAP_STRIDE + m * LANES * K_STRIDE);
#pragma unroll
                                for (int i = 0; i < PLACES; ++i) {
                                    if constexpr (GLOBAL_SUMS) {
                                        *output = from_float<T>(fmaf(Arithmetic::lane(filter, 0), Arithmetic::lane(inputs[i], 0), to_float(*output)));
                                    } else {
                                        accumulator[m][i] = Arithmetic::multiply_add(filter, inputs[i], accumulator[m][i]);
                                    }
                                }
                            }
                        }
                        if constexpr (ROWS_IN_FLOAT) {
#pragma unroll
                            for (int m = 0; m < THREAD_K; ++m) {
#pragma unroll
                                for (int i = 0; i < PLACES; ++i) sum[m][i] += Arithmetic::lane(accumulator[m / LANES][i], m % LANES);
                            }
                        }
                    }
                }
            }
            if constexpr (!STAGED_ONCE) __syncthreads();  // the tile has been read and may be overwritten
        }

        if (computes) {
#pragma unroll
            for (int m = 0; m < THREAD_K; ++m) {
#pragma unroll
                for (int i = 0; i < PLACES; ++i) {
                    if (i > 0 && (i / ROWS >= images || row + i % ROWS * THREADS_P >= P)) continue;
                    const float value = GLOBAL_SUMS     ? to_float(*output)
                                        : ROWS_IN_FLOAT ? sum[m][i]
                                                        : Arithmetic::lane(accumulator[m / LANES][i], m % LANES);
                    output[(i / ROWS * K + m) * (P * Q) + i % ROWS * THREADS_P * Q] = from_float<T>(finish<EPILOGUE>(value, bias, k + m));
                }
            }
        }
    }
}
