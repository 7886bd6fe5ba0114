// gemm batch 2 m 40 n 72 k 136 f16 bias_relu
// gemm_tiled block_m=16 block_n=16 thread_m=1 thread_n=1 tile_k=16

// D[m, n] = sum over k of A[m, k] * B[k, n], for each of a batch. A = op(a), B = op(b), tiles in shared memory. FFMA, no tensor cores.
//
// Matrix product, y = activation(op(a) * op(b) + bias), each of a batch for itself.
//
//   a      [batch, M, K], tn: [batch, K, M]  input
//   b      [batch, K, N], nt: [batch, N, K]  input
//   bias   [N]                               read where EPILOGUE has one
//   y      [batch, M, N]                     output
//   batch  any number
//
//   grid  x: (product, tile of rows, tile of columns), the last one fastest
//   block x: every BLOCK_N-th column of the tile;  y: every BLOCK_M-th row

#include "_dtype_f16.cuh"

#include "_epilogue.cuh"

// Problem
constexpr int M = 40, N = 72, K = 136;
constexpr bool A_TRANSPOSED = false, B_TRANSPOSED = false;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int BLOCK_M = 16, BLOCK_N = 16;
constexpr int THREAD_M = 1, THREAD_N = 1;
constexpr int TILE_K = 16;

// Derived
constexpr int THREADS = BLOCK_M * BLOCK_N;
constexpr int TILE_M = BLOCK_M * THREAD_M, TILE_N = BLOCK_N * THREAD_N;
constexpr int TILES_M = 3, TILES_N = 5;

// Loads a tile, TILE_K x EXTENT, of a matrix whose ROWS rows are in memory along k, or else across it; zeros come for what is outside.
template <bool ALONG_K, int EXTENT, int ROWS>
__device__ __forceinline__ void load_tile(float (&tile)[TILE_K][EXTENT + 1], const T* __restrict__ matrix, int first, int first_k) {
    for (int i = static_cast<int>(threadIdx.y * BLOCK_N + threadIdx.x); i < EXTENT * TILE_K; i += THREADS) {
        const int row = ALONG_K ? i / TILE_K : i % EXTENT, k = ALONG_K ? i % TILE_K : i / EXTENT;
        const bool inside = first + row < ROWS && first_k + k < K;
        const int at = ALONG_K ? (first + row) * K + first_k + k : (first_k + k) * ROWS + first + row;
        tile[k][row] = inside ? to_float(matrix[at]) : 0.0f;
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void gemm_tiled(const T* __restrict__ a, const T* __restrict__ b,
                                                                 const T* __restrict__ bias, T* __restrict__ y, int) {
    __shared__ float a_tile[TILE_K][TILE_M + 1], b_tile[TILE_K][TILE_N + 1];
    const int first_n = static_cast<int>(blockIdx.x) % TILES_N * TILE_N;
    const int first_m = static_cast<int>(blockIdx.x) / TILES_N % TILES_M * TILE_M;
    const long long product = blockIdx.x / (TILES_N * TILES_M);
    float sums[THREAD_M][THREAD_N] = {};
#pragma unroll 1
    for (int first_k = 0; first_k < K; first_k += TILE_K) {
        load_tile<!A_TRANSPOSED, TILE_M, M>(a_tile, a + product * M * K, first_m, first_k);
        load_tile<B_TRANSPOSED, TILE_N, N>(b_tile, b + product * N * K, first_n, first_k);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i) {
#pragma unroll
                for (int j = 0; j < THREAD_N; ++j) {
                    sums[i][j] += a_tile[k][threadIdx.y + i * BLOCK_M] * b_tile[k][threadIdx.x + j * BLOCK_N];
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const int row = first_m + static_cast<int>(threadIdx.y) + i * BLOCK_M;
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) {
            const int column = first_n + static_cast<int>(threadIdx.x) + j * BLOCK_N;
            if (row < M && column < N) {
                y[(product * M + row) * N + column] = from_float<T>(finish<EPILOGUE>(sums[i][j], bias, column));
            }
        }
    }
}
