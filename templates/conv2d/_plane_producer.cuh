#pragma once
#include "_alignment.cuh"

// Producer warps that copy planes of input as they lie, well ahead, and put them in order as words of MMAs, for consumer groups of a block in turn.
// Needs _ptx.cuh, the words of the element type and the family's constants.

// The rows of a work tile's input, and where its first channel's begin in x.
struct Rows {
    int window, first, count;  // the window's first row, which may be padding; the first of x, how many
    const Bits* begin;

    __device__ __forceinline__ Rows(const Bits* x, int work_tile)
        : window(work_tile % ROW_TILES * TILE_P * STRIDE_H - PAD_H),
          first(PAD_H == 0 ? window : max(window, 0)),
          count(ALL_INSIDE ? WINDOW_H : max(min(window + WINDOW_H, H) - first, 0)),
          begin(x + static_cast<long long>(work_tile / ROW_TILES * IMAGES) * (C * H * W) + first * W) {}

    // A plane's rows.
    __device__ __forceinline__ const Bits* plane(int image, int channel) const {
        return begin + (image * C + channel) * (H * W);
    }
};

// Starts copying the input of a slice of the channels of a work tile's images: each plane's rows, and what lies beside them in their
// first and last 16 bytes. Every producer warp copies its share of one plane after the other.
__device__ __forceinline__ void copy_inputs(Bits* raw, const Bits* __restrict__ x, int thread, int work_tile, int slice, int n) {
    constexpr int COPIED = CHANNELS < C ? CHANNELS : C, PLANES_COPIED = IMAGES * COPIED;
    constexpr int SHARES = PLANES_COPIED < PRODUCER_WARPS ? PRODUCER_WARPS / PLANES_COPIED : 1, STEP = 32 * SHARES;  // of a plane; vectors
    const int warp = thread / 32;
    if (warp >= PLANES_COPIED * SHARES) return;
    const int share = thread % STEP;
    const Rows rows(x, work_tile);
    const int length = rows.count * W;
#pragma unroll 1
    for (int i = warp / SHARES; i < PLANES_COPIED; i += PRODUCER_WARPS / SHARES) {
        const int image = i / COPIED, channel = slice * CHANNELS + i % COPIED;
        if (C % CHANNELS > 0 && channel >= C || IMAGES > 1 && work_tile / ROW_TILES * IMAGES + image >= n) continue;
        const Bits* const plane = rows.plane(image, channel);
        const int before = alignment_offset(plane);
        const Bits* const from = plane - before + share * VECTOR;
        Bits* const to = raw + i * RAW_PLANE + share * VECTOR;
        const int whole = length / VECTOR / STEP;
#pragma unroll 16
        for (int j = 0; j < whole; ++j) copy_async<16>(to + j * (STEP * VECTOR), from + j * (STEP * VECTOR));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int at = (whole + j) * (STEP * VECTOR);
            if (at + share * VECTOR >= before + length) break;
            int bytes = 16;
            if constexpr (C * H * W % VECTOR > 0) {  // the last image may end within a vector
                const long long left = x + static_cast<long long>(n) * (C * H * W) - (from + at);
                if (left < VECTOR) bytes = static_cast<int>(left) * static_cast<int>(sizeof(Bits));
            }
            copy_async_first<16>(to + at, from + at, bytes);
        }
    }
}

