#pragma once
#include "_sm90.cuh"

// The epilogue of a consumer warpgroup, what CUTLASS's CollectiveEpilogue does: it finishes accumulators, whose rows are output channels, in
// subtiles, stages these in shared memory and stores them by TMA. Needs _epilogue.cuh and _epilogue_tma_*.cuh.

// A lane's biases of BLOCKS times 64 output channels from `channel` on, or each FOLD the same; `warp` is the warp's number.
template <class EPILOGUE, int CHANNELS, int FOLD = 0, int BLOCKS, typename T>
__device__ __forceinline__ void load_biases(float (&biases)[BLOCKS][2], const T* __restrict__ bias, int channel, int warp, int lane) {
    if constexpr (EPILOGUE::HAS_BIAS) {
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; ++i) {
            const int row = i / 2 * 64 + warp % 4 * 16 + i % 2 * 8 + lane / 4, own = channel + (FOLD > 0 ? row % FOLD : row);
            biases[i / 2][i % 2] = own < CHANNELS ? to_float(bias[own]) : 0.0f;
        }
    }
}

// Where outputs begin: a column, or a column of a row of an image, or the like.
struct Place {
    int column, row, image;
};

// Where the box lies that begins `further` columns of a tile on, from the tile's first.
struct ByColumns {
    __device__ __forceinline__ static int columns(int further) { return further; }
    __device__ __forceinline__ static int rows(int) { return 0; }
};

// Boxes of output channels by columns; of columns of a row of an image, or the like.
struct Boxes2d : ByColumns {
    __device__ __forceinline__ static void load(unsigned char* to, const TensorMap& map, Barrier* full, int channel, int column, int, int) {
        tma_load(to, &map, full, channel, column);
    }
    __device__ __forceinline__ static void store(const TensorMap& map, const unsigned char* from, int channel, int column, int, int) {
        tma_store(&map, from, channel, column);
    }
};

struct Boxes4d : ByColumns {
    __device__ __forceinline__ static void store(const TensorMap& map, const unsigned char* from, int channel, int column, int row, int image) {
        tma_store(&map, from, channel, column, row, image);
    }
};

// Of BLOCKS times 64 output channels, SUBTILES times COLUMNS columns each, in STAGES epilogue stages. A subtile is boxes of 128 bytes of
// output channels, or of FOLD of them, which Boxes loads and stores. Where a tile is: its first channel, its first column, and what else Boxes needs.
template <typename T, class EPILOGUE, class Boxes, int BLOCKS, int SUBTILES, int COLUMNS, int STAGES, int RESIDUAL_BYTES = 0, int FOLD = 128 / static_cast<int>(sizeof(T))>
struct CollectiveEpilogue {
    static constexpr int BOX_CHANNELS = FOLD, BOXES = 64 / BOX_CHANNELS, BOX_BYTES = COLUMNS * BOX_CHANNELS * static_cast<int>(sizeof(T));
    static constexpr int STAGE_BYTES = (EPILOGUE::HAS_MASK ? 2 : 1) * BOXES * BOX_BYTES;  // a mask lies behind the outputs
    static_assert(STAGES == 1 || STAGES == 2, "outputs have one or two epilogue stages");
    static_assert(COLUMNS % 8 == 0, "a subtile is a multiple of 8 columns, as an MMA's accumulators are");

