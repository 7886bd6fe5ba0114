// conv_transpose n 2 c 16 h 9 w 12 k 16 r 3 s 4 padding_h 1 padding_w 2 groups 16 bf16 nhwc bias_relu
// conv_transpose_grouped_sm90 images=2 block_p=2 warps_q=1 min_blocks=1

// D[pixels, k] += X[pixels, c] * W[c, k] of each tap, for each block of MMA_C channels: M = pixels of a row of outputs, N = depth = MMA_C.
// A = x [N, H, W, C], TMA tile of a row.  B = packed_w, block-diagonal where groups are smaller than MMA_C, in registers.
// Tile IMAGES x BLOCK_P rows x TILE_C channels; tile space ceil(N / IMAGES) * ceil(P / BLOCK_P) * ceil(C / 64).
//
// Grouped convolution on Hopper, groups of 1 to 56 channels and as many outputs: y [pixels x channels] += x [pixels x channels] * w of each tap,
// in blocks of MMA_C channels, with zeros where two channels are of different groups.
//
//   x         [N, H, W, C]  input
//   packed_w  filters as MMAs take them, of each block of channels, tap and slice in depth the words of 32 lanes
//   bias      [C]           read where EPILOGUE has one
//   z         [N, P, Q, C]  residual, added where EPILOGUE has one
//   y         [N, P, Q, C]  output
//   n         images N, any number
//
// A tile is BLOCK_P rows of outputs of IMAGES images, of TILE_C channels. A block stays, keeps its channels and their filters, and takes tile after
// tile of other rows and images:
//
//   one thread   lets TMA load a row of x of all the tile's images as a stage, with zeros for padding, and store a finished row of outputs
//   all warps    multiply a row by all taps that it meets, while the accumulators of the output rows that it reaches are open: each row is
//                read from shared memory once for each column of the filter

#include "_dtype_bf16.cuh"

#include "_epilogue.cuh"

#include "_ptx.cuh"

#include "_ptx_barrier.cuh"

#include "_ptx_tma.cuh"

#include "_ptx_dependent.cuh"

#include "_ptx_mma.cuh"

#include "_ptx_ldmatrix.cuh"

#include "_pipeline.cuh"

// Problem
constexpr int C = 16, GROUP_C = 1;
constexpr int R = 3, S = 4;
[[maybe_unused]] constexpr int P = 9, Q = 11;
constexpr int STRIDE_H = 1, STRIDE_W = 1;
constexpr int PAD_H = 1, PAD_W = 1;
constexpr int DILATION_H = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int IMAGES = 2, BLOCK_P = 2;
constexpr int WARPS_Q = 1, MIN_BLOCKS = 1;

// Derived
constexpr int CHANNEL_TILES = 1, TILE_C = 16, ROW_TILES = 5;
constexpr int MMA_C = 8, SLICES = 1;  // channels of an MMA's outputs; its inputs' in slices of as many
constexpr int MMA_PIXELS = 32;            // whose inputs a warp loads at once: of two MMAs with 8 channels, of one with 16
constexpr int WORDS = MMA_C == 8 ? 1 : 4;            // of a lane, of the filters of a tap and slice
constexpr int FILTER_WORDS = R * S * SLICES * WORDS;
constexpr int WARPS_C = 2, WARPS = WARPS_C * WARPS_Q, THREADS = 32 * WARPS;
constexpr int PIXELS = IMAGES * Q, MMA_TILES = 1;  // of a row of a tile; of a warp
constexpr int COLUMNS = 14, ROWS = 4;           // of x, that a tile needs
constexpr int STAGES = 16, STAGE_BYTES = 4096, STAGED_BYTES = 1024;

