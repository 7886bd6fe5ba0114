// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// tiled tiling=output_block tile_q=16 tile_p=16 thread_p=1 thread_k=1 block_k=1 channels_staged=1 filters=global unroll=none images=1 restrict=True arithmetic=f32

// Direct convolution of tiles: a block computes TILE_P x TILE_Q outputs of THREAD_K * THREADS_K output channels from a tile of the input
// in shared memory, STAGED_C channels at a time.
// The block is as large as the output tile; its threads loop to load the input tile with its halo.
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
constexpr int IMAGES = 1;  // images a block works through
constexpr int UNROLL_C = 1, UNROLL_R = 1, UNROLL_S = 1;
using Arithmetic = FloatArithmetic;

// Derived
using Scalar = Arithmetic::Scalar;  // an input in shared memory
using Value = Arithmetic::Value;
constexpr int LANES = Arithmetic::LANES;
constexpr int TAPS = C * R * S;
constexpr int TILES_P = 1, TILES_Q = 1;
constexpr int THREADS = THREADS_Q * THREADS_P * THREADS_K;
constexpr int STAGED_H = 33, STAGED_W = 35;  // inputs that a tile of outputs needs
constexpr int PITCH = STAGED_W;  // a row of the tile
constexpr bool EXACT = PAD_H == 0 && PAD_W == 0 && P % TILE_P == 0 && Q % TILE_Q == 0;  // a tile has no input outside x

// Filters as they lie in w, [output channel][tap].
using Filter = T;
constexpr int K_STRIDE = TAPS, TAP_STRIDE = 1;

// The input at (row, column) of a plane, zero in the padding and beyond the image.
__device__ __forceinline__ Scalar input_at(const T* plane, int row, int column) {
    bool inside = true;
    if constexpr (!EXACT) {
        inside = static_cast<unsigned>(row) < static_cast<unsigned>(H) && static_cast<unsigned>(column) < static_cast<unsigned>(W);
    }
    return inside ? Arithmetic::scalar(plane[row * W + column]) : Arithmetic::scalar(0.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS_Q * THREADS_P * THREADS_K)
conv2d_tiled(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    Scalar* const tile = reinterpret_cast<Scalar*>(smem);  // [STAGED_C][STAGED_H][PITCH]

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
    const bool computes = row < P && column < Q;
    const Filter* const filters = w + k * TAPS;
    const int first = image_block, last = image_block + IMAGES;

    for (int image = first; image < last; ++image) {
        Value accumulator[THREAD_K / LANES][ROWS];
#pragma unroll
        for (int m = 0; m < THREAD_K / LANES; ++m) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i) accumulator[m][i] = Arithmetic::zero();
        }

#pragma unroll 1
        for (int first_channel = 0; first_channel < C; first_channel += STAGED_C) {
            const T* const planes = x + (static_cast<long long>(image) * C + first_channel) * (H * W);
            for (int i = thread; i < STAGED_C * STAGED_H * STAGED_W; i += THREADS) {
                const int c = i / (STAGED_H * STAGED_W);
                const int staged_row = i / STAGED_W % STAGED_H;
                const int staged_column = i % STAGED_W;
                tile[(c * STAGED_H + staged_row) * PITCH + staged_column] =
                    input_at(planes + c * (H * W), input_row + staged_row, input_column + staged_column);
            }
            __syncthreads();

            if (computes) {
#pragma unroll UNROLL_C
                for (int c = 0; c < STAGED_C; ++c) {
#pragma unroll UNROLL_R
                    for (int r = 0; r < R; ++r) {
                        const Filter* const row_filters = filters + ((first_channel + c) * R + r) * S;
#pragma unroll UNROLL_S
                        for (int s = 0; s < S; ++s) {
                            Value inputs[ROWS];
#pragma unroll
                            for (int i = 0; i < ROWS; ++i) {
                                const int at_row = (thread_p + i * THREADS_P) * STRIDE_H + r * DILATION_H;  // in the input tile
                                const int at_column = thread_q * STRIDE_W + s * DILATION_W;
                                inputs[i] = Arithmetic::splat(tile[(c * STAGED_H + at_row) * PITCH + at_column]);
                            }
#pragma unroll
                            for (int m = 0; m < THREAD_K / LANES; ++m) {
                                const Value filter = Arithmetic::filters<K_STRIDE>(row_filters + s * TAP_STRIDE + m * LANES * K_STRIDE);
#pragma unroll
                                for (int i = 0; i < ROWS; ++i) {
                                    accumulator[m][i] = Arithmetic::multiply_add(filter, inputs[i], accumulator[m][i]);
                                }
                            }
                        }
                    }
                }
            }
            __syncthreads();  // the tile has been read and may be overwritten
        }

        if (computes) {
            T* const output = y + (static_cast<long long>(image) * K + k) * (P * Q) + row * Q + column;
#pragma unroll
            for (int m = 0; m < THREAD_K; ++m) {
#pragma unroll
                for (int i = 0; i < ROWS; ++i) {
                    if (i > 0 && row + i * THREADS_P >= P) continue;
                    const float value = Arithmetic::lane(accumulator[m / LANES][i], m % LANES);
                    output[m * (P * Q) + i * THREADS_P * Q] = from_float<T>(finish<EPILOGUE>(value, bias, k + m));
                }
            }
        }
    }
}