    // Stages a subtile, and stores it by the warpgroup's first thread; `staged`: the warp has output channels that exist.
    template <int TILES>
    __device__ __forceinline__ static void store_subtile(const float (&d)[TILES][4], const float (&biases)[2], unsigned char* to, int subtile,
                                                         const TensorMap& map, int channel, int column, int row, int image, int consumer,
                                                         int warp, int lane, bool staged = true) {
        if (staged) stage_outputs<T, EPILOGUE, COLUMNS, BOX_CHANNELS>(to, d, subtile * (COLUMNS / 8), biases, warp % 4, lane);
        fence_bulk();
        sync_threads<128>(1 + consumer);
        if (threadIdx.x % 128 == 0) {
#pragma unroll
            for (int box = 0; box < BOXES; ++box) {
                Boxes::store(map, to + box * BOX_BYTES, channel + box * BOX_CHANNELS, column + Boxes::columns(subtile * COLUMNS),
                             row + Boxes::rows(subtile * COLUMNS), image);
            }
            bulk_store_commit();
        }
    }
    // Stores a tile; goes on with the epilogue stage `stage`.
    template <int TILES>
    __device__ __forceinline__ static void store(const float (&d)[BLOCKS][TILES][4], const float (&biases)[BLOCKS][2], unsigned char* stages,
                                                 int& stage, const TensorMap& map, int channel, int column, int row, int image, int consumer,
                                                 int warp, int lane, bool staged = true) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
            for (int subtile = 0; subtile < SUBTILES; ++subtile) {
                if (threadIdx.x % 128 == 0) bulk_store_wait_read<STAGES - 1>();
                sync_threads<128>(1 + consumer);
                store_subtile(d[i], biases[i], stages + stage * STAGE_BYTES, subtile, map, channel + i * 64, column, row, image, consumer, warp, lane,
                              staged);
                stage ^= STAGES - 1;
            }
        }
    }

    // A residual, of which TMA brings RESIDUAL_BYTES, lies where the outputs will that it is added to; `full` says of a stage that it has come.
    // Loads that of the i-th of all subtiles, and its mask if there is one.
    template <class... Mask>
    __device__ __forceinline__ static void load_subtile(unsigned char* stages, Barrier* full, int i, int stage, int channel, int column, int row,
                                                        int image, const TensorMap& map, const Mask&... mask) {
        const int further = i % SUBTILES * COLUMNS;
        barrier_arrive_expect(full + stage, RESIDUAL_BYTES * (1 + static_cast<int>(sizeof...(mask))));
        unsigned char* to = stages + stage * STAGE_BYTES;
        const auto load_boxes = [&](const TensorMap& from) {
#pragma unroll
            for (int box = 0; box < BOXES; ++box, to += BOX_BYTES) {
                Boxes::load(to, from, full + stage, channel + i / SUBTILES * 64 + box * BOX_CHANNELS, column + Boxes::columns(further),
                            row + Boxes::rows(further), image);
            }
        };
        load_boxes(map);
        (load_boxes(mask), ...);
    }
    // Starts to load a tile's residual, of as many subtiles as there are stages.
    template <class Load>
    __device__ __forceinline__ static void load(const PipelineState<STAGES>& state, const Load& load_subtile) {
        if (threadIdx.x % 128 > 0) return;
        bulk_store_wait_read<0>();  // the outputs of the tile before
        PipelineState<STAGES> next = state;
#pragma unroll
        for (int i = 0; i < STAGES; ++i, ++next) load_subtile(i, next.index);
    }
    // Stores a tile whose residual is being loaded, and loads what is left of that.
    template <int TILES, class Load>
    __device__ __forceinline__ static void store(const float (&d)[BLOCKS][TILES][4], const float (&biases)[BLOCKS][2], unsigned char* stages,
                                                 PipelineState<STAGES>& state, Barrier* full, const Load& load_subtile, const TensorMap& map,
                                                 int channel, int column, int row, int image, int consumer, int warp, int lane) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
            for (int subtile = 0; subtile < SUBTILES; ++subtile, ++state) {
                barrier_wait(full + state.index, state.phase);
                store_subtile(d[i], biases[i], stages + state.index * STAGE_BYTES, subtile, map, channel + i * 64, column, row, image, consumer,
                              warp, lane);
                const int next = i * SUBTILES + subtile + STAGES;
                if (threadIdx.x % 128 == 0 && next < BLOCKS * SUBTILES) {
                    bulk_store_wait_read<0>();
                    load_subtile(next, state.index);
                }
            }
        }
    }
};