// Puts what was copied in order: rows of words as MMAs take them, with zeros for padding. A thread has a column of every
// ROW_STEP-th row, or several columns of every row.
__device__ __forceinline__ void transform_words(Word* words, const Bits* raw, const Bits* __restrict__ x, int thread, int work_tile,
                                           int slice, int n) {
    constexpr int PRODUCER_THREADS = 32 * PRODUCER_WARPS, COLUMNS_TRANSFORMED = (ROW_WORDS + PRODUCER_THREADS - 1) / PRODUCER_THREADS;
    constexpr int ROW_STEP = COLUMNS_TRANSFORMED > 1 ? 1 : PRODUCER_THREADS / ROW_WORDS, ROWS_TRANSFORMED = (WINDOW_H + ROW_STEP - 1) / ROW_STEP;
    constexpr int ALL_PLANES = IMAGES * PLANES, COPIED = CHANNELS < C ? CHANNELS : C;
    // Words loaded together, before any is stored: of so many rows, or of so many planes.
    constexpr int MOST_LOADED = 12;
    constexpr int ROWS_LOADED = ROWS_TRANSFORMED < MOST_LOADED ? ROWS_TRANSFORMED : MOST_LOADED, MOST_PLANES = MOST_LOADED / ROWS_LOADED;
    constexpr int PLANES_LOADED = MOST_PLANES < ALL_PLANES ? MOST_PLANES : ALL_PLANES;
    const int first_row = COLUMNS_TRANSFORMED > 1 ? 0 : thread / ROW_WORDS;
    if (first_row >= ROW_STEP) return;
    const Rows rows(x, work_tile);
#pragma unroll 1
    for (int window_column = COLUMNS_TRANSFORMED > 1 ? thread : thread % ROW_WORDS; window_column < ROW_WORDS;
         window_column += PRODUCER_THREADS) {
        const int column = window_column - PAD_W;
        const bool in_row = PAD_W == 0 || static_cast<unsigned>(column) < static_cast<unsigned>(W);
        const bool next_in_row = PAD_W == 0 || static_cast<unsigned>(column + DILATION_W) < static_cast<unsigned>(W);
#pragma unroll 1
        for (int i = 0; i < ALL_PLANES; i += PLANES_LOADED) {
#pragma unroll 1
            for (int first = 0; first < ROWS_TRANSFORMED; first += ROWS_LOADED) {
                Word loaded[PLANES_LOADED][ROWS_LOADED];
#pragma unroll
                for (int j = 0; j < PLANES_LOADED; ++j) {
                    const int image = (i + j) / PLANES, plane = (i + j) % PLANES * WORD_CHANNELS;
                    const int channel = slice * CHANNELS + plane;
                    const bool there = (ALL_PLANES % PLANES_LOADED == 0 || i + j < ALL_PLANES) &&
                                       (C % CHANNELS == 0 || channel < C) &&
                                       (IMAGES == 1 || work_tile / ROW_TILES * IMAGES + image < n);
                    const int at = (rows.window - rows.first + first_row + first * ROW_STEP) * W + column;
                    const Bits* const one =
                        raw + (image * COPIED + plane) * RAW_PLANE + alignment_offset(rows.plane(image, channel)) + at;
                    const Bits* const two =
                        WORD_COLUMNS == 2 ? one + DILATION_W
                                          : raw + (image * COPIED + plane + 1) * RAW_PLANE + alignment_offset(rows.plane(image, channel + 1)) + at;
                    const bool has_two = WORD_COLUMNS == 2 ? there && next_in_row : there && in_row && (C % CHANNELS == 0 || channel + 1 < C);
                    const bool has_one = there && in_row;
#pragma unroll
                    for (int l = 0; l < ROWS_LOADED; ++l) {
                        const int row = first_row + (first + l) * ROW_STEP;
                        const bool in_x = (ROWS_TRANSFORMED % ROWS_LOADED == 0 && WINDOW_H % ROW_STEP == 0 || row < WINDOW_H) &&
                                          (!ROWS_CHECKED || static_cast<unsigned>(rows.window + row) < static_cast<unsigned>(H));
                        if constexpr (sizeof(Word) > sizeof(Bits)) {
                            const Word low = has_one && in_x ? one[l * (ROW_STEP * W)] : 0;
                            const Word high = has_two && in_x ? two[l * (ROW_STEP * W)] : 0;
                            loaded[j][l] = word_of(low, high);
                        } else {
                            loaded[j][l] = has_one && in_x ? one[l * (ROW_STEP * W)] : 0;
                        }
                    }
                }
#pragma unroll
                for (int j = 0; j < PLANES_LOADED; ++j) {
                    if (ALL_PLANES % PLANES_LOADED > 0 && i + j >= ALL_PLANES) break;
                    Word* const to = words + (i + j) * PLANE + (first_row + first * ROW_STEP) * PITCH + window_column;
#pragma unroll
                    for (int l = 0; l < ROWS_LOADED; ++l) {
                        if ((ROWS_TRANSFORMED % ROWS_LOADED > 0 || WINDOW_H % ROW_STEP > 0) &&
                            first_row + (first + l) * ROW_STEP >= WINDOW_H) {
                            break;
                        }
                        to[l * (ROW_STEP * PITCH)] = PARTS == 1 ? rounded(loaded[j][l]) : loaded[j][l];
                    }
                }
            }
        }
    }
}

// Barriers of a block's warps: a consumer group's words are there, a consumer group needs no more of its words, a consumer group, all
// producer warps.
__device__ __forceinline__ constexpr int full_barrier(int consumer) { return 1 + consumer; }
__device__ __forceinline__ constexpr int empty_barrier(int consumer) { return 1 + CONSUMER_GROUPS + consumer; }
__device__ __forceinline__ constexpr int group_barrier(int consumer) { return 1 + 2 * CONSUMER_GROUPS + consumer; }
constexpr int ALL_PRODUCERS = 1 + 3 * CONSUMER_GROUPS, BARRIER_THREADS = THREADS + 32 * PRODUCER_WARPS;  // threads of a consumer group and all producer warps

// What is supplied at once: a slice of the channels of a work tile, for a consumer group. Consumer groups alternate.
struct ProducerState {
    int work_tile, slice, consumer;

    __device__ __forceinline__ void next() {
        ++work_tile;
        if (++consumer < CONSUMER_GROUPS) return;
        consumer = 0;
        work_tile -= CONSUMER_GROUPS;
        if (++slice < CHANNEL_SLICES) return;
        slice = 0;
        work_tile += CONSUMER_GROUPS * static_cast<int>(gridDim.x);
    }
};

// What producer warps do.
__device__ __forceinline__ void produce(Word* group_words, Bits* raw, const Bits* __restrict__ x, int thread, int work_tiles, int n) {
    const int first = CONSUMER_GROUPS * static_cast<int>(blockIdx.x);
    ProducerState copied = {first, 0, 0}, transformed = copied;
    const auto copy_next = [&](int stage) {
        if (copied.work_tile < work_tiles) copy_inputs(raw + stage * RAW, x, thread, copied.work_tile, copied.slice, n);
        copy_async_commit();
        copied.next();
    };
#pragma unroll 1
    for (int stage = 0; stage < STAGES; ++stage) copy_next(stage);
    int stage = 0;
    for (; transformed.work_tile - transformed.consumer < work_tiles; transformed.next()) {
        copy_async_wait<STAGES - 1>();
        sync_threads<32 * PRODUCER_WARPS>(ALL_PRODUCERS);
        if (transformed.work_tile < work_tiles) {
            if (transformed.slice > 0 || transformed.work_tile >= first + CONSUMER_GROUPS) sync_threads<BARRIER_THREADS>(empty_barrier(transformed.consumer));
            Word* const words = group_words + transformed.consumer * GROUP_WORDS;
            transform_words(words, raw + stage * RAW, x, thread, transformed.work_tile, transformed.slice, n);
            arrive_threads<BARRIER_THREADS>(full_barrier(transformed.consumer));
        }
        sync_threads<32 * PRODUCER_WARPS>(ALL_PRODUCERS);
        copy_next(stage);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}
