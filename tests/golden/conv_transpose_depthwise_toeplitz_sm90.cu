// conv_transpose n 2 c 16 h 9 w 12 k 16 r 3 s 4 padding_h 1 padding_w 2 groups 16 bf16 nhwc bias_relu
// conv_transpose_depthwise_toeplitz_sm90 tile_c=16 warp_c=4 images=2 row_tiles=1 step_p=2 warps_m=1 epilogue_stages=3 min_blocks=1

// D[position, j] += X[position, i] * T[i, j], for each channel and filter row: M = positions of 8 columns, N = 8 columns j, depth = 16 columns i.
// A = x [N, H, W, C], TMA tile of rows.  B = T, the Toeplitz matrix of packed_w's filter row, in registers.
// Tile IMAGES x BLOCK_P rows x TILE_C channels; tile space ceil(N / IMAGES) * ceil(P / BLOCK_P) * ceil(C / TILE_C).
//
// Depthwise convolution on Hopper's tensor cores: of each channel y [positions x 8 columns] += x [positions x 16 columns] * a filter row's
// Toeplitz matrix [16 columns x 8 columns], in which each column is the filter row, one place further down.
//
//   x         [N, H, W, C]  input
//   packed_w  Toeplitz matrices as MMAs take them, of each channel and filter row the words of 32 lanes
//   bias      [C]           read where EPILOGUE has one
//   y         [N, P, Q, C]  output
//   n         images N, any number
//
// A tile is BLOCK_P rows of outputs of IMAGES images, of TILE_C channels. A block stays, keeps its channels and their filters, and takes tile after
// tile of other rows and images:
//
//   producers  two threads: one lets TMA load STEP_P rows of x of all the tile's images as a stage, with zeros for padding, one lets it store
//              finished rows of outputs
//   consumers  warps: multiply a row by the filter row of each output row that it reaches. Accumulators move one output row on with each row of
//              x: an MMA reads those of the next and writes those of this one
//
//   position  eight neighbouring columns of an image;  16 are the rows of an MMA, images one after the other
//   lane      positions lane / 4 and lane / 4 + 8; of a position's 16 columns of x those from lane % 4 on, four apart, and so of its 8 of y

#include "_words_bf16.cuh"

#include "_epilogue.cuh"

#include "_sm90.cuh"

#include "_ptx_dependent.cuh"

// Problem
constexpr int C = 16;
constexpr int R = 3, S = 4;
constexpr int PAD_H = 1, PAD_W = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int TILE_C = 16, WARP_C = 4;
constexpr int IMAGES = 2, ROW_TILES = 1, STEP_P = 2;
constexpr int WARPS_M = 1, EPILOGUE_STAGES = 3, MIN_BLOCKS = 1;

// Derived
constexpr int CHANNEL_TILES = 1, BLOCK_P = 10;
constexpr int POSITIONS = 4, M_TILES = 1;  // of a row of a tile; MMAs of a warp
constexpr int WARPS_C = TILE_C / WARP_C, WARPS = WARPS_C * WARPS_M;  // consumers
constexpr int PITCH = 28, PITCH_Q = 20;  // columns of an image in shared memory, of x and of y
constexpr int STAGES = 16, ROW_BYTES = 2048, STAGED_BYTES = 2048;
constexpr bool REALLOCATED = false;  // registers go from producers to consumers
constexpr int STAGE_BYTES = STEP_P * ROW_BYTES;
constexpr int FIRST_STEP = (R - 1) / STEP_P, STEPS = FIRST_STEP + BLOCK_P / STEP_P;  // the first that ends rows of outputs
constexpr int PIXEL_BYTES = 2 * TILE_C, CHUNKS = PIXEL_BYTES / 16;

using Elements = AlignedArray<T, WARP_C>;
using Words = AlignedArray<Word, WARP_C / 2>;  // of a pixel: two neighbouring channels each

// Words in the order [channel][filter row][lane][word], each of two columns of x four apart.
extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Word* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i >= CHANNEL_TILES * TILE_C * R * 64) return;
    const int channel = i / (R * 64), row = i / 64 % R, lane = i / 2 % 32;
    const int output = lane / 8 + lane / 4 % 2 * 4;  // the column of y, of eight
    const auto tap = [&](int column) {
        const int offset = column - output;
        const bool there = channel < C && offset >= 0 && offset % DILATION_W == 0 && offset / DILATION_W < S;
        return there ? w[(channel * R + R - 1 - row) * S + S - 1 - offset / DILATION_W] : Bits{0};
    };
    const int first = lane % 4 + i % 2 * 8;
    packed_w[i] = word_of(tap(first), tap(first + 4));
}

