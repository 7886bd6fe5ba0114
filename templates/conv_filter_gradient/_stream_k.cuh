#pragma once
#include "_ptx_dependent_stage.cuh"

// Stream-K (Osama et al. 2023): blocks share all steps of all tiles evenly. A block has neighbouring steps: the end of a tile, whole tiles, the
// beginning of another one. It leaves the sums of each in the workspace, and a second stage adds those of a tile in a fixed order.
// Needs `steps_of_tile`, of n images, and the family's constants.

// The steps of one of `blocks` blocks, counted through all tiles.
__device__ __forceinline__ long long first_step(int block, int blocks, int steps) { return static_cast<long long>(TILES) * steps * block / blocks; }

// The block that has a step.
__device__ __forceinline__ int block_of(long long step, int blocks, int steps) {
    return static_cast<int>(((step + 1) * blocks - 1) / (static_cast<long long>(TILES) * steps));
}

// Steps of a tile that a block has.
struct Part {
    int tile, begin, end;
};

// What is left of a block's steps.
struct Share {
    int steps;  // of a tile
    long long next, last;

    __device__ __forceinline__ Share(int n, int block, int blocks) : steps(steps_of_tile(n)) {
        next = first_step(block, blocks, steps), last = first_step(block + 1, blocks, steps);
    }
    __device__ __forceinline__ bool more() const { return next < last; }
    __device__ __forceinline__ Part take() {
        Part part = {static_cast<int>(next / steps), static_cast<int>(next % steps), steps};
        if (steps - part.begin > last - next) part.end = part.begin + static_cast<int>(last - next);
        next += part.end - part.begin;
        return part;
    }
};

// The sums that a block has of the first of its tiles: [TILE_K][TILE_COLUMNS], and behind them those of as many tiles as a block may have.
template <typename F>
__device__ __forceinline__ F* first_sums_of(F* workspace, int block, int blocks) {
    return workspace + static_cast<long long>(block) * ((TILES + blocks - 1) / blocks + 1) * (TILE_K * TILE_COLUMNS);
}

// Those of a tile.
template <typename F>
__device__ __forceinline__ F* sums_of(F* workspace, int tile, int block, int blocks, int steps) {
    const int at = tile - static_cast<int>(first_step(block, blocks, steps) / steps);
    return first_sums_of(workspace, block, blocks) + static_cast<long long>(at) * (TILE_K * TILE_COLUMNS);
}

// A tile of dw. ALL_TAPS: its columns are 64 input channels of each tap of a filter frame; else they are neighbours, of TAP_COLUMNS input channels a
// tap, of which the first LEAD are none. Groups of fewer channels are multiplied as one: JOINED of them; sums of two groups are not stored.
struct Tile {
    static constexpr int BOXES = ALL_TAPS ? TAP_COLUMNS / 64 : 1;  // of a tap
    int group, first_k, first_column, first_tap;

    __device__ __forceinline__ explicit Tile(int index)
        : group(index / (TILES_K * TILES_COLUMNS)),
          first_k(index / TILES_COLUMNS % TILES_K * TILE_K),
          first_column(ALL_TAPS ? index % BOXES * 64 : index % TILES_COLUMNS * TILE_COLUMNS),
          first_tap(ALL_TAPS ? index % TILES_COLUMNS / BOXES * (R * S) : 0) {}

    static constexpr int FILTERS = GROUP_K / JOINED, FILTER_C = GROUP_C / JOINED;  // of a group
    // Whether the four neighbours with a column, if they are of one group, are of the row's.
    __device__ __forceinline__ bool is_of_group(int row, int column) const {
        if constexpr (JOINED == 1 || FILTER_C % 4 != 0) return true;
        return (first_k + row) / FILTERS == (ALL_TAPS ? first_column + column % 64 : (first_column + column) % TAP_COLUMNS) / FILTER_C;
    }
    // Where the element lies in dw that the tile has in a row and column; -1 where it is none.
    __device__ __forceinline__ long long element(int row, int column) const {
        const int k = first_k + row, tap = ALL_TAPS ? first_tap + column / 64 : (first_column + column) / TAP_COLUMNS;
        const int c = ALL_TAPS ? first_column + column % 64 : (first_column + column) % TAP_COLUMNS - LEAD;
        if (k >= GROUP_K || tap >= TAPS || c < 0 || c >= GROUP_C) return -1;
        if (JOINED > 1 && (k / FILTERS != c / FILTER_C || group * JOINED + k / FILTERS >= GROUPS)) return -1;
        return (static_cast<long long>(group * GROUP_K + k) * TAPS + tap) * FILTER_C + c % FILTER_C;
    }
};

// Stores the sums of neighbouring columns of a tile.
template <int COUNT>
__device__ __forceinline__ void store_sums(float* __restrict__ dw, const Tile& tile, int row, int column, const AlignedArray<float, COUNT>& sums) {
    if constexpr (GROUP_C / JOINED % COUNT == 0 && LEAD == 0) {
        const long long to = tile.element(row, column);
        if (to >= 0) *reinterpret_cast<AlignedArray<float, COUNT>*>(dw + to) = sums;
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const long long to = tile.element(row, column + i);
            if (to >= 0) dw[to] = sums.at[i];
        }
    }
}

