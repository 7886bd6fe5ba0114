// conv2d n3 c24 9x19 k24 5x5 pad 2 groups 24 f16 nhwc bias_relu
// depthwise_toeplitz tile_c=16 thread_p=2 groups_p=1 images=1 warps=4 batch=1

// D[position, j] += X[position, i] * T[i, j], for each channel and filter row: M = positions of 8 columns, N = 8 columns j, depth = 16 columns i.
// A = x [N, H, W, C], transposed in shared memory.  B = T, the Toeplitz matrix of packed_w's filter row, in registers.
// Tile IMAGES x TILE_P rows x TILE_C channels; tile space ceil(N / IMAGES) * ceil(P / TILE_P) * ceil(C / TILE_C).
//
// Depthwise convolution on tensor cores: of each channel y [positions x 8 columns] += x [positions x 16 columns] * a filter row's Toeplitz matrix
// [16 columns x 8 columns], in which each column is the filter row, one place further down.
//
//   x         [N, H, W, C]  input
//   packed_w  filters, of each channel and row of it the words of two taps that lie in a column of the matrix
//   bias      [C]           read where EPILOGUE has one
//   y         [N, P, Q, C]  output
//   n         images N, any number
//
// A block takes TILE_C channels of TILE_P rows of IMAGES images: loads them and transposes pairs of columns on the way to shared memory, where
// a channel is a plane with zeros for padding; a warp computes its channels one after the other and leaves outputs where inputs were; these
// are transposed on their way to y. Input row h is loaded once for all output rows of a group that it reaches.
//
//   position  eight neighbouring columns of the THREAD_P rows of a group;  16 are the rows of an MMA
//   lane      positions lane / 4 and lane / 4 + 8;  columns 2 (lane % 4) and the next

#include "_words_f16.cuh"

#include "_epilogue.cuh"

#include "_ptx_ldmatrix.cuh"

// Problem
constexpr int C = 24, H = 9, W = 19;
constexpr int R = 5, S = 5;
constexpr int P = 9, Q = 19;
constexpr int PAD_H = 2, PAD_W = 2;
constexpr int DILATION_H = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int TILE_C = 16;
constexpr int THREAD_P = 2, GROUPS_P = 1, IMAGES = 1;
constexpr int WARPS = 4, BATCH = 1;

// Derived
constexpr int THREADS = 32 * WARPS, MIN_BLOCKS = 7;
constexpr int CHUNKS = 2, CHANNEL_TILES = 2;        // of eight channels, of TILE_C
constexpr int COLUMN_TILES = 3, POSITIONS = 3, M_TILES = 1;
constexpr int TILE_P = 2, ROW_TILES = 5, ROWS = 6;  // output rows of a tile, input rows that it needs
constexpr int PITCH = 16, PLANE = 96;                          // words of a row and of a channel
constexpr int CHUNK_PITCH = 784;                                // words from eight channels to the next
constexpr int PAD_LEFT = 2, SHIFT = PAD_LEFT - PAD_W;              // columns of a plane before those of x, before the first output's first
constexpr int LOADED_ROWS = 6, LOADED = IMAGES * LOADED_ROWS;   // rows of x that a tile may have
constexpr int FIRST_PAIR = 1, PAIRS = 10, PAIRS_Q = 10;  // pairs of columns of x, and of y
constexpr int LINES = 6, LINES_Q = 6;                        // rows of x and y that a block's threads move at once
constexpr int SPAN_H = 4, SPAN_W = 4;                      // of the filter, from its first tap to the last
constexpr int ROW_WORDS = SPAN_W + 3, FILTER_WORDS = R * ROW_WORDS;
constexpr int INPUTS = CHUNKS * CHUNK_PITCH / 4, FILTERS = TILE_C * FILTER_WORDS / 4;  // of a block, in vectors

#include "_pack_toeplitz.cuh"

// Words of which each has an element of one array, and of the other, in turn.
struct Pair {
    Word first, second;
};
__device__ __forceinline__ Pair transposed(Word one, Word other) { return {__byte_perm(one, other, 0x5410), __byte_perm(one, other, 0x7632)}; }

// Where a position begins among the words of a plane.
__device__ __forceinline__ int place(int position) {
    const int group = position / COLUMN_TILES, column_tile = position % COLUMN_TILES;
    return (group / GROUPS_P * ROWS + group % GROUPS_P * THREAD_P) * PITCH + column_tile * 4;
}

// Inputs of a thread: two columns and eight channels of BATCH rows, LINES apart.
struct Loaded {
    Chunk at[BATCH][2];
};

