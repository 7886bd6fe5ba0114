#pragma once
#include "_ptx_cluster.cuh"

// The sums of the accumulators of a cluster's blocks, added in the order of the blocks through distributed shared memory. Each block has a
// share of them.

// Blocks with the same rows and columns are STRIDE apart in the cluster. Calls store(row, j, sums) of the lane's four of each of AT_ONCE
// fragments beside each other (see store_rows) of the block's share: so many rows below the warp's first, from the j-th eight columns on. By all
// THREADS consumer threads of the SPLITS blocks; `stages` has room for the accumulators of one of them, and no loads of it are under way.
template <int SPLITS, int STRIDE, int THREADS, int AT_ONCE, int BLOCKS, int TILES_OF_8, class Store>
__device__ __forceinline__ void for_each_cluster_sum(const float (&d)[BLOCKS][TILES_OF_8][4], unsigned char* stages, const Store& store) {
    const int own = static_cast<int>(blockIdx.x) % STRIDE, rank = static_cast<int>(blockIdx.x) / STRIDE % SPLITS, thread = static_cast<int>(threadIdx.x) - 128;
    Quad* const mine = reinterpret_cast<Quad*>(stages) + thread;  // [i][j][thread]
    sync_threads<THREADS>(1);  // the others have read the stages, too
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
        for (int j = 0; j < TILES_OF_8; ++j) mine[(i * TILES_OF_8 + j) * THREADS] = {d[i][j][0], d[i][j][1], d[i][j][2], d[i][j][3]};
    }
    cluster_sync();
    // Parts of several are under way at once: another block's arrive some hundred cycles later.
    constexpr int BATCH = SPLITS * AT_ONCE <= 8 ? AT_ONCE : SPLITS < 8 ? 8 / SPLITS : 1;
    static_assert(TILES_OF_8 % AT_ONCE == 0 && AT_ONCE % BATCH == 0, "fragments beside each other are stored at once");
#pragma unroll 1
    for (int begin = rank * AT_ONCE; begin < BLOCKS * TILES_OF_8; begin += SPLITS * AT_ONCE) {
        Quad sums[AT_ONCE] = {};
#pragma unroll
        for (int first = 0; first < AT_ONCE; first += BATCH) {
            Quad parts[BATCH][SPLITS];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
#pragma unroll
                for (int block = 0; block < SPLITS; ++block) parts[b][block] = load_cluster(mine + (begin + first + b) * THREADS, own + block * STRIDE);
            }
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
#pragma unroll
                for (int block = 0; block < SPLITS; ++block) {
#pragma unroll
                    for (int l = 0; l < 4; ++l) sums[first + b].at[l] += parts[b][block].at[l];
                }
            }
        }
        store(begin / TILES_OF_8 * 64, begin % TILES_OF_8, sums);
    }
    cluster_sync();  // the others have read this block's accumulators
}