// Stores a lane's accumulators of BLOCKS MMAs below each other, BLOCK_ROWS rows apart, from a row and column of a tile on.
template <int BLOCK_ROWS, int BLOCKS, int TILES_OF_8>
__device__ __forceinline__ void store_part(const float (&d)[BLOCKS][TILES_OF_8][4], float* sums, const Tile& tile, int row, int column) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float* const to = sums + (row + lane / 4) * TILE_COLUMNS + column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; ++i) {
#pragma unroll
        for (int j = 0; j < TILES_OF_8; ++j) {
            const int below = i / 2 * BLOCK_ROWS + i % 2 * 8;
            if (!tile.is_of_group(row + below + lane / 4, column + j * 8 + lane % 4 * 2)) continue;
            const AlignedArray<float, 2> pair = {d[i / 2][j][i % 2 * 2], d[i / 2][j][i % 2 * 2 + 1]};
            *reinterpret_cast<AlignedArray<float, 2>*>(to + below * TILE_COLUMNS + j * 8) = pair;
        }
    }
}

using Quad = AlignedArray<float, 4>;

// Stores the accumulators of a warp's MMAs, of FRAGMENTS of 16 rows and 8 columns beside each other, a lane's four of each, from a row and column of a
// tile on: as rows, so that the warp writes whole lines. Calls store(row, column, sums) of four neighbours. `rows` is memory of the warp's own.
constexpr int MOST_FRAGMENTS = 4, ROWS_BYTES = 16 * (8 * MOST_FRAGMENTS + 8) * 4;  // the pitch of rows avoids bank conflicts
template <int FRAGMENTS, class Store>
__device__ __forceinline__ void store_rows(int row, int column, const Quad (&sums)[FRAGMENTS], float* rows, const Store& store) {
    static_assert(FRAGMENTS <= MOST_FRAGMENTS, "rows have room for them");
    constexpr int PITCH = 8 * FRAGMENTS + 8, QUADS = 2 * FRAGMENTS;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    __syncwarp();  // the rows before have been read
#pragma unroll
    for (int i = 0; i < 2 * FRAGMENTS; ++i) {
        AlignedArray<float, 2>* const pairs = reinterpret_cast<AlignedArray<float, 2>*>(rows + (lane / 4 + i % 2 * 8) * PITCH + i / 2 * 8);
        pairs[lane % 4] = {sums[i / 2].at[i % 2 * 2], sums[i / 2].at[i % 2 * 2 + 1]};
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < FRAGMENTS; ++i) {
        const int at = i * 32 + lane, below = at / QUADS, quad = at % QUADS;
        store(row + below, column + quad * 4, reinterpret_cast<const Quad*>(rows + below * PITCH)[quad]);
    }
}

// Adds the parts of all tiles, REDUCE_LANES lanes every so many parts of four neighbours. Its grid has those of the first stage
// along x. A warp has neighbouring outputs, so that it seldom looks for the blocks that have parts of a tile, which takes divisions of 64 bits.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS) add_parts(const float* workspace, float* dw, int n) {
    constexpr int WARP_QUADS = 32 / REDUCE_LANES, TILE_CHUNKS = TILE_K * TILE_COLUMNS / 4 / WARP_QUADS;
    static_assert(TILE_K * TILE_COLUMNS % (4 * WARP_QUADS) == 0, "a warp adds the parts of one tile");
    constexpr long long CHUNKS = static_cast<long long>(TILES) * TILE_CHUNKS;
    const int blocks = static_cast<int>(gridDim.x), steps = steps_of_tile(n), lane = static_cast<int>(threadIdx.x) % 32;
    const int warps = blocks * static_cast<int>(gridDim.y) * (REDUCE_THREADS / 32);
    const int warp = static_cast<int>(((blockIdx.y * gridDim.x + blockIdx.x) * REDUCE_THREADS + threadIdx.x) / 32);
    const long long first_chunk = CHUNKS * warp / warps;
    long long left = CHUNKS * (warp + 1) / warps - first_chunk;
    int chunk = static_cast<int>(first_chunk % TILE_CHUNKS);
    wait_for_stage_before();
    for (int index = static_cast<int>(first_chunk / TILE_CHUNKS); left > 0; ++index, chunk = 0) {
        const Tile tile(index);
        const long long first = static_cast<long long>(index) * steps;
        const int begin = block_of(first, blocks, steps), end = block_of(first + steps - 1, blocks, steps);
        const float* const begun = sums_of(workspace, index, begin, blocks, steps);
        for (; chunk < TILE_CHUNKS && left > 0; ++chunk, --left) {
            const int at = (chunk * WARP_QUADS + lane % WARP_QUADS) * 4;
            const bool stored = tile.is_of_group(at / TILE_COLUMNS, at % TILE_COLUMNS);
            Quad sums = {};
#pragma unroll 4
            for (int block = begin + lane / WARP_QUADS; stored && block <= end; block += REDUCE_LANES) {
                // Blocks behind the first one begin with this tile.
                const Quad part = *reinterpret_cast<const Quad*>((block == begin ? begun : first_sums_of(workspace, block, blocks)) + at);
#pragma unroll
                for (int j = 0; j < 4; ++j) sums.at[j] += part.at[j];
            }
#pragma unroll
            for (int lanes = WARP_QUADS; lanes < 32; lanes *= 2) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sums.at[j] += __shfl_xor_sync(0xffffffffu, sums.at[j], lanes);
            }
            if (lane < WARP_QUADS) store_sums(dw, tile, at / TILE_COLUMNS, at % TILE_COLUMNS, sums);
        }
    }
}