// A thread's part of a block's inputs or outputs: all rows of a pair of columns of eight channels.
template <int PAIRS, int LINES>
struct Part {
    int chunk, pair, line;
    bool there;

    __device__ __forceinline__ explicit Part(int first_channel) {
        const unsigned thread = threadIdx.x;
        chunk = static_cast<int>(thread % CHUNKS);
        pair = static_cast<int>(thread / CHUNKS % PAIRS);
        line = static_cast<int>(thread / (CHUNKS * PAIRS));
        there = line < LINES && first_channel + chunk * 8 < C;
    }
};
using InputPart = Part<PAIRS, LINES>;
using OutputPart = Part<PAIRS_Q, LINES_Q>;

// A line's image, of those of the tile, and its row after the first that is loaded.
struct Line {
    int image, row;

    __device__ __forceinline__ explicit Line(int line) : image(IMAGES == 1 ? 0 : line / LOADED_ROWS), row(line - image * LOADED_ROWS) {}
};

// Loads the lines from `line`, of `images` images and `rows` rows of x.
__device__ __forceinline__ void load_lines(Loaded& loaded, const Bits* __restrict__ x, const InputPart& part, int line, int rows, int images) {
    const int column = (FIRST_PAIR + part.pair) * 2 - PAD_LEFT;
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
        const Line at(line + i * LINES);
        const bool inside = part.there && at.row < rows && at.image < images;
        const Bits* const from = x + (at.image * (H * W * C) + (at.row * W + column) * C);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            loaded.at[i][j] = Chunk{};
            if (inside && (j == 0 ? PAD_LEFT % 2 == 0 || column >= 0 : (W - PAD_LEFT) % 2 == 0 || column + 1 < W)) {
                loaded.at[i][j] = *reinterpret_cast<const Chunk*>(from + j * C);
            }
        }
    }
}

// Puts them where they belong in planes.
__device__ __forceinline__ void put_lines(Word* planes, const Loaded& loaded, const InputPart& part, int line, int rows, int images) {
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
        const Line at(line + i * LINES);
        if (!part.there || at.row >= rows || at.image >= images) continue;
        Word* const to = planes + (at.image * ROWS + at.row) * PITCH;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const Pair pair = transposed(loaded.at[i][0].words[j], loaded.at[i][1].words[j]);
            to[2 * j * PLANE] = pair.first;
            to[(2 * j + 1) * PLANE] = pair.second;
        }
    }
}