// Where a channel of a pixel lies, as TMA swizzles.
__device__ __forceinline__ int place(int pixel, int channel) {
    return pixel * PIXEL_BYTES + (channel / 8 ^ pixel * CHUNKS / 8 % CHUNKS) * 16 + channel % 8 * 2;
}

template <bool VALUE>
struct Flag {
    static constexpr bool value = VALUE;
};

// A step of a block's tiles, and where its first row of x lies.
struct Step {
    int item, step, row, image;

    __device__ __forceinline__ explicit Step(int item) { begin(item); }
    __device__ __forceinline__ void begin(int tile) {
        item = tile, step = 0;
        row = tile % ROW_TILES * BLOCK_P - PAD_H, image = tile / ROW_TILES * IMAGES;
    }
    __device__ __forceinline__ void advance(int apart) {
        ++step, row += STEP_P;
        if (step == STEPS) begin(item + apart);
    }
    __device__ __forceinline__ bool ends_rows() const { return step >= FIRST_STEP; }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS + 128, MIN_BLOCKS)
conv2d_depthwise_toeplitz_sm90(const __grid_constant__ TensorMap x_map, const Word* __restrict__ packed_w, const T* __restrict__ bias,
                               const __grid_constant__ TensorMap y_map, int n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const staged = smem + STAGES * STAGE_BYTES;  // [epilogue stage][STEP_P] outputs [image][PITCH_Q][channel], behind stages
                                                                // [STEP_P][image][PITCH][channel]
    PipelineTma<STAGES>& pipeline = *reinterpret_cast<PipelineTma<STAGES>*>(staged + EPILOGUE_STAGES * STEP_P * STAGED_BYTES);
    PipelineAsync<EPILOGUE_STAGES>& outputs = *reinterpret_cast<PipelineAsync<EPILOGUE_STAGES>*>(&pipeline + 1);

    const int warp = canonical_warp_index(), lane = static_cast<int>(threadIdx.x) % 32;
    const int first_channel = static_cast<int>(blockIdx.x) % CHANNEL_TILES * TILE_C;
    const int items = (n + IMAGES - 1) / IMAGES * ROW_TILES;
    const int first_item = static_cast<int>(blockIdx.x) / CHANNEL_TILES, apart = static_cast<int>(gridDim.x) / CHANNEL_TILES;
    if (threadIdx.x == 0) {
        pipeline.init(1);
        outputs.init(WARPS, 1);
        barrier_init_fence();
    }
    __syncthreads();
    begin_dependent();

    if (warp >= WARPS) {
        if constexpr (REALLOCATED) warpgroup_reg_dealloc<24>();
        if (lane > 0) return;
        PipelineState<STAGES> state;
        if (warp == WARPS) {
            for (Step step(first_item); step.item < items; step.advance(apart), ++state) {
                pipeline.producer_acquire(state, STEP_P * IMAGES * PITCH * PIXEL_BYTES);
#pragma unroll
                for (int i = 0; i < STEP_P; ++i) {
                    tma_load(smem + state.index * STAGE_BYTES + i * ROW_BYTES, &x_map, pipeline.full + state.index, first_channel, 0 - PAD_W,
                             step.row + i, step.image);
                }
            }
        } else if (warp == WARPS + 1) {
            PipelineState<EPILOGUE_STAGES> finished;
            for (Step step(first_item); step.item < items; step.advance(apart), ++state, ++finished) {
                outputs.consumer_wait(finished);  // and so all have read the stage
                pipeline.consumer_release(state.index);
                if (step.ends_rows()) {
#pragma unroll
                    for (int i = 0; i < STEP_P; ++i) {
                        tma_store(&y_map, staged + (finished.index * STEP_P + i) * STAGED_BYTES, first_channel, 0, step.row + PAD_H - (R - 1) + i,
                                  step.image);
                    }
                    bulk_store_commit();
                    bulk_store_wait_read<0>();
                }
                outputs.consumer_release(finished.index);
            }
        }
        return;
    }
    if constexpr (REALLOCATED) warpgroup_reg_alloc<248>();
    if (first_item >= items) return;

    const int channel = warp % WARPS_C * WARP_C;  // the warp's first, of the tile's
    AlignedArray<Word, 2> filters[WARP_C][R];
    float biases[WARP_C] = {};
#pragma unroll
    for (int c = 0; c < WARP_C; ++c) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
            filters[c][r] = reinterpret_cast<const AlignedArray<Word, 2>*>(packed_w)[((first_channel + channel + c) * R + r) * 32 + lane];
        }
        if (EPILOGUE::HAS_BIAS && first_channel + channel + c < C) biases[c] = to_float(bias[first_channel + channel + c]);
    }
    // Where this lane's first columns of two positions lie, and four further on, in a row of x and of y.
    int inputs_at[M_TILES][2][2], outputs_at[M_TILES][2][2];
