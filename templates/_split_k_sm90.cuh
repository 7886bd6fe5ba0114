#pragma once
#include "_mainloop_sm90.cuh"
#include "_epilogue_sm90.cuh"
#include "_ptx_cluster.cuh"

// The blocks of a cluster share the products of a tile: each has a part of the depth, and finishes a share of the columns. Needs _epilogue.cuh
// and _epilogue_tma_*.cuh.

// SPLITS blocks of CONSUMERS consumer warpgroups, COLUMNS times eight columns of a tile; a share's boxes of outputs are of eight columns.
template <typename T, class EPILOGUE, class Boxes, int SPLITS, int CONSUMERS, int COLUMNS>
struct SplitK {
    static constexpr int BOXES = static_cast<int>(sizeof(T)) / 2, BOX_BYTES = 8 * OPERAND_ROW_BYTES, BOX_CHANNELS = 64 / BOXES;
    static_assert(SPLITS <= 8, "a cluster has at most 8 blocks on every GPU that has clusters");
    using Sums = AlignedArray<float, 4>;

    // Adds the blocks' products, in their order, of every SPLITS-th eight columns from the `rank`-th on, and stages them. Partial sums,
    // [consumer][column][thread], take the place of the stages.
    __device__ __forceinline__ static void reduce(float (&d)[1][COLUMNS][4], const float (&biases)[2], unsigned char* stages,
                                                  unsigned char* outputs, [[maybe_unused]] Barrier* residual_full, int rank, int consumer,
                                                  int thread, int warp, int lane) {
        wgmma_wait(d);
        sync_threads<128 * CONSUMERS>(CONSUMERS + 2);  // the others have read the stages, too
        Sums* const mine = reinterpret_cast<Sums*>(stages) + consumer * (COLUMNS * 128) + thread;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) mine[i * 128] = {d[0][i][0], d[0][i][1], d[0][i][2], d[0][i][3]};
        cluster_sync();
        if constexpr (EPILOGUE::HAS_RESIDUAL) barrier_wait(residual_full, 0);
        for (int i = rank, share = 0; i < COLUMNS; i += SPLITS, ++share) {
            float sums[1][4] = {};
#pragma unroll
            for (int other = 0; other < SPLITS; ++other) {
                const Sums part = load_cluster(mine + i * 128, other);
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[0][j] += part.at[j];
            }
            stage_outputs<T, EPILOGUE, 8>(outputs + share * (BOXES * BOX_BYTES), sums, 0, biases, warp % 4, lane);
        }
    }
    // Stores what is staged, by a warpgroup, which then ends.
    __device__ __forceinline__ static void store(const unsigned char* outputs, const TensorMap& map, int rank, int channel, int column, int row,
                                                 int consumer, int thread) {
        fence_bulk();
        sync_threads<128>(1 + consumer);
        if (thread == 0) {
            for (int i = rank, share = 0; i < COLUMNS; i += SPLITS, ++share) {
                for (int box = 0; box < BOXES; ++box) {
                    Boxes::store(map, outputs + (share * BOXES + box) * BOX_BYTES, channel + box * BOX_CHANNELS, column + i * 8, row, 0);
                }
            }
            bulk_store_commit();
        }
        cluster_sync();  // the others have read this block's sums
        if (thread == 0) bulk_store_wait_read<0>();
    }
};