// Stores a block's outputs, which begin where its inputs did.
__device__ __forceinline__ void store_planes(T* __restrict__ y, const Word* planes, int first_channel, int row, int image, int n) {
    const OutputPart part(first_channel);
    if (!part.there) return;
    planes += part.chunk * CHUNK_PITCH + part.pair;
    y += first_channel + part.chunk * 8 + part.pair * (2 * C);
#pragma unroll 2
    for (int line = part.line; line < IMAGES * TILE_P; line += LINES_Q) {
        const int of_image = IMAGES == 1 ? 0 : line / TILE_P, of_row = line - of_image * TILE_P;
        if (row + of_row >= P || IMAGES > 1 && image + of_image >= n) continue;
        const Word* const from = planes + (of_image * ROWS + of_row) * PITCH;
        Chunk stored[2];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const Pair words = transposed(from[2 * j * PLANE], from[(2 * j + 1) * PLANE]);
            stored[0].words[j] = words.first;
            stored[1].words[j] = words.second;
        }
        T* const to = y + (static_cast<long long>(image + of_image) * (P * Q * C) + (row + of_row) * (Q * C));
        *reinterpret_cast<Chunk*>(to) = stored[0];
        if (Q % 2 == 0 || part.pair * 2 + 1 < Q) *reinterpret_cast<Chunk*>(to + C) = stored[1];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_depthwise_toeplitz(const Bits* __restrict__ x, const Chunk* __restrict__ packed_w, const T* __restrict__ bias, T* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    Word* const planes = reinterpret_cast<Word*>(smem);  // [eight channels][channel][image][row][PITCH]
    Chunk* const filters = reinterpret_cast<Chunk*>(planes) + INPUTS;  // [channel][filter row][ROW_WORDS]
    [[maybe_unused]] float* const biases = reinterpret_cast<float*>(filters + FILTERS);  // [channel]

    int at = static_cast<int>(blockIdx.x);
    const int first_channel = at % CHANNEL_TILES * TILE_C;
    at /= CHANNEL_TILES;
    const int first_row = at % ROW_TILES * TILE_P, image = at / ROW_TILES * IMAGES;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

    {
        const InputPart part(first_channel);
        const int above = max(PAD_H - first_row, 0), row = first_row - PAD_H + above;  // rows of padding, and the row of x after them
        const int rows = min(H - row, ROWS - above), images = min(n - image, IMAGES);
        const Bits* const from = x + (static_cast<long long>(image) * (H * W * C) + (row * (W * C) + first_channel + part.chunk * 8));
        Word* const to = planes + part.chunk * CHUNK_PITCH + above * PITCH + FIRST_PAIR + part.pair;
        int line = part.line;
        Loaded loaded;
        load_lines(loaded, from, part, line, rows, images);
#pragma unroll
        for (int i = 0; i < FILTERS; i += THREADS) {
            const int at = i + static_cast<int>(threadIdx.x);
            if (at < FILTERS) filters[at] = packed_w[first_channel / TILE_C * FILTERS + at];
        }
        if constexpr (EPILOGUE::HAS_BIAS) {
            const int c = static_cast<int>(threadIdx.x);
            if (c < TILE_C && first_channel + c < C) biases[c] = to_float(bias[first_channel + c]);
        }
        for (int i = static_cast<int>(threadIdx.x); i < INPUTS; i += THREADS) reinterpret_cast<Chunk*>(planes)[i] = Chunk{};
        __syncthreads();
        put_lines(to, loaded, part, line, rows, images);
#pragma unroll 1
        for (line += BATCH * LINES; line < LOADED; line += BATCH * LINES) {
            load_lines(loaded, from, part, line, rows, images);
            put_lines(to, loaded, part, line, rows, images);
        }
    }
    __syncthreads();

    // A lane's words of a Toeplitz matrix: rows 2 (lane % 4) and the next, and eight further on, of column lane / 4.
    int filter_at[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int tap = lane % 4 * 2 + i * 8 - lane / 4 - SHIFT;
        filter_at[i] = tap >= -1 && tap <= SPAN_W ? tap + 2 : 0;
    }
    int inputs_at[M_TILES];  // of this lane's row of a matrix: of 16 positions, of the first and the second eight columns
    int outputs_at[M_TILES][2];
    bool computed[M_TILES][2];
#pragma unroll
    for (int i = 0; i < M_TILES; ++i) {
        inputs_at[i] = place(min(i * 16 + lane % 16, POSITIONS - 1)) + lane / 16 * 4;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int position = i * 16 + j * 8 + lane / 4;
            computed[i][j] = position < POSITIONS;
            outputs_at[i][j] = place(min(position, POSITIONS - 1)) + lane % 4;
        }
    }

#pragma unroll 1
    for (int c = warp; c < min(TILE_C, C - first_channel); c += WARPS) {
        Word* const channel = planes + c / 8 * CHUNK_PITCH + c % 8 * PLANE;
        float channel_bias = 0.0f;
        if constexpr (EPILOGUE::HAS_BIAS) channel_bias = biases[c];
        const Word* const filter_words = reinterpret_cast<const Word*>(filters) + c * FILTER_WORDS;
        Word filter[R][2];
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int i = 0; i < 2; ++i) filter[r][i] = filter_words[r * ROW_WORDS + filter_at[i]];
        }
        float accumulators[M_TILES][THREAD_P][4] = {};
#pragma unroll
        for (int h = 0; h < THREAD_P + SPAN_H; ++h) {
#pragma unroll
            for (int i = 0; i < M_TILES; ++i) {
                Word inputs[4];
                load_matrices(inputs, channel + inputs_at[i] + h * PITCH);
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    const int p = h - r * DILATION_H;  // the output row that filter row r sends it to
                    if (p >= 0 && p < THREAD_P) mma_m16n8(accumulators[i][p], inputs, filter[r]);
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < M_TILES; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                if (!computed[i][j]) continue;
#pragma unroll
                for (int p = 0; p < THREAD_P; ++p) {
                    const AlignedArray<T, 2> pair = {
                        from_float<T>(finish<EPILOGUE>(accumulators[i][p][2 * j], channel_bias)),
                        from_float<T>(finish<EPILOGUE>(accumulators[i][p][2 * j + 1], channel_bias)),
                    };
                    *reinterpret_cast<AlignedArray<T, 2>*>(channel + outputs_at[i][j] + p * PITCH) = pair;
                }
            }
        }
    }
    __syncthreads();
    store_planes(y, planes, first_channel, first_row, image, n);
}
