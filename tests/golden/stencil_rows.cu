// stencil n 3 h 33 w 131 f32
// stencil_rows block_w=32 block_h=1 rows=1 vector=1

// Five-point stencil, y = weights[0] * x + weights[1] * (above + below + left + right), zero beyond the edges.
//
//   x  [n, H, W]  input
//   y  [n, H, W]  output
//   n  any number of planes
//
//   grid  x: plane * TILES_H + tile row;  y: tile column
//   block x: VECTOR neighbouring columns;  y: group of ROWS neighbouring rows

#include "_dtype_f32.cuh"

constexpr int H = 33, W = 131;
constexpr int BLOCK_W = 32, BLOCK_H = 1, ROWS = 1, VECTOR = 1;
constexpr int TILES_H = 33;
using Chunk = AlignedArray<float, VECTOR>;

extern "C" __global__ __launch_bounds__(BLOCK_W * BLOCK_H) void stencil_rows(const float* __restrict__ x,
                                                                            const float* __restrict__ weights,
                                                                            float* __restrict__ y, int) {
    const int column = (blockIdx.y * BLOCK_W + threadIdx.x) * VECTOR;
    const int first = (blockIdx.x % TILES_H * BLOCK_H + threadIdx.y) * ROWS;
    if (column >= W || first >= H) return;
    const long long plane = static_cast<long long>(blockIdx.x / TILES_H) * H * W;
    const float* from = x + plane + column;
    const auto at = [&](int row) { return row >= 0 && row < H ? *reinterpret_cast<const Chunk*>(from + row * W) : Chunk{}; };
    const float centre = weights[0], neighbour = weights[1];
    Chunk above = at(first - 1), own = at(first);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int row = first + i;
        if (row >= H) return;
        const Chunk below = at(row + 1);
        const float before = column > 0 ? from[row * W - 1] : 0.0f;
        const float behind = column < W - VECTOR ? from[row * W + VECTOR] : 0.0f;
        Chunk result;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            const float left = j > 0 ? own.at[j > 0 ? j - 1 : 0] : before;
            const float right = j < VECTOR - 1 ? own.at[j < VECTOR - 1 ? j + 1 : 0] : behind;
            result.at[j] = centre * own.at[j] + neighbour * ((above.at[j] + below.at[j]) + (left + right));
        }
        *reinterpret_cast<Chunk*>(y + plane + row * W + column) = result;
        above = own;
        own = below;
    }
}
