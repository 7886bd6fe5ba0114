// conv2d n3 c24 9x19 k24 5x5 pad 2 groups 24 f16 nhwc bias_relu
// depthwise_strips tile_c=16 warp_c=4 images=2 row_tiles=1 smem_filter_rows=2 min_blocks=3

// D[j, strip] += T[j, i] * X[i, strip], for each channel and filter row: M = 16 columns j of y, N = 8 strips, depth = 16 columns i of x.
// A = T, the Toeplitz matrix of packed_w's filter row, in registers or shared memory.  B = x [N, H, W, C], copied row by row.
// Tile 8 strips x a segment of columns x TILE_C channels; tile space ceil(N / IMAGES) * ROW_TILES * SEGMENTS * ceil(C / TILE_C).
//
// Depthwise convolution on tensor cores: of each channel y [16 columns x 8 strips] += a filter row's Toeplitz matrix [16 columns of y x 16 of x],
// in which each row is the filter row, one place further on, * x [16 columns x 8 strips].
//
//   x         [N, H, W, C]  input
//   packed_w  filters, of each channel and row the words of two taps that lie in a row of the matrix
//   bias      [C]           read where EPILOGUE has one
//   y         [N, P, Q, C]  output
//   n         images N, any number
//
// A block computes a segment of the columns of eight strips, of TILE_C channels. It goes down the rows: all threads copy the rows of x that come next,
// with zeros for padding, and store the outputs of a row before; a warp reads columns of its channels into registers, where the last R rows stay, and
// multiplies them by the filter's.
//
//   strip    BLOCK_P output rows of one of IMAGES images
//   segment  the outputs whose inputs are among 16 columns of x: the first one's begin where x does
//   lane     of x columns lane % 4 * 2 and the next, and eight further on, of strip lane / 4; of y columns lane / 4 and eight further on of
//            strips lane % 4 * 2 and the next

#include "_words_f16.cuh"

#include "_epilogue.cuh"

#include "_ptx.cuh"

// Problem
constexpr int C = 24, H = 9, W = 19;
constexpr int R = 5, S = 5;
constexpr int P = 9, Q = 19;
constexpr int PAD_H = 2, PAD_W = 2, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int TILE_C = 16, WARP_C = 4;
constexpr int IMAGES = 2, ROW_TILES = 1;
constexpr int SMEM_FILTER_ROWS = 2, STAGES = 5, MIN_BLOCKS = 3;

// Derived
constexpr int CHANNEL_TILES = 2, BLOCK_P = 3;
constexpr int FIRST_Q = 14, STEP_Q = 12, SEGMENTS = 2;
constexpr int SPAN_W = 4, ROW_WORDS = 7;
constexpr int WARPS = TILE_C / WARP_C, THREADS = 32 * WARPS;
constexpr int CHUNKS = TILE_C / 8, ROW_BYTES = 4096;  // of a row of all strips
constexpr int ROWS = BLOCK_P + R - 1;                         // of x, of a strip
// A thread copies and stores a chunk of a column of SLOTS strips.
constexpr int SLOTS = WARP_C / 2, STRIPS_APART = 8 / SLOTS;
constexpr int STRIP_BYTES = 16 * 2 * TILE_C;
constexpr int IMAGES_APART = STRIPS_APART % IMAGES, ROWS_APART = STRIPS_APART / IMAGES * BLOCK_P;

constexpr float SCALE = 1.0f;  // that EPILOGUE expects of sums

using Elements = AlignedArray<T, WARP_C>;
using Matrix = AlignedArray<Word, 4>;
using Pair = AlignedArray<Word, 2>;  // those of a lane's words of a matrix that differ
using Words = AlignedArray<Word, WARP_C / 2>;  // of a pixel: two neighbouring channels each

// Filter rows as words of two neighbouring taps, of which Toeplitz matrices consist. Needs Bits and Word, and the family's constants.

