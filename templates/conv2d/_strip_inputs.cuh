#pragma once

// Inputs of a lane: of pairs of a channel and a filter row, strips of neighbouring columns that serve all taps of the row. Needs _split_tf32.cuh
// and the family's constants.

// Where a strip of a work tile lies: rows neighbour each other first, so that lanes read neighbouring rows.
struct Strip {
    int image, row, column;

    __device__ __forceinline__ explicit Strip(int strip)
        : image(strip / (STRIP_ROWS * STRIPS_Q)),
          row(strip % STRIP_ROWS * MMA_P),
          column(min(strip / STRIP_ROWS % STRIPS_Q * THREAD_Q, Q - THREAD_Q)) {}

    __device__ __forceinline__ int input() const {
        return image * (PLANES * PLANE) + row * (STRIDE_H * PITCH) + column * STRIDE_W;
    }
};

// A lane's pair of a step, and where its rows begin among the words.
struct Pair {
    int number, row, begin;

    __device__ __forceinline__ explicit Pair(int number)
        : number(number),
          row(number % PAIR_ROWS),
          begin(number / PAIR_ROWS * PLANE + number % PAIR_ROWS * (DILATION_H * PITCH)) {}

    // Pairs that pad the last step meet filters that are zero.
    __device__ __forceinline__ int at() const { return PAIRS % 8 == 0 || number < PAIRS ? begin : 0; }

    // To the next step, with few instructions that wait for each other.
    __device__ __forceinline__ void next() {
        number += 8;
        row += 8 % PAIR_ROWS;
        const bool wraps = row >= PAIR_ROWS;
        row -= wraps ? PAIR_ROWS : 0;
        begin += 8 / PAIR_ROWS * PLANE + 8 % PAIR_ROWS * (DILATION_H * PITCH);
        begin += wraps ? PLANE - PAIR_ROWS * (DILATION_H * PITCH) : 0;
    }
};

// Where the rows of a lane's pairs of a step begin, for its two strips. The pairs are the next step's afterwards.
struct StepRows {
    const Word* of[4];

    __device__ __forceinline__ StepRows(const Word* const (&strips)[2], Pair (&pairs)[2]) {
#pragma unroll
        for (int l = 0; l < 4; ++l) of[l] = strips[l % 2] + pairs[l / 2].at();
        for (Pair& pair : pairs) pair.next();
    }
};

// A lane's inputs of one step DEPTH pairs deep: of each column of the strips, its part of the MMA's pixels.
template <int DEPTH>
struct Inputs {
    Word of[PARTS][STRIP_INPUTS][DEPTH / 2];

    // One word of column i of the strips.
    __device__ __forceinline__ void load(const StepRows& rows, int i, int word) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) of[part][i][word] = word_part<PARTS>(rows.of[word][i], part);
    }

    __device__ __forceinline__ void load(const StepRows& rows) {
#pragma unroll
        for (int word = 0; word < DEPTH / 2; ++word) {
#pragma unroll
            for (int i = 0; i < STRIP_INPUTS; ++i) load(rows, i, word);
        }
    }
};
