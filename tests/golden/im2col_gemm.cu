// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// im2col_gemm chunk=all fusion=two_kernels tile=16 unroll_block=256 filters=shared unroll=tile restrict=True thread_c=1 arithmetic=f32

// D[k, npq] = sum over c, r, s of W[k, crs] * U[crs, npq]: M = K output channels, N = P*Q columns of a chunk's images, depth = C*R*S taps.
// A = w [K, C, R, S].  B = U = im2col(x), written to the workspace.  Tile TILE x TILE.
//
// Explicit matrix product: y [output channels x columns] = w [output channels x taps] * unrolled [taps x columns], chunk by chunk.
// A chunk is some images, a column one of their output pixels; a tap is an input channel and a filter position.
// unrolled = im2col(x) lies in the workspace and serves one chunk after the other.
//
//   x         [N, C, H, W]          input
//   w         [K, C, R, S]          filters
//   bias      [K]                   read where EPILOGUE has one
//   y         [N, K, P, Q]          output
//   unrolled  [C * R * S, columns]  one chunk of im2col(x)
//   n         images N, any number
//   i         chunk, from 0
//
//   conv2d_unroll    grid x: block of UNROLL_BLOCK columns;  y: block of THREAD_C input channels;  a thread writes R * S * THREAD_C of a column
//   conv2d_multiply  grid x: tile of columns;  y: tile of output channels;  block x: column of the tile;  y: output channel of the tile
// or, as one kernel, conv2d_unroll_multiply
//   grid  x: tile of columns;  block x: column of the tile;  y: output channel of the tile
//   The threads of row y = 0 write the block's columns of im2col(x), then the block computes all output channels of these columns,
//   so that it multiplies only what it wrote itself.

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
constexpr int TILE = 16;  // output channels, columns and taps a tile
constexpr bool SHARED_FILTERS = true;
[[maybe_unused]] constexpr int UNROLL_BLOCK = 256;  // threads a block of a kernel that writes im2col(x),
[[maybe_unused]] constexpr int THREAD_C = 1;  // and their input channels
using Arithmetic = FloatArithmetic;
using Scalar = Arithmetic::Scalar;  // of a tile
using Input = const T* __restrict__;
using Output = T* __restrict__;
constexpr int UNROLL_TAPS = TILE;  // of a tile, in the product
constexpr int UNROLL_S = S;  // filter columns, in writing im2col(x)

// Derived
constexpr int TAPS = C * R * S;
constexpr int PIXELS = P * Q;  // an image
constexpr int STEPS = (TAPS + TILE - 1) / TILE;

#include "_im2col.cuh"

#include "_filters_shared.cuh"

// The images that one launch takes, and their columns in the product.
struct Chunk {
    int first_image, columns;
};

__device__ __forceinline__ Chunk chunk_at(int i, int n) {
    const int images = n;
    return {i * images, min(images, n - i * images) * PIXELS};
}

// Writes one column of the unrolled matrix: COUNT channels from `first` on.
template <int COUNT>
__device__ __forceinline__ void unroll_column(const T* x, T* unrolled, const Chunk& chunk, int column, int first) {
    const Field field = field_at(column % PIXELS);
    const T* plane = x + (static_cast<long long>(chunk.first_image + column / PIXELS) * C + first) * (H * W);
    T* element = unrolled + static_cast<long long>(first) * (R * S) * chunk.columns + column;
#pragma unroll 1
    for (int c = 0; c < COUNT; ++c) {
#pragma unroll 1
        for (int r = 0; r < R; ++r) {
#pragma unroll UNROLL_S
            for (int s = 0; s < S; ++s) {
                *element = input_at(plane, field, r, s);
                element += chunk.columns;
            }
        }
        plane += H * W;
    }
}

// A thread's output of the product, up to bias and ReLU. The block goes through the taps together, TILE at a time.
__device__ __forceinline__ float gemm(const T* w, const T* unrolled, const Chunk& chunk, int first_k, int column,
                                      Scalar* tiles) {
    const int thread_m = static_cast<int>(threadIdx.y), thread_n = static_cast<int>(threadIdx.x);
    Scalar* const column_tile = tiles;  // [tap][column]
    Scalar* const filter_tile = tiles + TILE * TILE;  // [output channel][tap]
    const int k = first_k + thread_m;
    const T* const filters = w + min(k, K - 1) * TAPS;  // threads beyond the last output channel repeat it

    Scalar accumulator = Arithmetic::zero();
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        const int first_tap = step * TILE;
        const int tap = first_tap + thread_m;
        const bool exists = (TAPS % TILE == 0 || tap < TAPS) && column < chunk.columns;
        column_tile[thread_m * TILE + thread_n] =
            exists ? Arithmetic::scalar(unrolled[static_cast<long long>(tap) * chunk.columns + column]) : Arithmetic::zero();
        if constexpr (SHARED_FILTERS) {
            const int filter_tap = first_tap + thread_n;
            const bool filter_exists = (TAPS % TILE == 0 || filter_tap < TAPS) && (K % TILE == 0 || k < K);
            filter_tile[thread_m * TILE + thread_n] = filter_exists ? Arithmetic::scalar(w[k * TAPS + filter_tap]) : Arithmetic::zero();
        }
        __syncthreads();
#pragma unroll UNROLL_TAPS
        for (int k = 0; k < TILE; ++k) {
            // Beyond the last tap the inputs are zero.
            const int filter_tap = TAPS % TILE == 0 ? first_tap + k : min(first_tap + k, TAPS - 1);
            const Scalar filter = SHARED_FILTERS ? filter_tile[thread_m * TILE + k] : Arithmetic::scalar(filters[filter_tap]);
            accumulator = Arithmetic::multiply_add(filter, column_tile[k * TILE + thread_n], accumulator);
        }
        __syncthreads();
    }
    return Arithmetic::lane(accumulator, 0);
}

__device__ __forceinline__ void store(T* y, const T* bias, const Chunk& chunk, int k, int column, float accumulator) {
    if (k >= K || column >= chunk.columns) return;
    const long long image = chunk.first_image + column / PIXELS;
    y[(image * K + k) * PIXELS + column % PIXELS] = from_float<T>(finish<EPILOGUE>(accumulator, bias, k));
}

#include "_im2col_two_kernels.cuh"