// Word i of a filter row has taps i - 2 and i - 1, as the columns of x lie that they meet: the first and the last have none.
extern "C" __global__ void pack_filters(const Bits* __restrict__ w, Word* __restrict__ packed_w) {
    const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (i >= CHANNEL_TILES * TILE_C * R * ROW_WORDS) return;
    const int row = i / ROW_WORDS, word = i % ROW_WORDS;
    const auto tap = [&](int column) {
        const bool there = row < C * R && column >= 0 && column <= SPAN_W && column % DILATION_W == 0;
        return there ? w[row * S + column / DILATION_W] : Bits{0};
    };
    packed_w[i] = word == 0 ? Word{0} : word_of(tap(word - 2), tap(word - 1));
}

// Where eight channels of a column of a strip lie in shared memory, of x and of y: so that the loads of a warp, and its stores, meet all banks.
__device__ __forceinline__ int place_x(int strip, int column, int chunk) {
    const int bits = CHUNKS < 4 ? column / 4 % 2 * 2 + strip % 2 : column / 2 % 4 + strip % 2 * 4;
    return (((strip * 16 + column) * CHUNKS + chunk) ^ bits) * 16;
}
__device__ __forceinline__ int place_y(int strip, int column, int chunk) {
    const int bits = CHUNKS < 4 ? strip / 2 % 2 : CHUNKS == 4 ? column / 2 % 2 + strip / 2 % 2 * 2 : column % 4 + strip / 2 % 2 * 4;
    return (((strip * 16 + column) * CHUNKS + chunk) ^ bits) * 16;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_depthwise_strips(const T* __restrict__ x, const Word* __restrict__ packed_w, const T* __restrict__ bias, T* __restrict__ y, int n) {
    extern __shared__ __align__(128) unsigned char smem[];
    unsigned char* const staged = smem + STAGES * ROW_BYTES;  // two rows of outputs
    Pair* const shared_filters = reinterpret_cast<Pair*>(staged + 2 * ROW_BYTES);  // [channel][filter row][16 taps]

    int at = static_cast<int>(blockIdx.x);
    const int first_channel = at % CHANNEL_TILES * TILE_C;
    at /= CHANNEL_TILES;
    const int segment = at % SEGMENTS;
    at /= SEGMENTS;
    const int row_tile = at % ROW_TILES, first_image = at / ROW_TILES * IMAGES;
    const int first_q = segment == 0 ? 0 : FIRST_Q + (segment - 1) * STEP_Q;
    const int first_w = segment == 0 ? 0 : first_q - PAD_W;
    const int columns_q = segment == SEGMENTS - 1 ? Q - first_q : segment == 0 ? FIRST_Q : STEP_Q;

    // What this thread copies and stores: of strips STRIPS_APART from each other.
    const int thread = static_cast<int>(threadIdx.x);
    const int chunk = thread % CHUNKS, column = thread / CHUNKS % 16, strip = thread / CHUNKS / 16;
    const int image = first_image + strip % IMAGES, first_p = (row_tile * (8 / IMAGES) + strip / IMAGES) * BLOCK_P, first_h = first_p - PAD_H;
    const bool channels = first_channel + chunk * 8 < C;
    const T* from = x + ((static_cast<long long>(image) * H + first_h) * (W * C) + (first_w + column) * C + first_channel + chunk * 8);
    T* to = y + ((static_cast<long long>(image) * P + first_p) * (Q * C) + (first_q + column) * C + first_channel + chunk * 8);
    unsigned limit_h[SLOTS];  // of rows of x
    int limit_p[SLOTS];       // of the strip's output rows
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
        const bool there = channels && image + i * IMAGES_APART < n;
        const int apart = i * ROWS_APART;
        limit_h[i] = there && static_cast<unsigned>(first_w + column) < static_cast<unsigned>(W) ? max(min(H, first_h + apart + ROWS), 0) : 0;
        limit_p[i] = there && column < columns_q ? min(BLOCK_P, P - first_p - apart) : 0;
    }
    const int x_at = place_x(strip, column, chunk), y_at = place_y(strip, column, chunk);
    // A row that lies `ahead` of where `from` or `to` is.
    const auto copy_row = [&](int row, int ahead, int stage) {
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) {
            copy_async<16>(smem + stage * ROW_BYTES + x_at + i * STRIP_BYTES * STRIPS_APART,
                           from + (i * IMAGES_APART * static_cast<long long>(H) + i * ROWS_APART + ahead) * (W * C),
                           static_cast<unsigned>(first_h + row + i * ROWS_APART) < limit_h[i]);
        }
        copy_async_commit();
    };
    const auto load_staged = [&](Chunk (&outputs)[SLOTS], const unsigned char* row) {
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) outputs[i] = *reinterpret_cast<const Chunk*>(row + y_at + i * STRIP_BYTES * STRIPS_APART);
    };
    const auto store_row = [&](const Chunk (&outputs)[SLOTS], int row, int ahead) {
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) {
            if (row >= 0 && row < limit_p[i]) {
                const Chunk& chunk = outputs[i];  // halves of what the second strip has are exchanged
                *reinterpret_cast<Chunk*>(to + (i * IMAGES_APART * static_cast<long long>(P) + i * ROWS_APART + ahead) * (Q * C)) =
                    WARP_C == 4 && i == 1 ? Chunk{chunk.words[2], chunk.words[3], chunk.words[0], chunk.words[1]} : chunk;
            }
        }
    };
