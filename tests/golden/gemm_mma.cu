// gemm batch 2 m 40 n 72 k 136 f16 bias_relu
// gemm_mma warps_m=2 warps_n=2 warp_m=32 warp_n=32 tile_k=32 stages=3

// D[m, n] = sum over k of A[m, k] * B[k, n], for each of a batch. A = op(a), B = op(b), asynchronous copies to shared memory.
// Tile (WARPS_M * WARP_M) x (WARPS_N * WARP_N); tile space batch * ceil(M / that) * ceil(N / that).
//
// Matrix product on tensor cores, y = activation(op(a) * op(b) + bias), each of a batch for itself.
//
//   a      [batch, M, K], tn: [batch, K, M]  input
//   b      [batch, K, N], nt: [batch, N, K]  input
//   bias   [N]                               read where EPILOGUE has one
//   y      [batch, M, N]                     output
//   batch  any number
//
//   grid  x: (product, tile of rows, tile of columns), the last one fastest
//   block WARPS_M x WARPS_N warps, each of which has WARP_M x WARP_N of the tile, in MMAs of 16 x 8

#include "_dtype_f16.cuh"

#include "_epilogue.cuh"

#include "_ptx.cuh"

#include "_ptx_mma.cuh"

#include "_ptx_ldmatrix.cuh"

#include "_ptx_ldmatrix_trans.cuh"

// Problem
constexpr int M = 40, N = 72, K = 136;
constexpr bool A_TRANSPOSED = false, B_TRANSPOSED = true;  // rows in memory are depth
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int WARPS_M = 2, WARPS_N = 2;
constexpr int WARP_M = 32, WARP_N = 32;
constexpr int TILE_K = 32, STAGES = 3;

// Derived
constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr int TILE_M = WARPS_M * WARP_M, TILE_N = WARPS_N * WARP_N;
constexpr int TILES_M = 1, TILES_N = 2, K_TILES = (K + TILE_K - 1) / TILE_K;

// A tile of an operand of ROWS rows in all, TILE_ROWS of them and TILE_K deep, in shared memory as it lies in memory: rows are
// neighbours in depth, or where it is TRANSPOSED those across it.
template <bool TRANSPOSED, int ROWS, int TILE_ROWS, int VECTOR>
struct Operand {
    static constexpr int OUTER = TRANSPOSED ? TILE_K : TILE_ROWS, INNER = TRANSPOSED ? TILE_ROWS : TILE_K;
    static constexpr int PITCH = INNER + 8, ELEMENTS = OUTER * PITCH;

    // Zeros come for what lies outside.
    static __device__ __forceinline__ void load(T* tile, const T* __restrict__ matrix, int row, int k) {
        constexpr int OUTER_SIZE = TRANSPOSED ? K : ROWS, INNER_SIZE = TRANSPOSED ? ROWS : K;
        const int first_outer = TRANSPOSED ? k : row, first_inner = TRANSPOSED ? row : k;
        for (int i = static_cast<int>(threadIdx.x) * VECTOR; i < OUTER * INNER; i += THREADS * VECTOR) {
            const int outer = first_outer + i / INNER, inner = first_inner + i % INNER;
            const bool inside = outer < OUTER_SIZE && inner < INNER_SIZE;
            const T* const from = matrix + (inside ? outer * INNER_SIZE + inner : 0);
            T* const to = tile + i / INNER * PITCH + i % INNER;
            if constexpr (VECTOR > 1) {
                copy_async<VECTOR * sizeof(T)>(to, from, inside);
            } else {
                *to = inside ? *from : from_float<T>(0.0f);
            }
        }
    }

    // Four matrices of 8 x 8 from (row, k) of the tile on. A lane gives the place of row or column j of its matrix, which begins at
    // (row_of_matrix, k_of_matrix).
    static __device__ __forceinline__ void fragments(unsigned (&d)[4], const T* tile, int row, int k, int row_of_matrix, int k_of_matrix, int j) {
        if constexpr (TRANSPOSED) {
            load_matrices_trans(d, tile + (k + k_of_matrix + j) * PITCH + row + row_of_matrix);
        } else {
            load_matrices(d, tile + (row + row_of_matrix + j) * PITCH + k + k_of_matrix);
        }
    }
};