#pragma unroll
    for (int i = 0; i < M_TILES; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            // Beyond the last position lanes compute that one once more.
            const int position = min((warp / WARPS_C * M_TILES + i) * 16 + j * 8 + lane / 4, POSITIONS - 1);
            const int image = position % IMAGES, column = position / IMAGES * 8 + lane % 4;
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                inputs_at[i][j][k] = place(image * PITCH + column + k * 4, channel);
                outputs_at[i][j][k] = place(image * PITCH_Q + column + k * 4, channel);
            }
        }
    }

    Words loaded[2][4];  // of the next MMAs, while these are computed
    const auto load_inputs = [&](const unsigned char* row, int i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                loaded[j][k] = *reinterpret_cast<const Words*>(row + inputs_at[i][j][k % 2] + k / 2 * (8 * PIXEL_BYTES));
            }
        }
    };
    PipelineState<STAGES> state;
    PipelineState<EPILOGUE_STAGES> staging;
    Step step(first_item);
    float d[M_TILES][WARP_C][R][4] = {};  // of the R output rows that a row of x reaches, the first of which it ends
    // Adds a step's rows of x, and stages the rows of outputs that it ends. Nothing branches: outputs are finished while others are multiplied.
    const auto add_rows = [&](auto ends_rows, const unsigned char* from, unsigned char* to) {
#pragma unroll
        for (int row = 0; row < STEP_P; ++row) {
#pragma unroll
            for (int i = 0; i < M_TILES; ++i) {
                Word inputs[WARP_C][4];
#pragma unroll
                for (int c = 0; c < WARP_C; ++c) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const Word one = loaded[j % 2][j / 2 * 2].at[c / 2], other = loaded[j % 2][j / 2 * 2 + 1].at[c / 2];
                        inputs[c][j] = __byte_perm(one, other, c % 2 == 0 ? 0x5410 : 0x7632);
                    }
                }
                if (i + 1 < M_TILES) {
                    load_inputs(from + row * ROW_BYTES, (i + 1) % M_TILES);
                } else if (row + 1 < STEP_P) {
                    load_inputs(from + (row + 1) * ROW_BYTES, 0);
                } else if (step.item < items) {
                    pipeline.consumer_wait(state);
                    load_inputs(smem + state.index * STAGE_BYTES, 0);
                }
#pragma unroll
                for (int r = 0; r < R; ++r) {
#pragma unroll
                    for (int c = 0; c < WARP_C; ++c) {
                        float none[4] = {};
                        mma_m16n8k16_bf16(d[i][c][r], inputs[c], filters[c][R - 1 - r].at, r + 1 < R ? d[i][c][(r + 1) % R] : none);
                    }
                }
                if constexpr (ends_rows.value) {
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
#pragma unroll
                        for (int k = 0; k < 2; ++k) {
                            Elements finished;
#pragma unroll
                            for (int c = 0; c < WARP_C; ++c) finished.at[c] = from_float<T>(finish<EPILOGUE>(d[i][c][0][2 * j + k], biases[c]));
                            store_staged(reinterpret_cast<Elements*>(to + row * STAGED_BYTES + outputs_at[i][j][k]), finished);
                        }
                    }
                }
            }
        }
    };
    pipeline.consumer_wait(state);
    load_inputs(smem, 0);
#pragma unroll 1
    while (step.item < items) {
        outputs.producer_acquire(staging);
        const unsigned char* const from = smem + state.index * STAGE_BYTES;
        unsigned char* const to = staged + staging.index * (STEP_P * STAGED_BYTES);
        const bool ends_rows = step.ends_rows();
        ++state;
        step.advance(apart);
        if (ends_rows) {
            add_rows(Flag<true>{}, from, to);
        } else {
            add_rows(Flag<false>{}, from, to);
        }
        fence_bulk();
        __syncwarp();
        if (lane == 0) outputs.producer_commit(staging.index);
        ++staging;
    }
}