#pragma unroll
    for (int row = 0; row < STAGES - 1; ++row) copy_row(row, row, row);
    from += (STAGES - 1LL) * (W * C);

    const int warp = thread / 32, lane = thread % 32, group = lane / 4, quad = lane % 4;
    const int channel = warp * WARP_C;  // the warp's first, of the tile's
    // A lane's words of a Toeplitz matrix: columns quad * 2 and the next of row `group` and of the row eight further on, and columns eight further on
    // of both. The first and the last are one; of the others a lane has one at most.
    const auto place_of = [](int tap) { return tap >= -1 && tap <= SPAN_W ? tap + 2 : 0; };
    const int tap = quad * 2 - group + (segment == 0 ? PAD_W : 0);
    const int first_at = place_of(tap), second_at = place_of(tap - 8), third_at = place_of(tap + 8), other_at = second_at + third_at;
    // Always true, but opaque to nvcc: otherwise the first and the last word share one register, and nvcc inserts moves before each MMA.
    const bool always = __shfl_sync(0xffffffffu, tap, lane) == tap;
    float biases[WARP_C] = {};
    if constexpr (EPILOGUE::HAS_BIAS) {
#pragma unroll
        for (int c = 0; c < WARP_C; ++c) {
            if (first_channel + channel + c < C) biases[c] = SCALE * to_float(bias[first_channel + channel + c]);
        }
    }
    Matrix filters[WARP_C][R - SMEM_FILTER_ROWS];
    const auto matrix_of = [&](const Pair& pair, Word last) {
        return Matrix{pair.at[0], second_at > 0 ? pair.at[1] : 0, third_at > 0 ? pair.at[1] : 0, last};
    };
    Pair* const own_filters = shared_filters + channel * (SMEM_FILTER_ROWS * 16) + (quad * 2 - group + 7);
#pragma unroll
    for (int c = 0; c < WARP_C; ++c) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const Word* const words = packed_w + ((first_channel + channel + c) * R + r) * ROW_WORDS;
            const Pair pair = {words[first_at], words[other_at]};
            if (r < R - SMEM_FILTER_ROWS) {
                filters[c][r] = matrix_of(pair, always ? pair.at[0] : pair.at[1]);
            } else if (quad == 0 || group < 2) {  // a lane of each tap
                own_filters[(c * SMEM_FILTER_ROWS + r - (R - SMEM_FILTER_ROWS)) * 16] = pair;
            }
        }
    }
    __syncwarp();
    // Of columns quad * 2 and the next, and of column `group` of strip quad * 2: what is eight columns or a strip further on lies as far from there.
    const int inputs_at[2] = {place_x(group, quad * 2, channel / 8) + channel % 8 * 2, place_x(group, quad * 2 + 1, channel / 8) + channel % 8 * 2};
    const int outputs_at = place_y(quad * 2, group, channel / 8) + (channel % 8 * 2 ^ (WARP_C == 4 ? quad / 2 * 8 : 0));

    Word inputs[R][WARP_C][2];
    // Waits for a row of x, reads this lane's part and has one more copied: into the stage that all have read before.
    const auto take_row = [&](Word (&taken)[WARP_C][2], int row, int ahead, int stage) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        Words loaded[2][2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                loaded[i][j] = *reinterpret_cast<const Words*>(smem + stage * ROW_BYTES + inputs_at[j] + i * (8 * 2 * TILE_C));
            }
        }
        copy_row(row + STAGES - 1, ahead, (stage + STAGES - 1) % STAGES);