using A = Operand<A_TRANSPOSED, M, TILE_M, 8>;
using B = Operand<B_TRANSPOSED, N, TILE_N, 8>;

extern "C" __global__ __launch_bounds__(THREADS) void gemm_mma(const T* __restrict__ a, const T* __restrict__ b,
                                                               const T* __restrict__ bias, T* __restrict__ y, int) {
    extern __shared__ __align__(16) unsigned char smem[];
    T* const a_tiles = reinterpret_cast<T*>(smem);        // [stage]
    T* const b_tiles = a_tiles + STAGES * A::ELEMENTS;  // [stage]
    const int first_n = static_cast<int>(blockIdx.x) % TILES_N * TILE_N;
    const int first_m = static_cast<int>(blockIdx.x) / TILES_N % TILES_M * TILE_M;
    const long long product = blockIdx.x / (TILES_N * TILES_M);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;
    const auto load = [&](int k_tile) {
        const int stage = k_tile % STAGES;
        if (k_tile < K_TILES) {
            A::load(a_tiles + stage * A::ELEMENTS, a + product * M * K, first_m, k_tile * TILE_K);
            B::load(b_tiles + stage * B::ELEMENTS, b + product * N * K, first_n, k_tile * TILE_K);
        }
        copy_async_commit();
    };
    for (int k_tile = 0; k_tile < STAGES - 1; ++k_tile) load(k_tile);
    float d[WARP_M / 16][WARP_N / 8][4] = {};
#pragma unroll 1
    for (int k_tile = 0; k_tile < K_TILES; ++k_tile) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        load(k_tile + STAGES - 1);
        const T* const a_tile = a_tiles + k_tile % STAGES * A::ELEMENTS;
        const T* const b_tile = b_tiles + k_tile % STAGES * B::ELEMENTS;
        const int matrix = lane / 8, j = lane % 8;
#pragma unroll
        for (int k = 0; k < TILE_K; k += 16) {
            unsigned a_words[WARP_M / 16][4], b_words[WARP_N / 16][4];
#pragma unroll
            for (int i = 0; i < WARP_M / 16; ++i) A::fragments(a_words[i], a_tile, warp_m + 16 * i, k, matrix % 2 * 8, matrix / 2 * 8, j);
#pragma unroll
            for (int i = 0; i < WARP_N / 16; ++i) B::fragments(b_words[i], b_tile, warp_n + 16 * i, k, matrix / 2 * 8, matrix % 2 * 8, j);
#pragma unroll
            for (int i = 0; i < WARP_M / 16; ++i) {
#pragma unroll
                for (int tile = 0; tile < WARP_N / 8; ++tile) {
                    const unsigned pair[2] = {b_words[tile / 2][tile % 2 * 2], b_words[tile / 2][tile % 2 * 2 + 1]};
                    mma_m16n8k16_f16(d[i][tile], a_words[i], pair, d[i][tile]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < WARP_M / 16 * 2; ++i) {
        const int row = first_m + warp_m + i * 8 + lane / 4;
        T* const to = y + (product * M + row) * N;
#pragma unroll
        for (int tile = 0; tile < WARP_N / 8; ++tile) {
            const int column = first_n + warp_n + tile * 8 + lane % 4 * 2;
            if (row >= M || column >= N) continue;
            const float* const sums = d[i / 2][tile] + i % 2 * 2;
            const T first = from_float<T>(finish<EPILOGUE>(sums[0], bias, column));
            if constexpr (N % 2 == 0) {
                *reinterpret_cast<AlignedArray<T, 2>*>(to + column) = {first, from_float<T>(finish<EPILOGUE>(sums[1], bias, column + 1))};
            } else {
                to[column] = first;
                if (column + 1 < N) to[column + 1] = from_float<T>(finish<EPILOGUE>(sums[1], bias, column + 1));
            }
        }
    }
}
