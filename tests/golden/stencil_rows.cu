// stencil n 3 h 33 w 131 f32
// stencil_rows block_w=32 block_h=1 rows=1 vector=1

// Five-point stencil, y = weights[0] * x + weights[1] * (above + below + left + right), zero beyond the edges.
//
//   x  [n, H, W]  input
//   y  [n, H, W]  output
//   n  any number of planes
//
//   grid  x: (plane * TILES_H + tile row) * TILES_W + tile column, so that blocks under way together read whole rows
//   block x: VECTOR neighbouring columns, a warp's next to each other;  y: group of ROWS neighbouring rows

#include "_dtype_f32.cuh"

constexpr int H = 33, W = 131;
constexpr int BLOCK_W = 32, BLOCK_H = 1, ROWS = 1, VECTOR = 1;
constexpr int TILES_H = 33, TILES_W = 5;
constexpr unsigned WARP = 0xffffffffu;
using Chunk = AlignedArray<float, VECTOR>;

extern "C" __global__ __launch_bounds__(BLOCK_W * BLOCK_H) void stencil_rows(const float* __restrict__ x,
                                                                            const float* __restrict__ weights,
                                                                            float* __restrict__ y, int) {
    const int tile = blockIdx.x / TILES_W;
    const int column = (blockIdx.x % TILES_W * BLOCK_W + threadIdx.x) * VECTOR;
    const int first = (tile % TILES_H * BLOCK_H + threadIdx.y) * ROWS;
    const long long plane = static_cast<long long>(tile / TILES_H) * H * W;
    const float* const from = x + plane + column;
    Chunk* const to = reinterpret_cast<Chunk*>(y + plane + column);
    const auto is_inside = [](int at, int extent) { return at >= 0 && at < extent; };

    // Loads before anything waits for one: the rows from the one above to the one below, and what the neighbours of the
    // warp's first and last lane have.
    Chunk own[ROWS + 2];
#pragma unroll
    for (int i = 0; i < ROWS + 2; ++i) {
        const int row = first - 1 + i;
        own[i] = column < W && is_inside(row, H) ? *reinterpret_cast<const Chunk*>(from + row * W) : Chunk{};
    }
    const int lane = threadIdx.x % 32, beside = lane == 0 ? -1 : VECTOR;
    const bool has_edge = (lane == 0 || lane == 31) && is_inside(column + beside, W);
    float edge[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) edge[i] = has_edge && first + i < H ? from[(first + i) * W + beside] : 0.0f;

    const float centre = weights[0], neighbour = weights[1];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const Chunk &above = own[i], &middle = own[i + 1], &below = own[i + 2];
        const float before = __shfl_up_sync(WARP, middle.at[VECTOR - 1], 1);
        const float behind = __shfl_down_sync(WARP, middle.at[0], 1);
        Chunk result;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            const float left = j > 0 ? middle.at[j > 0 ? j - 1 : 0] : lane == 0 ? edge[i] : before;
            const float right = j < VECTOR - 1 ? middle.at[j < VECTOR - 1 ? j + 1 : 0] : lane == 31 ? edge[i] : behind;
            result.at[j] = centre * middle.at[j] + neighbour * ((above.at[j] + below.at[j]) + (left + right));
        }
        if (column < W && first + i < H) to[(first + i) * (W / VECTOR)] = result;
    }
}
