#pragma once

// Stream-K (Osama et al. 2023): blocks share all steps of all tiles evenly. A block has neighbouring steps: the end of a tile, whole tiles, the
// beginning of another one. It stores the sums of whole tiles, and leaves those of parts in the workspace, which a second stage adds in the order of
// the pixels. Needs Tile, TILES, STEP_PIXELS and PIXELS of an image.

// Steps of a tile, for n images.
__device__ __forceinline__ int steps_of_tile(int n) {
    return static_cast<int>((static_cast<long long>(n) * PIXELS + STEP_PIXELS - 1) / STEP_PIXELS);
}

// The steps of one of `blocks` blocks, counted through all tiles.
__device__ __forceinline__ long long first_step(int block, int blocks, int steps) { return static_cast<long long>(TILES) * steps * block / blocks; }

// The block that has a step.
__device__ __forceinline__ int block_of(long long step, int blocks, int steps) {
    return static_cast<int>(((step + 1) * blocks - 1) / (static_cast<long long>(TILES) * steps));
}

// The workspace has two parts of tiles for each block: of the tile that it begins with, and of the tile that it ends with.
template <typename F>
__device__ __forceinline__ F* part_of_tile(F* workspace, int block, bool begins_tile) {
    return workspace + (static_cast<long long>(block) * 2 + begins_tile) * (TILE_K * TILE_COLUMNS);
}

// Where the element of dw lies that a tile has in a row and column; -1 where it has none.
struct Tile {
    int group, first_k, first_column;

    __device__ __forceinline__ explicit Tile(int index)
        : group(index / (TILES_K * TILES_COLUMNS)),
          first_k(index / TILES_COLUMNS % TILES_K * TILE_K),
          first_column(index % TILES_COLUMNS * TILE_COLUMNS) {}

    __device__ __forceinline__ long long element(int row, int column) const {
        const int k = first_k + row, tap = (first_column + column) / TAP_COLUMNS, c = (first_column + column) % TAP_COLUMNS;
        if (k >= GROUP_K || tap >= TAPS || c >= GROUP_C) return -1;
        return (static_cast<long long>(group * GROUP_K + k) * TAPS + tap) * GROUP_C + c;
    }
};

// Stores the sums of neighbouring columns of a tile.
template <int COUNT>
__device__ __forceinline__ void store_sums(float* __restrict__ dw, const Tile& tile, int row, int column, const AlignedArray<float, COUNT>& sums) {
    if constexpr (GROUP_C % COUNT == 0) {
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

// Adds the parts of the tiles that several blocks share. The grid is that of the first stage.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS) add_parts(const float* __restrict__ workspace, float* __restrict__ dw, int n) {
    constexpr int QUADS = TILE_K * TILE_COLUMNS / 4;
    using Quad = AlignedArray<float, 4>;
    const int blocks = static_cast<int>(gridDim.x), steps = steps_of_tile(n);
    for (long long i = static_cast<long long>(blockIdx.x) * REDUCE_THREADS + threadIdx.x; i < static_cast<long long>(TILES) * QUADS;
         i += static_cast<long long>(blocks) * REDUCE_THREADS) {
        const int index = static_cast<int>(i / QUADS), at = static_cast<int>(i % QUADS) * 4;
        const long long first = static_cast<long long>(index) * steps;
        const int begin = block_of(first, blocks, steps), end = block_of(first + steps - 1, blocks, steps);
        if (begin == end) continue;
        Quad sums = *reinterpret_cast<const Quad*>(part_of_tile(workspace, begin, true) + at);
        for (int block = begin + 1; block <= end; ++block) {
            const Quad added = *reinterpret_cast<const Quad*>(part_of_tile(workspace, block, false) + at);
#pragma unroll
            for (int j = 0; j < 4; ++j) sums.at[j] += added.at[j];
        }
        store_sums(dw, Tile(index), at / TILE_COLUMNS, at % TILE_COLUMNS, sums);
    }
}