#pragma unroll
        for (int c = 0; c < WARP_C; ++c) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                taken[c][i] = __byte_perm(loaded[i][0].at[c / 2], loaded[i][1].at[c / 2], c % 2 == 0 ? 0x5410 : 0x7632);
            }
        }
    };
    float d[2][WARP_C / 2][4] = {};
    Elements finished[2][2];
    // Multiplies, and finishes, half of the channels of a row.
    const auto multiply = [&](int half, int i) {
#pragma unroll
        for (int k = 0; k < WARP_C / 2; ++k) d[half][k][0] = d[half][k][1] = d[half][k][2] = d[half][k][3] = 0.0f;
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int k = 0; k < WARP_C / 2; ++k) {
                const int c = half * (WARP_C / 2) + k;
                Matrix matrix;
                if (r < R - SMEM_FILTER_ROWS) {
                    matrix = filters[c][r];
                } else {
                    const Pair pair = own_filters[(c * SMEM_FILTER_ROWS + r - (R - SMEM_FILTER_ROWS)) * 16];
                    matrix = matrix_of(pair, pair.at[0]);
                }
                mma_m16n8k16_f16(d[half][k], matrix.at, inputs[(i + r) % R][c], d[half][k]);
            }
        }
    };
    const auto finish_half = [&](int half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
#pragma unroll
                for (int k = 0; k < WARP_C / 2; ++k) {
                    const int c = half * (WARP_C / 2) + k;
                    finished[i][j].at[c] = from_float<T>(finish_scaled<EPILOGUE>(d[half][k][2 * i + j], SCALE, biases[c]));
                }
            }
        }
    };
    const auto stage_outputs = [&](unsigned char* row) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) *reinterpret_cast<Elements*>(row + outputs_at + i * (8 * 2 * TILE_C) + j * STRIP_BYTES) = finished[i][j];
        }
    };
#pragma unroll
    for (int row = 0; row < R - 1; ++row) take_row(inputs[row], row, row, row);
    from += (R - 1LL) * (W * C);

    // Half of a row is multiplied while the half before is finished; the row before the last that is finished is stored.
    Chunk outputs[SLOTS];
    unsigned char *even = staged, *odd = staged + ROW_BYTES;
#pragma unroll 1
    for (int first_row = 0; first_row < BLOCK_P; first_row += STAGES) {
#pragma unroll
        for (int i = 0; i < STAGES; ++i) {
            const int row = first_row + i;
            if (row >= BLOCK_P) break;
            take_row(inputs[(i + R - 1) % R], row + R - 1, i, (i + R - 1) % STAGES);
            load_staged(outputs, even);
            multiply(0, i);
            finish_half(1);
            stage_outputs(odd);
            multiply(1, i);
            finish_half(0);
            store_row(outputs, row - 2, i - 2);
            unsigned char* const last = even;
            even = odd, odd = last;
        }
        from += 1LL * STAGES * (W * C);
        to += 1LL * STAGES * (Q * C);
    }
    to -= (BLOCK_P + STAGES - 1LL) / STAGES * STAGES * (Q * C);
    __syncthreads();
    load_staged(outputs, even);
    store_row(outputs, BLOCK_P - 2, BLOCK_P - 2);
    finish_half(1);
    stage_outputs(odd);
    __syncthreads();
    load_staged(outputs, odd);
    store_row(outputs, BLOCK_P - 1, BLOCK_P - 1);
}
