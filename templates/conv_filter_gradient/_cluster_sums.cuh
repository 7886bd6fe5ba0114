#pragma once
#include "_ptx_cluster.cuh"

// The sums of the accumulators of a cluster's blocks, added in the order of the blocks through distributed shared memory. Each block has a
// share of them.

// Blocks with the same rows and columns are STRIDE apart in the cluster. Calls store(row, j, pair) of each pair of neighbours that are the lane's of the block's share: so many rows below the lane's first, in the
// j-th eight columns. By all THREADS consumer threads of the SPLITS blocks; `stages` has room for the
// accumulators of all of them, and no loads of it are under way.
template <int SPLITS, int STRIDE, int THREADS, int BLOCKS, int TILES_OF_8, class Store>
__device__ __forceinline__ void for_each_cluster_sum(const float (&d)[BLOCKS][TILES_OF_8][4], unsigned char* stages, const Store& store) {
    using Sums = AlignedArray<float, 4>;
    const int first = static_cast<int>(blockIdx.x) % STRIDE, rank = static_cast<int>(blockIdx.x) / STRIDE % SPLITS, thread = static_cast<int>(threadIdx.x) - 128;
    Sums* const mine = reinterpret_cast<Sums*>(stages) + thread;  // [i][j][thread]
    sync_threads<THREADS>(1);  // the others have read the stages, too
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
        for (int j = 0; j < TILES_OF_8; ++j) mine[(i * TILES_OF_8 + j) * THREADS] = {d[i][j][0], d[i][j][1], d[i][j][2], d[i][j][3]};
    }
    cluster_sync();
    // Parts of several are under way at once: another block's arrive some hundred cycles later.
    constexpr int ALL = BLOCKS * TILES_OF_8, BATCH = SPLITS < 8 ? 8 / SPLITS : 1;
#pragma unroll 1
    for (int begin = rank; begin < ALL; begin += SPLITS * BATCH) {
        Sums parts[BATCH][SPLITS];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
#pragma unroll
            for (int block = 0; block < SPLITS; ++block) {
                const int at = min(begin + b * SPLITS, ALL - 1);
                parts[b][block] = load_cluster(mine + at * THREADS, first + block * STRIDE);
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int at = begin + b * SPLITS, i = at / TILES_OF_8, j = at % TILES_OF_8;
            float sums[4] = {};
#pragma unroll
            for (int block = 0; block < SPLITS; ++block) {
#pragma unroll
                for (int l = 0; l < 4; ++l) sums[l] += parts[b][block].at[l];
            }
            if (at >= ALL) break;
            store(i * 64, j, AlignedArray<float, 2>{sums[0], sums[1]});
            store(i * 64 + 8, j, AlignedArray<float, 2>{sums[2], sums[3]});
        }
    }
    cluster_sync();  // the others have read this block's accumulators
}