// Words in the order [block of MMA_C channels][tap][slice][lane][word], each of two neighbouring input channels.
extern "C" __global__ void pack_filters(const T* __restrict__ w, unsigned* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i >= CHANNEL_TILES * WARPS_C * FILTER_WORDS * 32) return;
    const int word = i % WORDS, lane = i / WORDS % 32, slice = i / (32 * WORDS) % SLICES, tap = i / (32 * WORDS * SLICES) % (R * S);
    const int first = i / (32 * FILTER_WORDS) * MMA_C;  // of the outputs' channels
    const int k = first + word / 2 * 8 + lane / 4;
    AlignedArray<T, 2> pair;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int c = (GROUP_C > MMA_C ? first / GROUP_C * GROUP_C : first) + slice * MMA_C + word % 2 * 8 + lane % 4 * 2 + j;
        const bool inside = k < C && c < C && c / GROUP_C == k / GROUP_C;
        // Flipped filters of w [C, R, S, K / GROUPS].
        pair.at[j] = inside ? w[(c * (R * S) + R * S - 1 - tap) * GROUP_C + k % GROUP_C] : from_float<T>(0.0f);
    }
    memcpy(packed_w + i, &pair, sizeof pair);
}

// d += a * w of one tap and slice: of two times 16 pixels and 8 channels, or of 16 pixels and two times 8 channels.
__device__ __forceinline__ void multiply(float (&d)[2][4], const unsigned (&a)[4], const unsigned (&w)[WORDS]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if constexpr (MMA_C == 8) {
            mma_m16n8k8_bf16(d[i], {a[2 * i], a[2 * i + 1]}, w[0], d[i]);
        } else {
            mma_m16n8k16_bf16(d[i], a, {w[2 * i % WORDS], w[(2 * i + 1) % WORDS]}, d[i]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_grouped_sm90(const __grid_constant__ TensorMap x_map, const unsigned* __restrict__ packed_w, const T* __restrict__ bias,
                    const __grid_constant__ TensorMap y_map, int n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const staged = smem + STAGES * STAGE_BYTES;  // [2] outputs [PIXELS][TILE_C channels], behind stages [IMAGES][COLUMNS][64 channels]
    PipelineTma<STAGES>& pipeline = *reinterpret_cast<PipelineTma<STAGES>*>(staged + 2 * STAGED_BYTES);

    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int first_channel = static_cast<int>(blockIdx.x) % CHANNEL_TILES * TILE_C;
    const int items = (n + IMAGES - 1) / IMAGES * ROW_TILES;
    const int first_item = static_cast<int>(blockIdx.x) / CHANNEL_TILES, step = static_cast<int>(gridDim.x) / CHANNEL_TILES;
    // By one thread: the next row of x, of this tile or one after it.
    PipelineState<STAGES> filled;
    int next_item = first_item, next_row = 0;
    const auto load_row = [&] {
        if (next_item >= items) return;
        pipeline.producer_acquire(filled, IMAGES * COLUMNS * 128);
        tma_load(smem + filled.index * STAGE_BYTES, &x_map, pipeline.full + filled.index, first_channel, 0 - PAD_W,
                 next_item % ROW_TILES * (BLOCK_P * STRIDE_H) - PAD_H + next_row, next_item / ROW_TILES * IMAGES);
        ++filled;
        if (++next_row == ROWS) next_row = 0, next_item += step;
    };
    if (threadIdx.x == 0) {
        pipeline.init(WARPS);
        barrier_init_fence();
    }
    __syncthreads();
    begin_dependent();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES - 1; ++i) load_row();
    }

    const int block = warp % WARPS_C;  // of MMA_C channels
    const int first_pixel = warp / WARPS_C * (MMA_TILES * MMA_PIXELS);
    unsigned filters[R * S * SLICES][WORDS];
#pragma unroll
    for (int i = 0; i < R * S * SLICES; ++i) {
        using Words = AlignedArray<unsigned, WORDS>;
        const Words words = reinterpret_cast<const Words*>(packed_w)[((first_channel / MMA_C + block) * (R * S * SLICES) + i) * 32 + lane];
#pragma unroll
        for (int j = 0; j < WORDS; ++j) filters[i][j] = words.at[j];
    }
    float biases[MMA_C / 8][2] = {};
    if constexpr (EPILOGUE::HAS_BIAS) {
#pragma unroll
        for (int i = 0; i < MMA_C / 4; ++i) {
            const int channel = first_channel + block * MMA_C + i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (channel < C) biases[i / 2][i % 2] = to_float(bias[channel]);
        }
    }
    // Where in a stage this lane's row of 16 bytes of a matrix lies: of 32 pixels with 8 channels, or of 16 with two times 8.
    int inputs[MMA_TILES][S][SLICES];
#pragma unroll
    for (int i = 0; i < MMA_TILES; ++i) {
        const int pixel = min(first_pixel + i * MMA_PIXELS + lane % MMA_PIXELS, PIXELS - 1);
#pragma unroll
        for (int s = 0; s < S; ++s) {
            const int row = pixel / Q * COLUMNS + pixel % Q * STRIDE_W + s * DILATION_W;
#pragma unroll
            for (int slice = 0; slice < SLICES; ++slice) {
                const int input_block = SLICES == 1 ? block : block / SLICES * SLICES + slice;
                const int chunk = input_block * (MMA_C / 8) + lane / MMA_PIXELS;
                inputs[i][s][slice] = row * 128 + (chunk ^ row % 8) * 16;
            }
        }
    }

    PipelineState<STAGES> state;
    int buffer = 0;
    for (int item = first_item; item < items; item += step) {
        const int image = item / ROW_TILES * IMAGES, first_row = item % ROW_TILES * BLOCK_P;
        float d[BLOCK_P][MMA_TILES][2][4] = {};
#pragma unroll
        for (int h = 0; h < ROWS; ++h, ++state) {
            pipeline.consumer_wait(state);
            const unsigned char* const stage = smem + state.index * STAGE_BYTES;
#pragma unroll
            for (int s = 0; s < S; ++s) {
#pragma unroll
                for (int i = 0; i < MMA_TILES; ++i) {
#pragma unroll
                    for (int slice = 0; slice < SLICES; ++slice) {
                        unsigned a[4];
                        load_matrices(a, stage + inputs[i][s][slice]);
#pragma unroll
                        for (int r = 0; r < R; ++r) {
                            const int p = (h - r * DILATION_H) / STRIDE_H;  // the output row that filter row r sends it to
                            if (h < r * DILATION_H || p >= BLOCK_P || (h - r * DILATION_H) % STRIDE_H) continue;
                            multiply(d[p][i], a, filters[(r * S + s) * SLICES + slice]);
                        }
                    }
                }
            }
            fence_bulk();
            __syncwarp();
            if (lane == 0) pipeline.consumer_release(state.index);
            if (threadIdx.x == 0) load_row();  // where the row before this one was, which the other warps have read or soon will
            __syncwarp();
            constexpr int SPAN = (R - 1) * DILATION_H;
            if (h < SPAN || (h - SPAN) % STRIDE_H) continue;

            // An output row has met all its inputs.
            const int p = (h - SPAN) / STRIDE_H;
            if (threadIdx.x == 0) bulk_store_wait_read<1>();
            __syncthreads();
            unsigned char* const to = staged + buffer * STAGED_BYTES;
            buffer ^= 1;
#pragma unroll
            for (int i = 0; i < MMA_TILES; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {  // halves of two MMAs, eight pixels each
                    const int pixel = first_pixel + i * MMA_PIXELS + (MMA_C == 8 ? j : j % 2) * 8 + lane / 4;
                    if (pixel >= PIXELS) continue;
                    const int part = MMA_C == 8 ? 0 : j / 2, chunk = block * (MMA_C / 8) + part;
                    const float* const accumulators = d[p][i][j / 2] + j % 2 * 2;
                    AlignedArray<T, 2> pair;
#pragma unroll
                    for (int e = 0; e < 2; ++e) pair.at[e] = from_float<T>(finish<EPILOGUE>(accumulators[e], biases[part][e]));
                    float word;
                    memcpy(&word, &pair, sizeof word);
                    store_staged(reinterpret_cast<float*>(to + pixel * (2 * TILE_C) + (TILE_C == 64 ? chunk ^ pixel % 8 : chunk) * 16 + lane % 4 * 4), word);
                }
            }
            fence_bulk();
            __syncthreads();
            if (threadIdx.x == 0) {
                tma_store(&y_map, to, first_channel, 0, first_row + p, image);
                bulk_store_commit();
            }
        }
    }
    if (threadIdx.x == 0) bulk_store_wait_read<0>();
}
